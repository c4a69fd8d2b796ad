// Package conformance runs the whole suite of the pinned critest twice with one seed, straight to containerd and through
// a door with the built-in policy, and compares the outcome of every spec. The door is the proxy, or with -args -door nri
// the plugin beside containerd's socket. It knows nothing of what critest tests.
//
//	go test ./conformance -v -timeout 60m
//	go test ./conformance -v -timeout 60m -args -door nri
//	go test ./conformance -v -run TestConformance -args -seed 7 -focus 'PodSandbox'
//
// skips.txt has the specs that critest may skip and expected-failures.txt those that can't pass on a lab's local images,
// each with the reason, and both hold for every run. NRI has a socket of its own, which the proxy is not in front of: those
// specs find their plugin's events through the same containerd in both runs, behind the plugin's door beside our plugin.
package conformance

import (
	"flag"
	"os"
	"testing"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/integration/parts"
)

var (
	seed  = flag.Int64("seed", 1, "ginkgo's seed: the order of the specs")
	focus = flag.String("focus", "", "regular expression of the specs to run; all by default")
	door  = flag.String("door", node.CRI, "cri: the proxy; nri: the plugin")
	tier  = flag.String("tier", "", "give critest's pods this tier by a rule of the policy; by default they have none")
)

func TestMain(m *testing.M) {
	flag.Parse()
	lab.Isolate(lab.Parts(append(parts.ContainerRuntime(), "critest")...), own.Prepare)
	os.Exit(m.Run())
}
