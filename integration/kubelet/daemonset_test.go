package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
)

// Environment variables that lead the guest to the plugin's image and to its manifests.
const (
	imageEnv     = "TIDELINE_TEST_IMAGE"
	manifestsEnv = "TIDELINE_TEST_MANIFESTS"
)

func imageFile() (string, error) {
	if file := os.Getenv(imageEnv); file != "" {
		return file, nil
	}
	dir, err := own.Dir()
	return filepath.Join(dir, "tideline-nri-plugin.tar"), err
}

// prepareImage does what `make image` does. It follows own.Prepare.
func prepareImage(context.Context) error {
	file, err := imageFile()
	if err != nil {
		return err
	}
	return images.WritePlugin(file, filepath.Dir(file))
}

// daemon is the DaemonSet's pod on a cluster's node. There is no controller that would make it: the test does, from the
// template.
type daemon struct {
	*cluster
	template corev1.PodTemplateSpec
	runDir   string
	ctl      *control.Client
}

// TestDaemonSet has the API server take deploy/nri-plugin as it is, and the kubelet run its pod with the privileges that
// it asks for: on v2 it then has a cgroup namespace of its own.
func TestDaemonSet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience(5*time.Minute))
	defer cancel()
	d := &daemon{cluster: startCluster(t, ctx, "daemonset", without, nil)}
	d.runDir = filepath.Join(d.lab.Dir(), "tideline")
	d.ctl = control.Dial(filepath.Join(d.runDir, "control.sock"))
	file, err := imageFile()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := d.containerd.Ctr(ctx, "images", "import", file); err != nil {
		t.Fatal(err)
	} else {
		t.Logf("ctr images import: %s", out)
	}
	d.apply()
	d.configure()
	pods := tiers(t)
	be, ls, later := pods["be"], pods["ls"], pods["ls"].DeepCopy()
	later.Name = "later"

	plugin := d.start("plugin-1")
	d.confined()
	for _, p := range []*corev1.Pod{be, ls} {
		d.create(p)
	}
	be, ls = d.has("be", be), d.has("ls", ls)
	d.status(plugin, map[policy.State]int{policy.Managed: 2})
	// The quota falls below the burst, which is to be taken out of the way in the container's own file first.
	ls = d.resize(newRecord(), "LS down, below the burst", ls, "300m", "500m")
	want(t, "resized", cgroupOf(d.lab, ls)+"/"+containerID(ls), map[policy.Knob]string{policy.CPUMax: "50000 100000", policy.CPUMaxBurst: "50000"})

	d.remove(plugin)
	if st, err := d.ctl.Status(ctx); err == nil {
		t.Errorf("the plugin is gone, and its door answers: %+v", st)
	}
	plugin = d.start("plugin-2")
	d.create(later)
	d.has("ls", later)
	d.status(plugin, map[policy.State]int{policy.Managed: 3})
	eventually(t, ctx, "the kernel has what was decided before", func() error { return decided(ctx, d.ctl, d.lab, ls) })

	// The way out of docs/install-node.md.
	d.exec(plugin, "tideline", "disable")
	want(t, "disabled", cgroupOf(d.lab, be)+"/"+containerID(be), map[policy.Knob]string{policy.CPUIdle: "0"})
	for _, p := range []*corev1.Pod{plugin, be, ls, later} {
		d.remove(p)
	}
	d.leave()
}

// apply has the API server take every manifest, with no field that it does not know, and keeps the pod's template.
func (d *daemon) apply() {
	d.t.Helper()
	dir := os.Getenv(manifestsEnv)
	if dir == "" {
		root, err := own.Root()
		if err != nil {
			d.t.Fatal(err)
		}
		dir = filepath.Join(root, "deploy", "nri-plugin")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		d.t.Fatalf("manifests in %s: %v, %v", dir, files, err)
	}
	paths := map[string]string{"ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts", "DaemonSet": "/apis/apps/v1/namespaces/kube-system/daemonsets"}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, doc := range bytes.Split(text, []byte("\n---\n")) {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal(doc, &kind); err != nil {
				d.t.Fatal(err)
			}
			if paths[kind.Kind] == "" {
				d.t.Fatalf("%s has a %q, which this test does not know", file, kind.Kind)
			}
			b, err := d.cp.Do(d.ctx, http.MethodPost, paths[kind.Kind]+"?fieldValidation=Strict", "application/yaml", doc)
			if err != nil {
				d.t.Fatal(err)
			}
			if kind.Kind == "DaemonSet" {
				var set appsv1.DaemonSet
				if err := json.Unmarshal(b, &set); err != nil {
					d.t.Fatal(err)
				}
				d.template = set.Spec.Template
			}
		}
	}
}

// configure makes the ConfigMap, and changes of the template what a lab has elsewhere than a node: two folders. All else
// stays, but for the mode.
func (d *daemon) configure() {
	d.t.Helper()
	b, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "tideline-policy"}, "data": map[string]any{"policy.yaml": demo.Reserved}})
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.cp.Do(d.ctx, http.MethodPost, "/api/v1/namespaces/kube-system/configmaps", "", b); err != nil {
		d.t.Fatal(err)
	}
	places := map[string]string{"/var/run/nri": filepath.Dir(d.containerd.NRISocket()), "/run/tideline": d.runDir, "/sys/fs/cgroup": "/sys/fs/cgroup"}
	for _, v := range d.template.Spec.Volumes {
		if v.HostPath == nil {
			continue
		}
		if places[v.HostPath.Path] == "" {
			d.t.Fatalf("volume %s is %s, which this test does not know", v.Name, v.HostPath.Path)
		}
		v.HostPath.Path = places[v.HostPath.Path]
	}
	args := d.template.Spec.Containers[0].Args
	i := slices.Index(args, "--mode=observe")
	if i < 0 {
		d.t.Fatalf("arguments %q", args)
	}
	args[i] = "--mode=enforce"
}

// start makes the pod, bound to the node, and waits until the door is ready.
func (d *daemon) start(name string) *corev1.Pod {
	d.t.Helper()
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system", Labels: d.template.Labels},
		Spec:       *d.template.Spec.DeepCopy(),
	}
	p.Spec.NodeName = lab.NodeName
	d.create(p)
	return d.await("the plugin's pod is ready", p, nil)
}

// confined checks that the process has no more than the manifest asks for, and on v2 not the host's cgroup namespace.
func (d *daemon) confined() {
	d.t.Helper()
	st, err := d.ctl.Status(d.ctx)
	if err != nil {
		d.t.Fatal(err)
	}
	proc := fmt.Sprintf("/proc/%d/", st.PID)
	text, err := os.ReadFile(proc + "status")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(text), line+"\n") {
			d.t.Errorf("the plugin's status has not %q:\n%s", line, text)
		}
	}
	theirs, err1 := os.Readlink(proc + "ns/cgroup")
	ours, err2 := os.Readlink("/proc/self/ns/cgroup")
	if err := cmp.Or(err1, err2); err != nil {
		d.t.Fatal(err)
	}
	if lab.Unified() == (theirs == ours) {
		d.t.Errorf("cgroup namespaces: the plugin's %s, the host's %s", theirs, ours)
	}
	shown, err := os.ReadFile(proc + "mountinfo")
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(shown)) {
		if strings.Contains(line, "cgroup") {
			d.t.Logf("the plugin sees, from here: %s", strings.TrimSpace(line))
		}
	}
}

// has waits for a pod and checks that it has its tier's values.
func (d *daemon) has(tier string, p *corev1.Pod) *corev1.Pod {
	d.t.Helper()
	p = d.await("pod "+p.Name+" is ready", p, nil)
	at := cgroupOf(d.lab, p)
	eventually(d.t, d.ctx, "the kernel has what was decided", func() error { return decided(d.ctx, d.ctl, d.lab, p) })
	want(d.t, p.Name, at+"/"+containerID(p), managed[tier])
	want(d.t, p.Name, at+"/"+containerID(p), map[policy.Knob]string{policy.CPUSetCPUs: "1"}) // the demo's policy keeps CPU 0
	shown, err := d.ctl.ExplainPod(d.ctx, p.Namespace, p.Name)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, x := range shown {
		if x.Level == policy.LevelContainer && x.Cgroup != at+"/"+containerID(p) {
			d.t.Errorf("the door finds the container of %s at %q, and it is at %s/%s", p.Name, x.Cgroup, at, containerID(p))
		}
	}
	return p
}

// status checks what the door says of itself, as `tideline status` shows it.
func (d *daemon) status(plugin *corev1.Pod, containers map[policy.State]int) {
	d.t.Helper()
	st, err := d.ctl.Status(d.ctx)
	if err != nil {
		d.t.Fatal(err)
	}
	version := 1
	if lab.Unified() {
		version = 2
	}
	if st.Door != "nri" || st.Mode != control.ModeEnforce || !st.Runtime.Connected || st.Policy.Name != "demo" || st.Cgroup.Version != version ||
		len(st.Degraded) > 0 || st.Counts.WriteFails > 0 || st.Counts.FailedOpen > 0 {
		d.t.Errorf("status %s", brief(st))
	}
	for state, n := range containers {
		if st.Counts.Containers[state] != n {
			d.t.Errorf("%d containers are %s, want %d: %s", st.Counts.Containers[state], state, n, brief(st.Counts))
		}
	}
	dir, err := own.Dir()
	if err != nil {
		d.t.Fatal(err)
	}
	out, err := exec.CommandContext(d.ctx, filepath.Join(dir, own.CLI), "status", "--ready", "--control", filepath.Join(d.runDir, "control.sock")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "mode        enforce\n") {
		d.t.Errorf("tideline status: %v\n%s", err, out)
	}
	d.t.Logf("tideline status, with pod %s\n%s", plugin.Name, out)
}

// exec runs a program in the plugin's container, as kubectl exec does.
func (d *daemon) exec(plugin *corev1.Pod, command ...string) {
	d.t.Helper()
	cri, err := lab.DialCRI(d.containerd.Socket())
	if err != nil {
		d.t.Fatal(err)
	}
	defer cri.Close()
	res, err := cri.Runtime.ExecSync(d.ctx, &runtimeapi.ExecSyncRequest{ContainerId: containerID(plugin), Cmd: command})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Logf("%s: %s%s", strings.Join(command, " "), res.GetStdout(), res.GetStderr())
	if res.GetExitCode() != 0 {
		d.t.Errorf("%s ended with %d", strings.Join(command, " "), res.GetExitCode())
	}
}
