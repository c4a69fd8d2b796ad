// Package crio tests the NRI plugin with the real CRI-O and the kernel's own files, on the host with cgroup v1.
package crio

import (
	"flag"
	"os"
	"testing"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/integration/parts"
)

func TestMain(m *testing.M) {
	flag.Parse()
	lab.Isolate(lab.Parts(parts.CRIO()...), own.Prepare)
	os.Exit(m.Run())
}
