// Package storm puts a door under a long random sequence of what happens to a node: pods of all tiers that come, change and
// go, a kubelet with exclusive CPUs of its own, restarts, bypass, other policies. After each step everybody's CPUs in the
// kernel are compared with what the door says, and with what the test works out by itself. containerd, runc and the kernel
// are real; the kubelet is played by package node.
//
//	go test ./storm -args -door nri -seed 7 -steps 200
//	go test ./storm -args -vm -steps 40   # in a VM with cgroup v2, 16 CPUs, 4 NUMA nodes and two threads a core
//
// One seed gives one sequence: choices depend on the seed, the number of the step and what came of the steps before.
package storm

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/guest"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/integration/parts"
)

var (
	door  = node.CRI
	seed  uint64
	steps int
)

func TestMain(m *testing.M) {
	flag.StringVar(&door, "door", node.CRI, "cri: the proxy; nri: the plugin")
	flag.Uint64Var(&seed, "seed", 1, "of the sequence")
	flag.IntVar(&steps, "steps", 40, "how many steps")
	inVM := flag.Bool("vm", false, "run in a VM with cgroup v2")
	flag.Parse()
	if *inVM && os.Getenv(lab.Env) == "" {
		var args []string
		flag.Visit(func(f *flag.Flag) {
			switch f.Name {
			case "test.run", "test.v", "door", "seed", "steps":
				args = append(args, "-"+f.Name+"="+f.Value.String())
			}
		})
		exit, err := guest.Run(context.Background(), guest.Config{
			Args: append(args, "-test.timeout=55m"), Limit: time.Hour, CPUs: 16, NUMA: 4, Threads: 2,
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, "storm:", err)
			exit = 1
		}
		os.Exit(exit)
	}
	lab.Isolate(lab.Parts(parts.ContainerRuntime()...), own.Prepare)
	os.Exit(m.Run())
}
