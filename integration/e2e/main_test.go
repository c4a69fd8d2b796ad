// Package e2e tests the doors with the real containerd and runc and the kernel's own files: on the host with cgroup v1,
// with -args -vm the same tests in a VM with cgroup v2 and four NUMA nodes, and with -args -vm -init systemd in one where
// cgroups are systemd's; the proxy, and with -args -door nri the plugin.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/guest"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/integration/parts"
	"github.com/tideline-io/tideline/integration/vm"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// door is the one that is tested.
var door = node.CRI

func TestMain(m *testing.M) {
	flag.StringVar(&door, "door", node.CRI, "cri: the proxy; nri: the plugin")
	inVM := flag.Bool("vm", false, "run the tests in a VM with cgroup v2")
	first := flag.String("init", "", "systemd: have it as the VM's init, and its cgroup driver")
	flag.Parse()
	if *inVM && os.Getenv(lab.Env) == "" {
		var args []string
		flag.Visit(func(f *flag.Flag) {
			if f.Name == "test.run" || f.Name == "test.skip" || f.Name == "test.v" || f.Name == "test.failfast" || f.Name == "door" {
				args = append(args, "-"+f.Name+"="+f.Value.String())
			}
		})
		exit, err := guest.Run(context.Background(), guest.Config{
			Args: append(args, "-test.timeout=40m"), Limit: 40 * time.Minute, Init: vm.Init(*first), CPUs: 4, NUMA: 4,
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			exit = 1
		}
		os.Exit(exit)
	}
	lab.Isolate(lab.Parts(parts.ContainerRuntime()...), own.Prepare)
	os.Exit(m.Run())
}

// start gives a node and a context that ends with the test.
func start(t *testing.T, opts node.Options) (context.Context, *node.Node) {
	t.Helper()
	limit := 5 * time.Minute
	if lab.Unified() {
		limit *= 5
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	opts.Door = door
	n, err := node.Start(ctx, lab.ForTest(t, strings.ToLower(t.Name())), opts)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, n
}

// manifest reads one of the demo's pods, by name.
func manifest(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p, err := demo.Manifest(filepath.Join(manifests(t), name+".yaml"), slices.Index(demo.Names, name))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// without has f make pods that no door touches.
func without(t *testing.T, ctx context.Context, n *node.Node, f func()) {
	t.Helper()
	if door == node.CRI {
		through := n.Kubelet.CRI
		n.Kubelet.CRI = n.Direct
		f()
		n.Kubelet.CRI = through
		return
	}
	for _, on := range []bool{true, false} {
		if _, err := n.Control.Bypass(ctx, on); err != nil {
			t.Fatal(err)
		}
		if on {
			f()
		}
	}
}

func run(t *testing.T, ctx context.Context, n *node.Node, spec *corev1.Pod) *node.Pod {
	t.Helper()
	p, err := n.Kubelet.RunPod(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// want checks kernel values of a cgroup. Knobs that cgroup v1 lacks are checked on v2 alone.
func want(t *testing.T, when, cgroup string, values map[policy.Knob]string) {
	t.Helper()
	files := node.Files(cgroup)
	if values[policy.CPUSetCPUs] == pool {
		values = maps.Clone(values)
		values[policy.CPUSetCPUs] = rest(t)
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if !lab.Unified() && (k == policy.MemoryLow || k == policy.MemoryHigh) {
			continue
		}
		if got, _ := node.InKernel(k, files); !node.Holds(k, values[k], got) {
			t.Errorf("%s: %s of %s: got %q, want %q", when, k, cgroup, got, values[k])
		}
	}
}

// pool is the CPUs of the shared pool under demo.Reserved, which reserves CPU 0, on a machine with two; want puts those of
// this machine in its place.
const pool = "1"

func rest(t *testing.T) string {
	t.Helper()
	all, err := cpuset.Parse(online(t))
	if err != nil {
		t.Fatal(err)
	}
	return all.Difference(cpuset.New(0)).String()
}

func cgroupOf(p *node.Pod, i int) string { return p.Cgroup + "/" + p.Containers[i].ID }

// known waits until the door has read the runtime's containers, without which a status shows our values.
func known(t *testing.T, ctx context.Context, n *node.Node, containers int) {
	t.Helper()
	eventually(t, "the door knows the containers", func() bool {
		cs, err := n.Control.Containers(ctx)
		return err == nil && len(cs) == containers
	})
}

// shown asks for a container's resources as the kubelet does.
func shown(t *testing.T, ctx context.Context, n *node.Node, id string) *runtimeapi.LinuxContainerResources {
	t.Helper()
	res, err := n.Kubelet.CRI.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetStatus().GetResources().GetLinux()
}

// asked checks that a status shows what the kubelet asked for. No NRI plugin sees a status: docs/doors.md.
func asked(t *testing.T, when string, got *runtimeapi.LinuxContainerResources, r policy.Resources) {
	t.Helper()
	if door == node.NRI {
		return
	}
	want := node.Resources(r)
	type fields struct{ shares, quota, memory int64 }
	g, w := fields{got.GetCpuShares(), got.GetCpuQuota(), got.GetMemoryLimitInBytes()}, fields{want.GetCpuShares(), want.GetCpuQuota(), want.GetMemoryLimitInBytes()}
	if g != w {
		t.Errorf("%s: status shows %+v, want what was asked: %+v", when, g, w)
	}
	for _, k := range []string{"cpu.idle", "cpu.max.burst", "memory.high"} {
		if v, ok := got.GetUnified()[k]; ok {
			t.Errorf("%s: status shows %s=%s, which nobody asked", when, k, v)
		}
	}
	if got.GetCpusetCpus() != want.GetCpusetCpus() {
		t.Errorf("%s: status shows cpuset %q, want %q", when, got.GetCpusetCpus(), want.GetCpusetCpus())
	}
}

func kubeContainers(spec *corev1.Pod, n *node.Node) []kube.Container {
	return kube.Containers(spec, n.Kubelet.Options)
}

func manifests(t *testing.T) string {
	t.Helper()
	if os.Getenv(lab.Env) == "vm" {
		return guest.Manifests
	}
	root, err := own.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy", "examples", "demo")
}

// weight is how runc writes shares: as they are on v1, by its own formula on v2.
func weight(shares uint64) string {
	if !lab.Unified() {
		return fmt.Sprint(shares)
	}
	return fmt.Sprint(units.WeightQuadratic(shares))
}

// all is the cpuset of a container that nobody gave one: v1 copies the parent's, v2 has none.
func all(t *testing.T) string {
	t.Helper()
	if lab.Unified() {
		return ""
	}
	return online(t)
}

func online(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// unwrap gives the gRPC error inside.
func unwrap(err error) error {
	for err != nil {
		if _, ok := err.(interface{ GRPCStatus() *grpcstatus.Status }); ok {
			return err
		}
		err = errors.Unwrap(err)
	}
	return nil
}
