package e2e

import (
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/policy"
)

// resets are the files of slices in which systemd knows of no value of ours and has one of its own, and that value. It
// writes them into the slices of pods and classes on every daemon-reload, and into a slice whose properties are set: the
// kubelet does that to its classes once a minute. What survives:
//
//   - every file of every container: a scope is delegated, so systemd leaves it alone;
//   - cpu.max.burst of a pod, which systemd does not know;
//   - cpu.max, cpu.weight and memory.max of a pod, which the kubelet told systemd.
var resets = map[string]string{"memory.low": "0", "io.weight": "default 100", "io.bfq.weight": "default 100"}

// TestDaemonReload: what systemd takes away is what resets says, and no more, and the door puts it back.
func TestDaemonReload(t *testing.T) {
	if !lab.Systemd() {
		t.Skip("systemd: it runs in the VM whose init is systemd")
	}
	ctx, n := start(t, node.Options{Policy: demo.Reserved + "    BE:\n      io:\n        max:\n        - {device: all, wbps: 10485760}\n"})
	cgroups := map[string]string{}
	pods := map[string]*node.Pod{}
	for _, name := range demo.Names {
		p := run(t, ctx, n, manifest(t, name))
		pods[name] = p
		cgroups["container "+name], cgroups["pod "+name] = cgroupOf(p, 0), p.Cgroup
	}
	for _, c := range node.Classes {
		cgroups["class "+c] = n.Kubelet.Class(c)
	}
	type kernel map[string]map[string]string
	take := func() kernel {
		k := kernel{}
		for name, at := range cgroups {
			k[name] = node.Files(at)
		}
		return k
	}
	// back has something done that resets slices, and checks that the kernel's values are those of before soon after.
	back := func(when string, before kernel, do func()) {
		t.Helper()
		do()
		lost := ""
		begin := time.Now()
		for end := begin.Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			now := take()
			if reflect.DeepEqual(now, before) {
				if lost != "" || time.Since(begin) > 10*time.Second { // systemd goes through its units after it has answered
					break
				}
				continue
			}
			for name, files := range now {
				for f, v := range files {
					switch r, ok := resets[f]; {
					case v == before[name][f]:
					case ok && v == r && !strings.HasPrefix(name, "container "):
						lost = name + " " + f
					default:
						t.Errorf("%s: %s of %s is %q, was %q", when, f, name, v, before[name][f])
					}
				}
			}
		}
		t.Logf("%s: lost %q, all is back after %v", when, lost, time.Since(begin).Round(100*time.Millisecond))
		after := take()
		for _, name := range slices.Sorted(maps.Keys(before)) {
			differ(t, when+": "+name, before[name], after[name])
		}
	}
	systemctl := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			t.Fatalf("systemctl %v: %v: %s", args, err, out)
		}
	}

	eventually(t, "the classes have their values", func() bool {
		return node.Kernel(n.Kubelet.Class(""), policy.MemoryLow) == "100663296" && node.Kernel(n.Kubelet.Class("besteffort"), policy.IOWeight) == "10"
	})
	values := maps.Clone(be)
	disk, err := os.ReadFile("/sys/block/vda/dev")
	if err != nil {
		t.Fatal(err)
	}
	values[policy.IOMax] = strings.TrimSpace(string(disk)) + " rbps=max wbps=10485760 riops=max wiops=max"
	want(t, "before", cgroupOf(pods["be"], 0), values)
	want(t, "before", cgroupOf(pods["ls"], 0), ls)
	for name, weight := range map[string]string{"lsr": "500", "ls": "200", "be": "10", "system": "200"} {
		want(t, "before: pod "+name, pods[name].Cgroup, map[policy.Knob]string{policy.IOWeight: weight})
	}
	want(t, "before: pod ls", pods["ls"].Cgroup, map[policy.Knob]string{policy.CPUMaxBurst: "100000", policy.MemoryLow: "33554432"})

	before := take()
	before["class burstable"]["cpu.weight"] = "1"
	back("the kubelet's upkeep of classes", before, func() {
		for _, class := range node.Classes[1:] {
			if err := n.Kubelet.KeepClass(ctx, class, 2); err != nil {
				t.Fatal(err)
			}
		}
	})
	back("daemon-reload", before, func() { systemctl("daemon-reload") })
	back("another pod made", before, func() {
		more := manifest(t, "be")
		more.Name, more.UID = "more", demo.UID(100)
		want(t, "made after daemon-reload", cgroupOf(run(t, ctx, n, more), 0), values)
	})
	back("containers updated", before, func() {
		for _, name := range demo.Names {
			c := pods[name].Containers[0]
			if err := n.Kubelet.Update(ctx, c, c.Asked); err != nil {
				t.Errorf("update of %s: %v", name, err)
			}
		}
	})
	back("daemon-reexec", before, func() { systemctl("daemon-reexec") })
	back("daemon-reload while the door is away", before, func() {
		if err := n.StopProxy(ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		systemctl("daemon-reload")
		if err := n.StartProxy(ctx); err != nil {
			t.Fatal(err)
		}
	})
}
