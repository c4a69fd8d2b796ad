package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
)

var update = flag.Bool("update", false, "write the golden files")

// try runs the program on an empty machine.
func try(t *testing.T, width int, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	c := &cli{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs, width: width, name: "tideline", root: t.TempDir()}
	code = c.run(t.Context(), args)
	return code, out.String(), strings.ReplaceAll(errs.String(), c.root, "ROOT")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), go test -update writes it:\n%s", file, diff)
	}
}

func TestExplainGolden(t *testing.T) {
	t.Parallel()
	v1 := []string{"explain", "-f", "testdata/pods.yaml", "--node-facts", "testdata/v1.snapshot"}
	for _, tc := range []struct {
		golden string
		width  int
		args   []string
	}{
		{"explain-v1-80.txt", 80, v1},
		{"explain-v1-140.txt", 140, v1},
		{"explain-v1.json", 80, append(v1[:len(v1):len(v1)], "-o", "json")},
		{"explain-generic-100.txt", 0, []string{"explain", "-f", "testdata/pods.yaml", "--cgroup-driver", "systemd"}},
	} {
		t.Run(tc.golden, func(t *testing.T) {
			t.Parallel()
			code, out, errs := try(t, tc.width, "", tc.args...)
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			golden(t, tc.golden, out)
			const want = "warning: testdata/pods.yaml: Pod default/typo: unknown field \"spec.containers[0].resource\"\n" +
				"skipped: testdata/pods.yaml: Service shop/cart has no pods\n"
			if diff := cmp.Diff(want, errs); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
		})
	}
}

// On a machine of two sockets: who gets CPUs of its own, and why some don't.
func TestExplainPlaced(t *testing.T) {
	t.Parallel()
	code, out, errs := try(t, 110, "", "explain", "-f", "testdata/placed.yaml", "--node-facts", machines+"smt-2sockets.txtar")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	golden(t, "explain-placed-110.txt", out)
}

func TestExplainDemo(t *testing.T) {
	t.Parallel()
	const dir = "../../deploy/examples/demo/"
	for file, want := range map[string]ExplainedPod{
		"lsr.yaml":    {Origin: "Pod demo/lsr", Tier: v1alpha1.LSR, KubeQoS: v1alpha1.Guaranteed, Admission: []string{v1alpha1.AnnotationRequests}},
		"ls.yaml":     {Origin: "Pod demo/ls", Tier: v1alpha1.LS, KubeQoS: v1alpha1.Burstable, Admission: []string{v1alpha1.AnnotationRequests}},
		"be.yaml":     {Origin: "Pod demo/be", Tier: v1alpha1.BE, KubeQoS: v1alpha1.BestEffort, Admission: []string{v1alpha1.AnnotationBatchResources}},
		"system.yaml": {Origin: "Pod kube-system/system", Tier: v1alpha1.SYSTEM, KubeQoS: v1alpha1.Burstable, Admission: []string{v1alpha1.AnnotationRequests}},
		"plain.yaml":  {Origin: "Pod demo/plain", Tier: v1alpha1.None, KubeQoS: v1alpha1.BestEffort},
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			code, out, errs := try(t, 80, "", "explain", "-f", dir+file, "-o", "json")
			if code != 0 || errs != "" {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			var e Explanation
			if err := json.Unmarshal([]byte(out), &e); err != nil {
				t.Fatal(err)
			}
			if len(e.Pods) != 1 {
				t.Fatalf("%d pods, want 1", len(e.Pods))
			}
			got := e.Pods[0]
			if got := (ExplainedPod{Origin: got.Origin, Tier: got.Tier, KubeQoS: got.KubeQoS, Admission: got.Admission}); !cmp.Equal(want, got) {
				t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
			}
			if ours := ourKnobs(got); (ours > 0) != (want.Tier != v1alpha1.None) {
				t.Errorf("%d knobs of ours for tier %q", ours, want.Tier)
			}
		})
	}
}

func ourKnobs(p ExplainedPod) (n int) {
	for _, c := range append([]ExplainedCgroup{p.Pod}, p.Containers...) {
		for _, k := range c.Knobs {
			if k.Ours {
				n++
			}
		}
	}
	return n
}

func FuzzManifests(f *testing.F) {
	data, err := os.ReadFile("testdata/pods.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(data))
	f.Add(plainPod)
	f.Add(`{"kind":"List","items":[{"kind":"List","items":[null,1]}]}`)
	p, err := policy.Compile(v1alpha1.Default().Spec)
	if err != nil {
		f.Fatal(err)
	}
	node := nodeSource("generic", genericFacts())
	f.Fuzz(func(t *testing.T, text string) {
		found, err := parseManifests(strings.NewReader(text), "default")
		if err != nil {
			return
		}
		e := Explanation{}
		for _, m := range found.pods {
			e.Pods = append(e.Pods, explainPod(m, p, node))
		}
		e.text(80)
	})
}

const plainPod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}`

func TestExplainInput(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(bad, []byte("apiVersion: tideline.io/v1alpha1\nkind: QoSPolicy\nspec: {tires: {}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, stdin string
		args        []string
		code        int
		out, errs   string // contained; "" is nothing
	}{
		{"no file", "", []string{"explain"}, 1, "", "error: no file: name a manifest with -f FILE (- is standard input), or ask for a running pod with: tideline explain pod NAMESPACE/NAME\n"},
		{"missing file", "", []string{"explain", "-f", "testdata/none.yaml"}, 1, "", "error: testdata/none.yaml: open testdata/none.yaml: no such file or directory\n"},
		{"stdin", plainPod, []string{"explain", "-f", "-"}, 0, "tier: none (kube QoS BestEffort)", ""},
		{"namespace", plainPod, []string{"explain", "-f", "-", "-n", "kube-system"}, 0, `tier: SYSTEM by rule "system"`, ""},
		{"empty", "# nothing\n---\n", []string{"explain", "-f", "-"}, 1, "", "error: no pod in -: want a Pod, a workload with a pod template (Deployment, DaemonSet, StatefulSet, ReplicaSet, Job, CronJob) or a List of these\n"},
		{"no kind", "a: 1\n", []string{"explain", "-f", "-"}, 1, "", "error: -: document 1: it has no kind, so it is no Kubernetes object\n"},
		{"no template", "kind: Deployment\nmetadata: {name: x}\n", []string{"explain", "-f", "-"}, 1, "", "error: -: document 1: Deployment default/x: it has no pod template\n"},
		{"no containers", "kind: Pod\nmetadata: {name: x}\n", []string{"explain", "-f", "-"}, 1, "", "error: -: document 1: Pod default/x: spec.containers is empty\n"},
		{"typed list", `{"kind":"PodList","items":[{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}]}`, []string{"explain", "-f", "-"}, 0, "Pod default/p", ""},
		{"bad quantity", `{"kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"x"}}}]}}`, []string{"explain", "-f", "-"}, 1, "", "error: -: document 1: Pod default/p: spec.containers[0].resources.limits.cpu: quantity \"x\": not a quantity such as 500m, 2, 1.5Gi or 2e3\n"},
		{"endless quantity", `{"kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1e9999999"}}}]}}`, []string{"explain", "-f", "-"}, 1, "",
			"error: -: document 1: Pod default/p: spec.containers[0].resources.limits.cpu: quantity \"1e9999999\": not a quantity such as 500m, 2, 1.5Gi or 2e3\n"},
		{"bad policy", plainPod, []string{"explain", "-f", "-", "--policy", bad}, 1, "", "tires"},
		{"bad facts", plainPod, []string{"explain", "-f", "-", "--node-facts", "testdata/pods.yaml"}, 1, "", "Take them on the node with: tideline snapshot -o FILE\n"},
		{"bad output", plainPod, []string{"explain", "-f", "-", "-o", "yaml"}, 1, "", "error: -o yaml: want text or json\n"},
		{"bad driver", plainPod, []string{"explain", "-f", "-", "--cgroup-driver", "x"}, 1, "", "error: --cgroup-driver x: want cgroupfs or systemd\n"},
		{"generic facts say so", plainPod, []string{"explain", "-f", "-", "--width", "200"}, 0, "generic: cgroup v2, 8 CPUs, 32.0 GiB; this machine can't tell its own facts", ""},
		{"unknown command", "", []string{"explian"}, 1, "", `unknown command "explian"`},
		{"help", "", []string{"explain", "--help"}, 0, "tideline explain pod shop/cart-0", ""},
		{"version", "", []string{"version"}, 0, "tideline ", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			code, out, errs := try(t, 80, tc.stdin, tc.args...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			for _, c := range []struct{ what, got, want string }{{"stdout", out, tc.out}, {"stderr", errs, tc.errs}} {
				if !strings.Contains(c.got, c.want) || c.want == "" && c.got != "" {
					t.Errorf("%s %q, want %q in it", c.what, c.got, c.want)
				}
			}
		})
	}
}

func TestHostPolicy(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	c := &cli{stdin: strings.NewReader(plainPod), stdout: &out, stderr: &errs, name: "kubectl-tideline", root: t.TempDir()}
	if err := os.MkdirAll(c.path("/etc/tideline"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: tideline.io/v1alpha1\nkind: QoSPolicy\nmetadata: {name: mine}\nspec: {rules: [{name: all, match: {namespaces: [\"*\"]}, tier: LS}]}\n"
	if err := os.WriteFile(c.path(hostPolicy), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := c.run(t.Context(), []string{"explain", "-f", "-"}); code != 0 {
		t.Fatal(errs.String())
	}
	if !strings.Contains(out.String(), "policy  mine (") || !strings.Contains(out.String(), `tier: LS by rule "all"`) {
		t.Errorf("output:\n%s", out.String())
	}
}

func TestWidth(t *testing.T) {
	t.Parallel()
	status, pod := sample()
	socket := fakeDoor(t, status, pod, control.DisableReport{})
	for _, width := range []int{80, 100, 140} {
		_, out, _ := try(t, width, "", "explain", "-f", "testdata/pods.yaml", "--node-facts", "testdata/v1.snapshot")
		for _, args := range [][]string{{"explain", "pod", "shop/cart-0", "--control", socket}, {"status", "--control", socket}, {"check", "--control", "testdata/none.sock"}} {
			_, more, _ := try(t, width, "", args...)
			out += more
		}
		for line := range strings.Lines(out) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > width {
				t.Errorf("%d columns, want at most %d: %s", n, width, line)
			}
		}
	}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.txt")
	if code, _, errs := try(t, 80, "", "snapshot", "-o", file); code != 0 {
		t.Fatal(errs)
	}
	code, out, errs := try(t, 80, "", "snapshot")
	if code != 0 {
		t.Fatal(errs)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	date := regexp.MustCompile(`# date: .*`)
	if diff := cmp.Diff(date.ReplaceAllString(out, ""), date.ReplaceAllString(string(data), "")); diff != "" {
		t.Errorf("stdout and file differ (-stdout +file):\n%s", diff)
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files left, want 1 (%v)", len(entries), err)
	}
	broken := errors.New("broken")
	if err := writeFile(filepath.Join(filepath.Dir(file), "x"), func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("writeFile: %v, want %v", err, broken)
	}
	if entries, _ = os.ReadDir(filepath.Dir(file)); len(entries) != 1 {
		t.Errorf("a failed write left a file")
	}
}

// fakeDoor answers on a control socket. Its path is short, since a socket's may have 107 bytes.
func fakeDoor(t *testing.T, status control.Status, pod []control.Explained, report control.DisableReport) string {
	t.Helper()
	answer := func(w http.ResponseWriter, v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+control.PathStatus, func(w http.ResponseWriter, _ *http.Request) { answer(w, status) })
	mux.HandleFunc("GET "+control.PathExplainPod, func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("namespace") != "shop" || q.Get("name") != "cart-0" {
			http.Error(w, "no such pod", http.StatusNotFound)
			return
		}
		answer(w, pod)
	})
	mux.HandleFunc("GET "+control.PathCPUs, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, control.CPUs{
			Reserved: "0,16", Pools: control.CPUPools{LS: "4,6,8-15,22,24-31", BE: "2,4,6,8-15,18,20,22,24-31", System: "0,2,4,6,8-16,18,20,22,24-31"},
			Pods: []control.PodCPUs{
				{UID: "1", Namespace: "shop", Name: "cart-0", Tier: "LSE", CPUs: "1,3,5,7", Owned: "1,3,5,7,17,19,21,23", Mems: "1"},
				{UID: "2", Namespace: "shop", Name: "search", Tier: "LSR", CPUs: "2,18,20", Owned: "2,18,20", Mems: "0"},
			},
			Unplaced: []control.UnplacedPod{{UID: "3", Namespace: "shop", Name: "cart-1", Tier: "LSE", Why: `place pod "3": 12 whole cores asked, 11 free; free: 7 on node 0, 4 on node 1`}},
		})
	})
	mux.HandleFunc("POST "+control.PathPolicyDiff, func(w http.ResponseWriter, r *http.Request) {
		if data, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(data), "{name: next}") {
			answer(w, []control.PolicyChange{})
			return
		}
		row := control.PolicyChange{Namespace: "batch", Pod: "etl-5c9f7d8b4-x2x7q", Tier: v1alpha1.BE, NextTier: v1alpha1.BE}
		change := func(container string, knob policy.Knob, now, next string, when control.When) control.PolicyChange {
			c := row
			c.Container, c.Knob, c.Now, c.Next, c.When = container, knob, now, next, when
			return c
		}
		changes := []control.PolicyChange{
			change("", policy.IOWeight, "10", "20", control.AtOnce),
			change("worker", policy.CPUSetCPUs, "", "2-15,18-31", control.AtOnce),
			change("worker", policy.CPUWeight, "unset", "", control.NextUpdate),
			change("worker", policy.CPUIdle, "1", "", control.NextUpdate),
			change("worker", policy.OOMScoreAdj, "900", "500", control.NextContainer),
		}
		row = control.PolicyChange{Namespace: "shop", Pod: "cart-0", NextTier: v1alpha1.LS}
		changes = append(changes, change("app", policy.IOMax, "", "8:0 rbps=1048576\n8:16 rbps=1048576", control.NextUpdate))
		answer(w, append(changes, control.PolicyChange{Class: "/kubepods/besteffort", Knob: policy.IOWeight, Now: "10", Next: "20", When: control.AtOnce}))
	})
	mux.HandleFunc("POST "+control.PathBypass, func(w http.ResponseWriter, r *http.Request) {
		s := status
		if r.URL.Query().Get("on") == "true" {
			s.Mode = control.ModeBypass
		}
		answer(w, s)
	})
	mux.HandleFunc("POST "+control.PathDisable, func(w http.ResponseWriter, _ *http.Request) { answer(w, report) })
	return serve(t, mux)
}

// serve answers on a control socket, whose path it gives, until the test ends. Paths of sockets are short.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "c.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { server.Serve(l); close(done) }()
	t.Cleanup(func() { server.Close(); <-done })
	return filepath.Join(dir, "c.sock")
}

func sample() (control.Status, []control.Explained) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	status := control.Status{
		Door: "cri", Version: "v0.1.0", PID: 4711, Mode: control.ModeObserve, StartMode: control.ModeEnforce, ModeWhy: "another QoS agent runs here: koordlet",
		StartedAt: at, Listen: "unix:///run/tideline/cri.sock",
		Runtime: control.Runtime{Endpoint: "unix:///run/containerd/containerd.sock", Name: "containerd", Version: "2.4.2", Connected: true},
		Policy:  control.PolicyStatus{Name: "default", Source: "built in", Generation: 1, LoadedAt: at, Error: "policy.yaml: spec.tires: unknown key"},
		Cgroup: control.CgroupStatus{Version: 1, Journal: 2, Features: map[policy.Knob]policy.Feature{
			policy.CPUIdle: {Support: policy.Supported}, policy.MemoryLow: {Support: policy.Unsupported, Need: "cgroup v2"},
			policy.IOWeight: {Support: policy.Supported, Inert: "no disk uses bfq"},
		}},
		Counts: control.Counts{
			Containers: map[policy.State]int{policy.Managed: 3, policy.Adopted: 1}, Tiers: map[v1alpha1.Tier]int{v1alpha1.BE: 2, v1alpha1.LS: 1, "": 1, "GOLD": 1},
			Decisions: 10, Changed: 3, Writes: 12,
		},
		Degraded: []control.Degraded{{What: "policy", Why: "a newer file was not taken", Since: at}},
	}
	decision := policy.Decision{Tier: v1alpha1.LS, Source: policy.Source{Kind: policy.FromLabel, Key: v1alpha1.LabelQoS, Value: "LS"},
		Notes: []policy.Note{{Code: policy.NoteUnsupported, Knob: policy.MemoryLow, Message: "memory.low needs cgroup v2"}}}
	pod := []control.Explained{
		{Level: policy.LevelPod, Cgroup: "/kubepods/burstable/pod1", Decision: decision, Rows: []control.Row{
			{Knob: policy.CPUMaxBurst, Wanted: "100000", Kernel: "100000", Effective: "100000", Reason: "a burst of a container has no effect below a pod quota that does not burst"}}},
		{Level: policy.LevelContainer, Name: "app", ID: "abc", State: policy.Managed, Cgroup: "/kubepods/burstable/pod1/abc", Decision: decision, Rows: []control.Row{
			{Knob: policy.CPUMax, Asked: "100000 100000", Spec: "100000 100000", Kernel: "100000 100000", Effective: "100000 100000"},
			{Knob: policy.CPUMaxBurst, Wanted: "100000", Kernel: "0", Effective: "drifted: 0", Reason: "may save up as much unused CPU time as its quota"}}},
	}
	return status, pod
}

func TestDoor(t *testing.T) {
	t.Parallel()
	status, pod := sample()
	socket := fakeDoor(t, status, pod, control.DisableReport{Restored: 5, Updated: 1})
	away := fakeDoor(t, control.Status{Door: "nri"}, nil, control.DisableReport{})
	failing := fakeDoor(t, status, pod, control.DisableReport{Restored: 1, Errors: []string{"write x: permission denied"}})
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		golden string
		out    string
		errs   string
	}{
		{"status", []string{"status", "--control", socket}, 0, "status.txt", "", ""},
		{"status JSON", []string{"status", "--control", socket, "-o", "json"}, 0, "status.json", "", ""},
		{"ready", []string{"status", "--ready", "--control", socket}, 0, "status.txt", "", ""},
		{"not ready", []string{"status", "--ready", "--control", away}, 1, "status-away.txt", "", ""},
		{"explain pod", []string{"explain", "pod", "shop/cart-0", "--control", socket}, 0, "explain-pod.txt", "", ""},
		{"explain pod with -n", []string{"explain", "pod", "cart-0", "-n", "shop", "--control", socket}, 0, "explain-pod.txt", "", ""},
		{"explain pod JSON", []string{"explain", "pod", "shop/cart-0", "-o", "json", "--control", socket}, 0, "explain-pod.json", "", ""},
		{"explain pod wide", []string{"explain", "pod", "shop/cart-0", "--control", socket, "--width", "140"}, 0, "explain-pod-140.txt", "", ""},
		{"unknown pod", []string{"explain", "pod", "x", "--control", socket}, 1, "", "",
			"error: pod default/x: no such pod: not known to the door\nSee that it runs on this node (crictl pods --namespace default); for a manifest use: tideline explain -f FILE\n"},
		{"policy diff", []string{"policy", "diff", "testdata/next.yaml", "--control", socket}, 0, "policy-diff.txt", "", ""},
		{"policy diff JSON", []string{"policy", "diff", "testdata/next.yaml", "-o", "json", "--control", socket}, 0, "policy-diff.json", "", ""},
		{"policy diff of nothing", []string{"policy", "diff", "../../api/examples/policy.yaml", "--control", socket}, 0, "",
			"Policy ../../api/examples/policy.yaml changes nothing of what runs here.\n", ""},
		{"policy diff of no file", []string{"policy", "diff", "testdata/none.yaml", "--control", socket}, 1, "", "",
			"error: open testdata/none.yaml: no such file or directory\n"},
		{"policy diff of a bad file", []string{"policy", "diff", "testdata/pods.yaml", "--control", socket}, 1, "", "",
			"error: policy testdata/pods.yaml: more than one YAML document; allowed: one\n"},
		{"bypass on", []string{"bypass", "on", "--control", socket}, 0, "", "mode: bypass\n", ""},
		{"bypass off", []string{"bypass", "off", "--control", socket}, 0, "", "mode: observe\n", ""},
		{"bypass what", []string{"bypass", "maybe", "--control", socket}, 1, "", "", "error: bypass \"maybe\": want on or off\n"},
		{"disable", []string{"disable", "--control", socket}, 0, "",
			"5 kernel values put back, the kubelet's resources sent again for 1 container\nThe door passes everything on now; tideline bypass off starts its work again.\n", ""},
		{"disable in part", []string{"disable", "--control", failing}, 1, "", "1 kernel value put back, the kubelet's resources sent again for 0 containers\n",
			"error: write x: permission denied\nNot everything is back: call tideline disable again, it goes on where it stopped.\n"},
		{"no door: status", []string{"status", "--control", "testdata/none.sock"}, 1, "", "",
			"error: testdata/none.sock: no door runs here\nStart one (systemctl start tideline-runtime-proxy or tideline-nri-plugin), or name its socket with --control.\n"},
		{"no door: disable", []string{"disable", "--control", "testdata/none.sock"}, 1, "", "",
			"error: testdata/none.sock: no door runs here\nNothing was put back. Start a door (systemctl start tideline-runtime-proxy; it reads the journal) and call tideline disable\nagain, or name its socket with --control. A reboot too removes every value.\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			code, out, errs := try(t, 80, "", tc.args...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if tc.golden != "" {
				golden(t, tc.golden, out)
			} else if diff := cmp.Diff(tc.out, out); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.errs, errs); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckCommand(t *testing.T) {
	t.Parallel()
	code, out, errs := try(t, 80, "", "check", "--control", "testdata/none.sock")
	if code != 1 || errs != "" || !strings.Contains(out, "This node is not ready: ") {
		t.Errorf("code %d, stderr %q, stdout:\n%s", code, errs, out)
	}
	code, out, _ = try(t, 80, "", "check", "--control", "testdata/none.sock", "-o", "json")
	var r Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 1 || r.Ready || len(r.Lines) == 0 {
		t.Errorf("code %d, report %+v, error %v", code, r, err)
	}
	status, _ := sample()
	_, out, _ = try(t, 80, "", "check", "--control", fakeDoor(t, status, nil, control.DisableReport{}), "-o", "json")
	if !strings.Contains(out, "/run/tideline/cri.sock is not there") {
		t.Errorf("the door's own socket was not looked at:\n%s", out)
	}
}
