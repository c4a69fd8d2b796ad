// Package crictl runs every command of the pinned crictl through the proxy, and the same straight to containerd, and wants
// the same outcome: exit code, output and errors. One pod is of the tier BE, so that its containers really are changed
// on the way, and one is of none.
//
//	go test ./crictl -v
//
// What differs on purpose is not hidden but named: the values in the OCI spec of a BE container, and the annotation with
// the decision.
package crictl

import (
	"os"
	"testing"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/integration/parts"
)

func TestMain(m *testing.M) {
	lab.Isolate(lab.Parts(append(parts.ContainerRuntime(), "crictl")...), own.Prepare)
	os.Exit(m.Run())
}
