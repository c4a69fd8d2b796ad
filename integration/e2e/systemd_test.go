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

// TestDaemonReload: what a daemon-reload takes away is what resets says, and no more; a pod's values are written again
// with that pod's next event, and those of classes with any pod's.
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
	// same checks the kernel's values against those of before, or what a reset makes of them.
	same := func(when string, before kernel, reset func(cgroup string) bool) {
		t.Helper()
		wants := kernel{}
		for name, files := range before {
			wants[name] = maps.Clone(files)
			for f, v := range resets {
				if reset(name) {
					wants[name][f] = v
				}
			}
		}
		// systemd goes through its units after it has answered.
		after := take()
		for end := time.Now().Add(time.Minute); !reflect.DeepEqual(after, wants) && time.Now().Before(end); after = take() {
			time.Sleep(100 * time.Millisecond)
		}
		for _, name := range slices.Sorted(maps.Keys(wants)) {
			differ(t, when+": "+name, wants[name], after[name])
		}
	}
	none := func(string) bool { return false }
	slice := func(cgroup string) bool { return !strings.HasPrefix(cgroup, "container ") }
	podSlice := func(cgroup string) bool { return strings.HasPrefix(cgroup, "pod ") }
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
	for _, class := range node.Classes[1:] {
		if err := n.Kubelet.KeepClass(ctx, class, 2); err != nil {
			t.Fatal(err)
		}
	}
	before["class burstable"]["cpu.weight"] = "1"
	same("the kubelet's upkeep of classes", before, func(cgroup string) bool { return cgroup == "class burstable" || cgroup == "class besteffort" })

	systemctl("daemon-reload")
	same("daemon-reload", before, slice)

	// A pod that comes has its own values and the classes'; those of other pods stay away.
	more := manifest(t, "be")
	more.Name, more.UID = "more", demo.UID(100)
	p := run(t, ctx, n, more)
	want(t, "made after daemon-reload", cgroupOf(p, 0), values)
	eventually(t, "the classes have their values again", func() bool {
		return node.Kernel(n.Kubelet.Class(""), policy.MemoryLow) == "100663296" && node.Kernel(n.Kubelet.Class("besteffort"), policy.IOWeight) == "10"
	})
	same("another pod made", before, podSlice)
	for _, name := range demo.Names {
		c := pods[name].Containers[0]
		if err := n.Kubelet.Update(ctx, c, c.Asked); err != nil {
			t.Errorf("update of %s: %v", name, err)
		}
	}
	same("containers updated", before, podSlice)

	// A resize has everything of its pod written again.
	for _, name := range demo.Names {
		if err := n.Kubelet.ResizePod(ctx, pods[name]); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the pods have their values again", func() bool {
		return node.Kernel(pods["ls"].Cgroup, policy.MemoryLow) == "33554432" && node.Kernel(pods["be"].Cgroup, policy.IOWeight) == "10" &&
			node.Kernel(pods["system"].Cgroup, policy.IOWeight) == "200" && node.Kernel(pods["lsr"].Cgroup, policy.IOWeight) == "500" &&
			node.Kernel(pods["ls"].Cgroup, policy.CPUMaxBurst) == "100000"
	})
	same("pods resized", before, none)

	time.Sleep(8 * time.Second) // a resize has its pod written a last time after 5.2 s
	systemctl("daemon-reexec")
	same("daemon-reexec", before, slice)

	// The door's own restart finds all of it.
	if err := n.RestartProxy(ctx, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	known(t, ctx, n, len(demo.Names)+1)
	eventually(t, "the pods have their values after the door's restart", func() bool {
		return node.Kernel(pods["ls"].Cgroup, policy.MemoryLow) == "33554432" && node.Kernel(pods["be"].Cgroup, policy.IOWeight) == "10"
	})
	same("the door restarted", before, none)
}
