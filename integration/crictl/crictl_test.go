package crictl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
)

// pulled is an image that only the registry has.
const pulled = "gcr.io/k8s-staging-cri-tools/test-image-user-uid:latest"

// comparison runs commands on both sides.
type comparison struct {
	t               *testing.T
	direct, through *side
	ran             map[string]int // commands by name
}

// sides gives both, the direct one first.
func (c *comparison) sides() []*side { return []*side{c.direct, c.through} }

// compare wants both results to be the same, after edit.
func (c *comparison) compare(what string, d, th result, edit ...func(string) string) {
	c.t.Helper()
	for _, e := range edit {
		d.out, th.out, d.errors, th.errors = e(d.out), e(th.out), e(d.errors), e(th.errors)
	}
	if d.code != th.code {
		c.t.Errorf("%s: exit code direct %d, through %d\ndirect: %s\nthrough: %s", what, d.code, th.code, d, th)
		return
	}
	if d.out != th.out {
		c.t.Errorf("%s: the output differs:\n%s", what, differing(d.out, th.out))
	}
	if d.errors != th.errors {
		c.t.Errorf("%s: the errors differ:\n%s", what, differing(d.errors, th.errors))
	}
}

// same runs one command on both sides on the same objects; it must change nothing.
func (c *comparison) same(args []string, edit ...func(string) string) result {
	c.t.Helper()
	c.ran[args[0]]++
	d, th := c.direct.run(c.t, "", args...), c.through.run(c.t, "", args...)
	plain := &side{} // the same ids on both sides
	c.compare(strings.Join(args, " "), d, th, append([]func(string) string{plain.normal}, edit...)...)
	return th
}

// either is the exit code of a command that need not work, as checkpoint without CRIU: it has to fail alike.
const either = -1

// each runs a command on each side on its own objects. It returns what the commands printed.
func (c *comparison) each(what string, code int, stdin string, args func(*side) []string, edit ...func(string) string) (d, th result) {
	c.t.Helper()
	var raw, normal [2]result
	for i, s := range c.sides() {
		a := args(s)
		c.ran[a[0]]++
		raw[i] = s.run(c.t, stdin, a...)
		normal[i] = result{raw[i].code, s.normal(raw[i].out), s.normal(raw[i].errors)}
		if code != either && raw[i].code != code {
			c.t.Errorf("%s: %s: want exit code %d:\n%s", what, s.name, code, raw[i])
		}
	}
	c.compare(what, normal[0], normal[1], edit...)
	return raw[0], raw[1]
}

// made is like each, for commands that print the id of something new; what is what stands for it.
func (c *comparison) made(what string, args func(*side) []string) (ids map[*side]string) {
	c.t.Helper()
	ids = map[*side]string{}
	for _, s := range c.sides() {
		a := args(s)
		c.ran[a[0]]++
		r := s.run(c.t, "", a...)
		id := strings.TrimSpace(r.out)
		if r.code != 0 || len(id) != 64 {
			c.t.Fatalf("%s: %s: want an id:\n%s", what, s.name, r)
		}
		ids[s] = id
		s.alias(id, what)
	}
	return ids
}

func TestCrictl(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	l := lab.ForTest(t, "crictl")
	n, err := node.Start(ctx, l, node.Options{Policy: demo.Reserved})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.StartRegistry(ctx); err != nil {
		t.Fatal(err)
	}
	c := &comparison{
		t: t, ran: map[string]int{},
		direct:  newSide(t, l, "direct", n.Containerd.Socket()),
		through: newSide(t, l, "through", n.Socket()),
	}
	c.runtime()
	c.images()
	streams := c.events(n)
	for _, kind := range []string{"be", "plain"} {
		c.pod(ctx, n, kind, streams)
	}
	c.sameEvents(streams)
	c.everyCommand()
	if st, err := n.Control.Status(ctx); err != nil || st.Counts.FailedOpen != 0 || st.Counts.Refused != 0 || st.Counts.BadInput != 0 {
		t.Errorf("the proxy's counts at the end: %+v, %v: want no fault", st.Counts, err)
	}
}

// runtime has the commands about the runtime itself, and those that fail before they get far.
func (c *comparison) runtime() {
	for _, args := range [][]string{
		{"version"}, {"info"}, {"info", "-q"}, {"info", "-o", "go-template", "--template", "{{.status.conditions}}"},
		{"runtime-config"}, {"update-runtime-config", "--pod-cidr", "10.89.0.0/24"},
		{"pods"}, {"ps", "-a"}, {"completion", "bash"}, {"config", "--get", "timeout"},
		{"stats", "nothing"}, {"statsp", "nothing"},
	} {
		if r := c.same(args); r.code != 0 || strings.TrimSpace(r.out+r.errors) == "" {
			c.t.Errorf("%s: want success and output: %s", strings.Join(args, " "), r)
		}
	}
	c.same([]string{"metricdescs"}, sorted)
	for _, args := range [][]string{
		{"inspect", "nothing"}, {"inspectp", "nothing"}, {"start", "nothing"}, {"rm", "nothing"}, {"rmp", "nothing"},
		{"update", "--cpu-share", "2", "nothing"}, {"exec", "-s", "nothing", "true"}, {"exec", "nothing", "true"},
		{"logs", "nothing"}, {"attach", "nothing"}, {"port-forward", "nothing", "80"}, {"checkpoint", "nothing"},
		{"pull", "registry.k8s.io/none:latest"}, {"inspecti", "registry.k8s.io/none:latest"},
	} {
		if r := c.same(args); r.code == 0 {
			c.t.Errorf("%s: want a failure: %s", strings.Join(args, " "), r)
		}
	}
	for _, args := range [][]string{{"stop", "nothing"}, {"stopp", "nothing"}, {"rmi", "registry.k8s.io/none:latest"}} {
		c.same(args)
	}
}

// images has the commands about images.
func (c *comparison) images() {
	type round struct{ pull, image, list, usage, remove result }
	var rounds [2]round
	for i, s := range c.sides() {
		run := func(args ...string) result {
			c.ran[args[0]]++
			r := s.run(c.t, "", args...)
			return result{r.code, s.normal(r.out), s.normal(r.errors)}
		}
		rounds[i] = round{run("pull", pulled), run("inspecti", pulled), run("images", "-v"), run("imagefsinfo"), run("rmi", pulled)}
		if r := rounds[i].pull; r.code != 0 {
			c.t.Errorf("%s: pull: %s", s.name, r)
		}
	}
	c.compare("pull", rounds[0].pull, rounds[1].pull)
	c.compare("inspecti", rounds[0].image, rounds[1].image)
	c.compare("images -v", rounds[0].list, rounds[1].list)
	c.compare("imagefsinfo", rounds[0].usage, rounds[1].usage, numbers)
	c.compare("rmi", rounds[0].remove, rounds[1].remove)
	if r := c.same([]string{"inspecti", pulled}); r.code == 0 {
		c.t.Errorf("inspecti of a removed image: %s", r)
	}
	c.same([]string{"images", "-o", "json"})
	c.same([]string{"images", "--digests"})
}

// objects are what one side makes a pod from.
type objects struct{ uid, cgroup, logs, config, main, loop string }

// write writes the files that crictl makes a pod from.
func (c *comparison) write(n *node.Node, kind string) map[*side]*objects {
	c.t.Helper()
	out := map[*side]*objects{}
	labels, annotations := map[string]string{}, map[string]string{"example.com/note": "kept"}
	resources := map[string]any{"cpu_shares": 512, "cpu_period": 100000, "cpu_quota": 50000, "memory_limit_in_bytes": 134217728, "oom_score_adj": 999}
	class := "burstable"
	if kind == "be" {
		labels[v1alpha1.LabelQoS] = string(v1alpha1.BE)
		annotations[v1alpha1.AnnotationBatchResources] = `{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"134217728"}}}}`
		resources = map[string]any{"cpu_shares": 2, "cpu_period": 100000, "oom_score_adj": 1000}
		class = "besteffort"
	}
	for i, s := range c.sides() {
		uid := fmt.Sprintf("00000000-0000-4000-8000-%06d%06d", len(kind), i+1)
		dir := filepath.Join(n.Lab.Dir(), s.name+"-"+kind)
		o := &objects{uid: uid, cgroup: n.Kubelet.Root() + "/" + class + "/pod" + uid, logs: filepath.Join(dir, "logs"),
			config: filepath.Join(dir, "pod.json"), main: filepath.Join(dir, "main.json"), loop: filepath.Join(dir, "loop.json")}
		if err := errors.Join(os.MkdirAll(o.logs, 0o755), lab.MakeCgroup(o.cgroup)); err != nil {
			c.t.Fatal(err)
		}
		podLabels := map[string]string{cri.LabelPodName: kind, cri.LabelPodNamespace: "crictl", cri.LabelPodUID: uid}
		for k, v := range labels {
			podLabels[k] = v
		}
		container := func(name string, more map[string]any) map[string]any {
			m := map[string]any{
				"metadata": map[string]any{"name": name}, "image": map[string]any{"image": images.Web}, "log_path": name + ".log",
				"labels":      map[string]string{cri.LabelContainerName: name, cri.LabelPodName: kind, cri.LabelPodNamespace: "crictl", cri.LabelPodUID: uid},
				"annotations": map[string]string{"example.com/container": name},
				"linux":       map[string]any{"resources": resources},
			}
			for k, v := range more {
				m[k] = v
			}
			return m
		}
		for path, v := range map[string]any{
			o.config: map[string]any{
				"metadata": map[string]any{"name": kind, "namespace": "crictl", "uid": uid}, "hostname": kind, "log_directory": o.logs,
				"labels": podLabels, "annotations": annotations, "linux": map[string]any{"cgroup_parent": o.cgroup},
			},
			o.main: container("main", nil),
			o.loop: container("loop", map[string]any{"stdin": true, "stdin_once": true, "command": []string{"sh", "-c",
				`while read l; do sleep 1; echo got $l; [ "$l" = end ] && exit 7; done`}}),
		} {
			b, err := json.MarshalIndent(v, "", "  ")
			if err == nil {
				err = os.WriteFile(path, b, 0o644)
			}
			if err != nil {
				c.t.Fatal(err)
			}
		}
		s.alias(uid, "uid")
		s.alias(dir, "dir")
		out[s] = o
	}
	return out
}

// pod has the commands about pods and containers.
func (c *comparison) pod(ctx context.Context, n *node.Node, kind string, streams map[*side]*follower) {
	t := c.t
	files := c.write(n, kind)
	var edit []func(string) string
	if kind == "be" {
		// What is ours on purpose, and only that. A sandbox has none of it.
		edit = append(edit, func(s string) string {
			return without(s,
				[]string{"containers", "annotations", v1alpha1.AnnotationDecision},
				[]string{"status", "annotations", v1alpha1.AnnotationDecision},
				[]string{"stats", "attributes", "annotations", v1alpha1.AnnotationDecision},
				[]string{"stats", "linux", "containers", "attributes", "annotations", v1alpha1.AnnotationDecision},
				[]string{"info", "config", "annotations", v1alpha1.AnnotationDecision},
				[]string{"info", "config", "linux", "resources"},
				[]string{"info", "runtimeSpec", "linux", "resources"})
		})
	}
	on := func(ids map[*side]string, before []string, after ...string) func(*side) []string {
		return func(s *side) []string { return append(append(slices.Clone(before), ids[s]), after...) }
	}
	args := func(a ...string) []string { return a }

	sandbox := c.made(kind+" sandbox", func(s *side) []string { return []string{"runp", files[s].config} })
	c.each(kind+": inspectp", 0, "", on(sandbox, args("inspectp")))
	c.each(kind+": pods", 0, "", on(sandbox, args("pods", "-v", "--id")))
	main := c.made(kind+" main", func(s *side) []string { return []string{"create", sandbox[s], files[s].main, files[s].config} })
	loop := c.made(kind+" loop", func(s *side) []string {
		return []string{"create", "--no-pull", sandbox[s], files[s].loop, files[s].config}
	})
	c.each(kind+": inspect of a created one", 0, "", on(main, args("inspect")), edit...)
	c.each(kind+": start", 0, "", on(main, args("start")))
	c.each(kind+": start", 0, "", on(loop, args("start")))
	c.each(kind+": start of a started one", 1, "", on(main, args("start")))

	// The kubelet's values, whatever the kernel has.
	c.each(kind+": inspect", 0, "", on(main, args("inspect")), edit...)
	c.each(kind+": inspect -q", 0, "", on(main, args("inspect", "-q")), edit...)
	c.each(kind+": inspect by a template", 0, "", on(loop, args("inspect", "-q", "-o", "go-template", "--template", "{{.status.resources.linux}} {{.status.state}}")))
	kernel := map[policy.Knob]string{policy.CPUIdle: "0", policy.CPUMax: "50000 100000"}
	if kind == "be" {
		kernel = map[policy.Knob]string{policy.CPUIdle: "1", policy.CPUMax: "50000 100000", policy.CPUSetCPUs: "1"}
	}
	c.inKernel(kind+": started", files[c.through].cgroup+"/"+main[c.through], kernel)
	c.known(ctx, n, kind, main, loop)
	c.each(kind+": ps", 0, "", on(sandbox, args("ps", "-a", "-o", "json", "-p")), edit...)
	c.same(args("ps", "-a"))
	c.same(args("ps", "-a", "-o", "json"))
	c.same(args("pods", "--no-trunc"))
	for _, s := range c.sides() { // each can ask for the other's
		c.same(args("inspectp", sandbox[s]))
		c.same(args("logs", main[s]))
	}

	c.each(kind+": exec -s", 0, "", on(main, args("exec", "-s"), "sh", "-c", "hostname; echo error >&2"))
	c.each(kind+": exec -s that fails", 1, "", on(main, args("exec", "-s"), "sh", "-c", "exit 3"))
	c.each(kind+": exec -s of no program", 1, "", on(main, args("exec", "-s"), "/none"))
	c.each(kind+": exec", 0, "", on(main, args("exec"), "sh", "-c", "hostname; echo error >&2"))
	d, th := c.each(kind+": exec -i", 0, "one\ntwo\n", on(main, args("exec", "-i"), "cat"))
	if d.out != "one\ntwo\n" || th.out != "one\ntwo\n" {
		t.Errorf("%s: exec -i cat: direct %q, through %q", kind, d.out, th.out)
	}
	// containerd refuses crictl's handshake: it wants an Origin.
	c.each(kind+": exec -i over websocket", either, "one\ntwo\n", on(main, args("exec", "-i", "-r", "websocket"), "cat"))
	c.each(kind+": exec that fails", 1, "", on(main, args("exec"), "sh", "-c", "exit 3"))

	_, th = c.each(kind+": logs", 0, "", on(main, args("logs")))
	if !strings.Contains(th.out, "listening on 80") {
		t.Errorf("%s: logs: %s", kind, th)
	}
	c.each(kind+": logs --tail -t", 0, "", on(main, args("logs", "--tail", "1", "-t")))
	c.each(kind+": logs -r", 0, "", on(main, args("logs", "-r")))
	c.portForward(kind, sandbox)
	for _, a := range [][]string{{"stats", "-o", "json"}, {"stats"}, {"stats", "-a"}} {
		c.each(kind+": "+strings.Join(a, " "), 0, "", on(main, append(a, "--id")), append(slices.Clone(edit), numbers)...)
	}
	for _, a := range [][]string{{"statsp", "-o", "json"}, {"statsp"}} {
		c.each(kind+": "+strings.Join(a, " "), 0, "", on(sandbox, append(a, "--id")), append(slices.Clone(edit), numbers, sorted)...)
	}
	c.same(args("metricsp"), numbers, sorted)
	// stdin_once has the attachment last until the container's end, not its input's.
	_, th = c.each(kind+": attach", 0, "one\nend\n", on(loop, args("attach", "-i")))
	if !strings.Contains(th.out, "got one\n") {
		t.Errorf("%s: attach: %s", kind, th)
	}

	c.each(kind+": update", 0, "", on(main, args("update", "--cpu-share", "4", "--cpu-period", "100000", "--cpu-quota", "60000", "--memory", "67108864")))
	d, th = c.each(kind+": inspect after update", 0, "", on(main, args("inspect")), edit...)
	if !strings.Contains(th.out, `"cpuQuota": "60000"`) {
		t.Errorf("%s: inspect after update does not show the quota that was asked:\n%s", kind, th)
	}
	kernel[policy.MemoryMax] = "67108864"
	if kind == "plain" {
		kernel[policy.CPUMax] = "60000 100000"
	}
	c.inKernel(kind+": updated", files[c.through].cgroup+"/"+main[c.through], kernel)
	c.each(kind+": update to nonsense", 1, "", on(main, args("update", "--cpuset-cpus", "9999")))
	c.each(kind+": inspect after that", 0, "", on(main, args("inspect")), edit...)
	c.each(kind+": checkpoint", either, "", func(s *side) []string {
		return []string{"checkpoint", "--export", filepath.Join(filepath.Dir(files[s].config), "checkpoint.tar"), main[s]}
	})

	c.each(kind+": rm of a running one", 1, "", on(main, args("rm")))
	c.each(kind+": stop", 0, "", on(main, args("stop", "-t", "10")))
	c.each(kind+": inspect of a stopped one", 0, "", on(main, args("inspect")), edit...)
	c.each(kind+": ps", 0, "", on(sandbox, args("ps", "-a", "-o", "json", "-p")), edit...)
	c.each(kind+": rm", 0, "", func(s *side) []string { return []string{"rm", main[s], loop[s]} }, sorted) // crictl removes both at once
	c.each(kind+": stopp", 0, "", on(sandbox, args("stopp")))
	c.each(kind+": inspectp of a stopped one", 0, "", on(sandbox, args("inspectp")))
	c.each(kind+": rmp", 0, "", on(sandbox, args("rmp")))
	c.ownEvents(kind, streams, sandbox, main)

	ran := c.made(kind+" run", func(s *side) []string { return []string{"run", files[s].main, files[s].config} })
	c.each(kind+": inspect of run", 0, "", on(ran, args("inspect", "-q")), edit...)
	again := c.made(kind+" second sandbox", func(s *side) []string {
		return []string{"pods", "-q", "--no-trunc", "--label", cri.LabelPodUID + "=" + files[s].uid}
	})
	c.each(kind+": rmp -f", 0, "", on(again, args("rmp", "-f")))
	c.same(args("ps", "-a"))
	c.same(args("pods"))
}

// inKernel checks values of a container that was made through the proxy, so that its commands have met the hooks.
func (c *comparison) inKernel(what, cgroup string, want map[policy.Knob]string) {
	c.t.Helper()
	files := node.Files(cgroup)
	for k, v := range want {
		if got, _ := node.InKernel(k, files); !node.Holds(k, v, got) {
			c.t.Errorf("%s: %s of %s: got %q, want %q", what, k, cgroup, got, v)
		}
	}
}

// known checks that the proxy has made the one container and not the other.
func (c *comparison) known(ctx context.Context, n *node.Node, kind string, ids ...map[*side]string) {
	c.t.Helper()
	containers, err := n.Control.Containers(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	tier := v1alpha1.Tier("")
	if kind == "be" {
		tier = v1alpha1.BE
	}
	for _, id := range ids {
		i := slices.IndexFunc(containers, func(x control.Container) bool { return x.ID == id[c.through] })
		if i < 0 || containers[i].State != policy.Managed || containers[i].Decision.Tier != tier {
			c.t.Errorf("%s: the proxy does not know the container that it made, with tier %q: %+v", kind, tier, containers)
		}
		if slices.ContainsFunc(containers, func(x control.Container) bool { return x.ID == id[c.direct] && x.State == policy.Managed }) {
			c.t.Errorf("%s: the proxy says it made the container that was made past it", kind)
		}
	}
}

// portForward fetches the page of the pod's web server through crictl.
func (c *comparison) portForward(kind string, sandbox map[*side]string) {
	c.t.Helper()
	forwarding := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> 80`)
	for _, s := range c.sides() {
		c.ran["port-forward"]++
		f := s.follow(c.t, "port-forward", sandbox[s], "0:80")
		page, err := get(c.t.Context(), "http://"+f.sees(c.t, forwarding)[1])
		if err != nil || !strings.Contains(page, "It works!") {
			c.t.Errorf("%s: port-forward: %s: %q, %v: %s", kind, s.name, page, err, f.errors())
		}
		f.stop(c.t)
	}
}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// event is what is compared of an event. The rest are statuses as inspect shows them.
type event struct {
	Type       string `json:"containerEventType"`
	Container  string `json:"containerId"`
	Containers []struct {
		ID        string         `json:"id"`
		Resources map[string]any `json:"resources"`
	} `json:"containersStatuses"`
}

// events starts the streams of events, and makes pods until both have begun.
func (c *comparison) events(n *node.Node) map[*side]*follower {
	c.t.Helper()
	streams := map[*side]*follower{}
	for _, s := range c.sides() {
		c.ran["events"]++
		streams[s] = s.follow(c.t, "events")
	}
	probe := filepath.Join(n.Lab.Dir(), "probe.json")
	text := fmt.Sprintf(`{"metadata": {"name": "probe", "namespace": "crictl", "uid": "probe"}, "linux": {"cgroup_parent": "%s/probe"}}`, n.Lab.CgroupParent())
	if err := os.WriteFile(probe, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
	for range 20 {
		r := c.direct.run(c.t, "", "runp", probe)
		if r.code != 0 {
			c.t.Fatalf("run a pod for the first event: %s", r)
		}
		if r := c.direct.run(c.t, "", "rmp", "-f", strings.TrimSpace(r.out)); r.code != 0 {
			c.t.Fatalf("remove a pod for the first event: %s", r)
		}
		if c.direct.begun(streams) && c.through.begun(streams) {
			return streams
		}
	}
	c.t.Fatalf("no event of 20 pods: direct %q, through %q", streams[c.direct], streams[c.through])
	return nil
}

func (s *side) begun(streams map[*side]*follower) bool { return streams[s].String() != "" }

// readEvents parses what a stream has printed so far: one JSON object after the other.
func (f *follower) readEvents(t *testing.T) []event {
	t.Helper()
	var out []event
	for d := json.NewDecoder(strings.NewReader(f.String())); ; {
		var e event
		err := d.Decode(&e)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // it may be in the middle of one
			return out
		}
		if err != nil {
			t.Fatalf("parse an event: %v in %s", err, f)
		}
		out = append(out, e)
	}
}

// ownEvents wants the same events of a pod on the stream of each side, with the values that the kubelet asked for.
func (c *comparison) ownEvents(kind string, streams map[*side]*follower, sandbox, main map[*side]string) {
	c.t.Helper()
	var texts [2]string
	for i, s := range c.sides() {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			var b strings.Builder
			deleted := false
			for _, e := range streams[s].readEvents(c.t) {
				if e.Container != sandbox[s] && e.Container != main[s] {
					continue
				}
				fmt.Fprintln(&b, e.Type, s.normal(e.Container))
				for _, x := range e.Containers {
					if x.ID == main[s] {
						fmt.Fprintln(&b, " ", x.Resources)
					}
				}
				deleted = deleted || e.Container == sandbox[s] && e.Type == "CONTAINER_DELETED_EVENT"
			}
			texts[i] = b.String()
			if deleted {
				break
			}
			if time.Now().After(end) {
				c.t.Errorf("%s: events: %s: none of the sandbox's end within 30 s:\n%s", kind, s.name, texts[i])
				break
			}
		}
	}
	if texts[0] != texts[1] {
		c.t.Errorf("%s: events differ:\ndirect:\n%s\nthrough:\n%s", kind, texts[0], texts[1])
	}
	for _, want := range []string{"CREATED", "STARTED", "STOPPED", "DELETED"} {
		if !strings.Contains(texts[1], want) {
			c.t.Errorf("%s: events: none of type %s:\n%s", kind, want, texts[1])
		}
	}
}

// sameEvents wants both streams to have told the same, whoever caused it.
func (c *comparison) sameEvents(streams map[*side]*follower) {
	c.t.Helper()
	var texts [2][]string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		for i, s := range c.sides() {
			texts[i] = nil
			for _, e := range streams[s].readEvents(c.t) {
				texts[i] = append(texts[i], e.Type+" "+e.Container)
			}
		}
		// One may have begun before the other, with events of the probe.
		n := min(len(texts[0]), len(texts[1]))
		if n > 0 && slices.Equal(texts[0][len(texts[0])-n:], texts[1][len(texts[1])-n:]) {
			break
		}
	}
	n := min(len(texts[0]), len(texts[1]))
	d, th := strings.Join(texts[0][len(texts[0])-n:], "\n"), strings.Join(texts[1][len(texts[1])-n:], "\n")
	if d != th || n < 20 {
		c.t.Errorf("the streams of events differ, or are short:\n%s", differing(strings.Join(texts[0], "\n"), strings.Join(texts[1], "\n")))
	}
	for _, s := range c.sides() {
		streams[s].stop(c.t)
	}
	c.t.Logf("%d events on both streams", n)
}

// everyCommand wants that no command of this crictl was left out:
//
//	COMMANDS:
//	   attach                 Attach to a running container
//	   images, image, img     List images
func (c *comparison) everyCommand() {
	c.t.Helper()
	r := c.through.run(c.t, "", "help")
	_, text, _ := strings.Cut(r.out, "COMMANDS:\n")
	text, _, _ = strings.Cut(text, "\n\n")
	total := 0
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		name = strings.TrimSuffix(name, ",")
		if name == "help" || name == "" {
			continue
		}
		total++
		if c.ran[name] == 0 {
			c.t.Errorf("crictl %s was not run", name)
		}
	}
	if total < 30 {
		c.t.Errorf("crictl's help names %d commands, want at least 30:\n%s", total, r)
	}
	runs := 0
	for _, n := range c.ran {
		runs += n
	}
	c.t.Logf("%d commands of crictl in %d comparisons", total, runs)
}
