package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
)

// managed is what containers of each tier have when they were made through the proxy.
var managed = map[string]map[policy.Knob]string{
	"lsr": {policy.CPUMax: "100000 100000", policy.CPUMaxBurst: "0", policy.CPUIdle: "0", policy.MemoryMax: "67108864", policy.MemoryLow: "67108864"},
	"ls":  {policy.CPUMax: "100000 100000", policy.CPUMaxBurst: "100000", policy.CPUIdle: "0", policy.MemoryMax: "134217728", policy.MemoryLow: "33554432"},
	"be":  {policy.CPUWeight: policy.Unset, policy.CPUMax: "50000 100000", policy.CPUIdle: "1", policy.MemoryMax: "134217728", policy.MemoryHigh: "120795136"},
}

// standalone is a kubelet with static pods on a node whose paths are a real one's.
type standalone struct {
	t        *testing.T
	ctx      context.Context
	lab      *lab.Lab
	cri      *lab.CRI // containerd's
	k        *lab.Kubelet
	proxy    *lab.Process      // nil: it does not run
	page     map[string]string // docs/install-node.md: commands by the name of their step
	checkout string            // what the commands see of the repository
	now      *record           // gets the kubelet's errors
	read     int64             // so much of the kubelet's log has been read
}

// TestStandalone follows docs/install-node.md with a kubelet that runs static pods: without us, through the proxy, and
// without us again.
func TestStandalone(t *testing.T) {
	if lab.Unified() {
		t.Skip("the VM's part of these tests is TestControlPlane, to spare emulation")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	n := startStandalone(t, ctx)
	manifests := tiers(t)

	n.cycle(newRecord(), manifests) // so that there are pods to remove, as later
	without := newRecord()
	before := n.cycle(without, manifests)
	files := n.files(before)

	n.now = newRecord()
	for _, step := range []string{"install-programs", "install-files", "check-policy", "start"} {
		n.step(step)
	}
	if out := n.step("verify-proxy"); !strings.Contains(out, "observe") || !strings.Contains(out, "connected") || strings.Contains(out, "not connected") {
		t.Errorf("tideline status before the kubelet is pointed at the proxy:\n%s", out)
	}
	n.step("kubelet-on")
	n.wait(ids(before))
	n.step("verify")
	settle()
	n.status(n.now, "after a restart of the kubelet", n.wait(ids(before)))
	n.errors()
	n.like("in observe mode", without, n.now)
	n.unchanged("in observe mode", files, n.files(n.wait(ids(before))))
	n.step("enforce")
	for name, p := range n.wait(ids(before)) {
		if name == "lsr" || name == "ls" || name == "be" {
			eventually(t, ctx, "the door knows "+p.Name, func() error { return knows(ctx, p, policy.Adopted) })
		}
	}
	settle()
	n.now = newRecord()
	n.status(n.now, "after a restart of the kubelet", n.wait(ids(before)))
	n.like("pods of before, enforcing", without, n.now)
	n.errors()

	with := newRecord()
	after := n.cycle(with, manifests)
	for name, p := range after {
		want(t, "through the proxy: "+name, cgroupOf(n.lab, p)+"/"+containerID(p), managed[name])
		if err := decided(ctx, control.Dial(control.DefaultSocket), n.lab, p); err != nil {
			t.Errorf("through the proxy: %s: %v", name, err)
		}
	}
	same(t, without, with)

	n.now = newRecord()
	for _, step := range []string{"undo-values", "kubelet-off", "undo-proxy"} {
		n.step(step)
	}
	n.unchanged("undone", files, n.files(n.wait(ids(after))))
	settle()
	n.status(n.now, "after a restart of the kubelet", n.wait(ids(after)))
	n.errors()
	n.like("undone", without, n.now)
	for _, gone := range []string{control.DefaultRunDir, "/etc/tideline", "/usr/local/bin/" + own.Proxy} {
		if _, err := os.Lstat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("undone: %s is there: %v", gone, err)
		}
	}
}

// unchanged compares cgroup files with those of before.
func (n *standalone) unchanged(when string, before, now map[string]map[string]string) {
	n.t.Helper()
	for where, files := range before {
		for f, v := range files {
			if got := now[where][f]; got != v {
				n.t.Errorf("%s: %s of %s is %q, want %q as without us", when, f, where, got, v)
			}
		}
	}
}

// like checks that what a record has is as without us.
func (n *standalone) like(when string, without, now *record) {
	n.t.Helper()
	for _, step := range now.steps {
		if now.said[step] != without.said[step] {
			n.t.Errorf("%s: %s differs without us (-) and now (+):\n%s", when, step, diff(without.said[step], now.said[step]))
		}
	}
	for m := range now.log {
		if !without.log[m] {
			n.t.Errorf("%s: the kubelet's error log has a line that it had not without us: %s", when, m)
		}
	}
}

const kubeletConf = "/etc/kubernetes/kubelet.conf.d"

func startStandalone(t *testing.T, ctx context.Context) *standalone {
	t.Helper()
	l := lab.ForTest(t, "standalone")
	c, err := l.StartContainerd(ctx, lab.ContainerdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := &standalone{t: t, ctx: ctx, lab: l, checkout: filepath.Join(l.Dir(), "checkout"), now: newRecord()}
	root, err := own.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := own.Dir()
	if err != nil {
		t.Fatal(err)
	}
	n.page = steps(t, filepath.Join(root, "docs", "install-node.md"))
	// /run is the lab's own, so the paths of a real node are free there.
	const socket = "/run/containerd/containerd.sock"
	overlay(t, "/etc")
	overlay(t, "/usr/local")
	for _, dir := range []string{filepath.Dir(socket), kubeletConf, n.checkout} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(c.Socket(), socket), os.Symlink(bin, filepath.Join(n.checkout, "bin")),
		os.Symlink(filepath.Join(root, "deploy"), filepath.Join(n.checkout, "deploy")), os.Symlink(filepath.Join(root, "api"), filepath.Join(n.checkout, "api"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(socket) })
	if n.cri, err = lab.DialCRI(c.Socket()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.cri.Close() })
	n.k, err = l.StartKubelet(ctx, lab.KubeletOptions{Runtime: socket, Config: map[string]any{"syncFrequency": "1s"}, Args: []string{"--config-dir=" + kubeletConf}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// overlay has what is written to a folder of the machine go to the lab's memory, for as long as the test runs and in
// the lab's namespace alone.
func overlay(t *testing.T, dir string) {
	t.Helper()
	base := filepath.Join("/run/overlay", dir)
	upper, work := filepath.Join(base, "upper"), filepath.Join(base, "work")
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work); err != nil {
		t.Fatalf("mount an overlay on %s: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.RemoveAll(base)); err != nil {
			t.Error(err)
		}
	})
}

// steps reads the named blocks of commands of a page:
//
//	```sh start
//	systemctl enable --now tideline-runtime-proxy.socket
//	```
func steps(t *testing.T, page string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for i, part := range strings.Split(string(b), "\n```") {
		if head, commands, _ := strings.Cut(part, "\n"); i%2 == 1 && strings.HasPrefix(head, "sh ") {
			out[strings.TrimPrefix(head, "sh ")] = commands
		}
	}
	return out
}

// step runs the commands of a step as they stand on the page, systemctl aside, and gives their output.
func (n *standalone) step(name string) string {
	n.t.Helper()
	commands, ok := n.page[name]
	if !ok {
		n.t.Fatalf("docs/install-node.md has no step %q", name)
	}
	var said strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(commands), "\n") {
		if f := strings.Fields(line); f[0] == "systemctl" {
			n.systemctl(f[1:])
			continue
		}
		cmd := exec.CommandContext(n.ctx, "sh", "-ec", line)
		cmd.Dir = n.checkout
		out, err := cmd.CombinedOutput()
		if err != nil {
			n.t.Fatalf("step %s: %s: %v\n%s", name, line, err, out)
		}
		said.Write(out)
	}
	n.t.Logf("step %s\n%s", name, said.String())
	return said.String()
}

// systemctl does what the page asks systemd for, by process. The socket is the proxy's own here; that it takes one that
// systemd hands over is tested elsewhere.
func (n *standalone) systemctl(args []string) {
	n.t.Helper()
	switch command := strings.Join(args, " "); command {
	case "daemon-reload", "enable --now " + proxyUnit + ".socket":
	case "enable --now " + proxyUnit + ".service":
		n.startProxy()
	case "restart " + proxyUnit + ".service":
		n.stopProxy()
		n.startProxy()
	case "disable --now " + proxyUnit + ".service " + proxyUnit + ".socket":
		n.stopProxy()
	case "restart kubelet":
		n.restartKubelet()
	default:
		n.t.Fatalf("docs/install-node.md asks for systemctl %s, which this test does not know", command)
	}
}

const proxyUnit = own.Proxy

// startProxy starts what the installed unit says, with the installed environment.
func (n *standalone) startProxy() {
	n.t.Helper()
	unit, err := os.ReadFile("/etc/systemd/system/" + proxyUnit + ".service")
	if err != nil {
		n.t.Fatal(err)
	}
	value := func(text, key string) string {
		for _, line := range strings.Split(text, "\n") {
			if v, ok := strings.CutPrefix(line, key+"="); ok {
				return v
			}
		}
		return ""
	}
	env, err := os.ReadFile(strings.TrimPrefix(value(string(unit), "EnvironmentFile"), "-"))
	if err != nil {
		n.t.Fatal(err)
	}
	args := strings.Fields(strings.ReplaceAll(value(string(unit), "ExecStart"), "$TIDELINE_ARGS", value(string(env), "TIDELINE_ARGS")))
	if len(args) == 0 {
		n.t.Fatal("the unit starts nothing")
	}
	n.proxy, err = n.lab.StartProcess(n.ctx, lab.ProcessSpec{Name: "proxy", Path: args[0], Args: args[1:], Ready: func(ctx context.Context) error {
		st, err := control.Dial(control.DefaultSocket).Status(ctx)
		if err == nil && !st.Runtime.Connected {
			err = fmt.Errorf("the runtime is away: %s", st.Runtime.Error)
		}
		return err
	}})
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *standalone) stopProxy() {
	n.t.Helper()
	if err := n.proxy.Stop(n.ctx); err != nil {
		n.t.Fatal(err)
	}
}

// cycle makes the pods anew, restarts the kubelet, and records what it believes.
func (n *standalone) cycle(r *record, manifests map[string]*corev1.Pod) map[string]*corev1.Pod {
	n.t.Helper()
	n.now = r
	for name := range manifests {
		if err := n.k.SetStaticPod(name, nil); err != nil {
			n.t.Fatal(err)
		}
	}
	eventually(n.t, n.ctx, "the old pods are gone", func() error {
		up := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
		res, err := n.cri.Runtime.ListPodSandbox(n.ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{State: up}})
		if err == nil && len(res.GetItems()) > 0 {
			err = fmt.Errorf("%d sandboxes", len(res.GetItems()))
		}
		if err != nil {
			return err
		}
		pods, err := staticPods(n.ctx, n.k)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("the kubelet has %d pods", len(pods))
		}
		return err
	})
	for _, name := range demo.Names {
		// A static pod's UID is a hash of its manifest. Another one keeps the dead containers of the pod before, which
		// the kubelet removes a minute later, apart.
		p := manifests[name].DeepCopy()
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, "tideline.test/since", fmt.Sprint(n.read))
		b, err := json.Marshal(p)
		if err != nil {
			n.t.Fatal(err)
		}
		if err := n.k.SetStaticPod(name, b); err != nil {
			n.t.Fatal(err)
		}
	}
	n.wait(nil)
	settle()
	made := n.wait(nil)
	n.status(r, "made", made)
	files := n.files(made)
	n.restartKubelet()
	n.wait(ids(made))
	settle()
	pods := n.wait(ids(made))
	n.status(r, "after a restart of the kubelet", pods)
	for where, now := range n.files(pods) {
		for f, v := range files[where] {
			if now[f] != v {
				n.t.Errorf("a restart of the kubelet changed %s of %s from %q to %q", f, where, v, now[f])
			}
		}
	}
	n.errors()
	return pods
}

// errors adds what the kubelet's error log has anew.
func (n *standalone) errors() {
	n.t.Helper()
	n.read = n.now.errorLog(n.t, n.lab, n.k.LogPath(), n.read)
}

func (n *standalone) status(r *record, when string, pods map[string]*corev1.Pod) {
	for _, name := range demo.Names {
		r.note(when+": status of pod "+name, pods[name].Status)
	}
}

// restartKubelet adds the error log up to the restart. What a kubelet says while it ends tells only which calls it has cut off.
func (n *standalone) restartKubelet() {
	n.t.Helper()
	n.errors()
	if err := n.k.Stop(n.ctx); err != nil {
		n.t.Fatal(err)
	}
	n.read = newRecord().errorLog(n.t, n.lab, n.k.LogPath(), n.read)
	if err := n.k.Start(n.ctx); err != nil {
		n.t.Fatal(err)
	}
}

// wait waits until all pods are ready. With IDs it is an error when a container is not the one that it was.
func (n *standalone) wait(ids map[string]string) (pods map[string]*corev1.Pod) {
	n.t.Helper()
	eventually(n.t, n.ctx, "the static pods are ready", func() (err error) {
		if pods, err = staticPods(n.ctx, n.k); err != nil {
			return err
		}
		for _, name := range demo.Names {
			if err := ready(pods[name]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	for name, id := range ids {
		if got := containerID(pods[name]); got != id {
			n.t.Errorf("the container of pod %s is %s, want the one that ran before: %s", name, got, id)
		}
	}
	return pods
}

func ids(pods map[string]*corev1.Pod) map[string]string {
	out := map[string]string{}
	for name, p := range pods {
		out[name] = containerID(p)
	}
	return out
}

// files reads the cgroups of the pods, of their containers, and those above.
func (n *standalone) files(pods map[string]*corev1.Pod) map[string]map[string]string {
	out := map[string]map[string]string{}
	for name, p := range pods {
		out["pod "+name], out["container of "+name] = node.Files(cgroupOf(n.lab, p)), node.Files(cgroupOf(n.lab, p)+"/"+containerID(p))
	}
	for _, class := range []string{"", "/burstable", "/besteffort"} {
		files := node.Files(n.lab.CgroupParent() + "/kubepods" + class)
		delete(files, "cpu.shares") // the kubelet sums it up anew each minute
		out["kubepods"+class] = files
	}
	return out
}

// knows says why the door does not know a pod's container in a state.
func knows(ctx context.Context, p *corev1.Pod, state policy.State) error {
	all, err := control.Dial(control.DefaultSocket).Containers(ctx)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.ID == containerID(p) && c.State == state {
			return nil
		}
	}
	return fmt.Errorf("container %s of %s is not %s in %s", containerID(p), p.Name, state, brief(all))
}
