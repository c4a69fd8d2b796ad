package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/control"
)

// run is one run of the suite.
type run struct {
	report  report
	took    time.Duration
	logs    string         // the ends of all logs
	hooked  map[string]int // successful hooks of the door, by method; nil without a door
	counts  control.Counts // what the door did
	runtime map[string]int // successful calls by containerd's log, by method
}

// limit of one run. It takes 3 minutes on an idle machine.
const limit = 25 * time.Minute

// critest runs the suite in a lab of its own, with an empty image store: critest pulls all its images from the lab's
// registry.
func critest(t *testing.T, name string, through bool, focus string) (result run) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit+5*time.Minute)
	defer cancel()
	l, err := lab.New(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		result.logs = l.LogTails(60)
		if t.Failed() { // by a Fatal below, or before
			t.Logf("%s: %s", name, result.logs)
		}
		if err := l.Close(); err != nil {
			t.Errorf("%s: close the lab: %v", name, err)
		}
	}()
	c, err := l.StartContainerd(ctx, lab.ContainerdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *door == node.NRI { // the runs have the same containerd
		if err := c.Configure(ctx, "[plugins.'io.containerd.server.v1.metrics']\n  address = '"+runtimeMetrics+"'\n"); err != nil {
			t.Fatal(err)
		}
	}
	socket := c.Socket()
	var n *node.Node
	var began control.Status
	if through {
		opts := node.Options{Door: *door}
		if *tier != "" {
			opts.Policy = fmt.Sprintf(tierPolicy, *tier)
		}
		if n, err = node.Behind(ctx, l, c, opts); err != nil {
			t.Fatal(err)
		}
		socket = n.Socket()
		if began, err = n.Control.Status(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.StartRegistry(ctx); err != nil {
		t.Fatal(err)
	}
	defer removePods(t, c)

	path, err := l.Part("critest")
	if err != nil {
		t.Fatal(err)
	}
	junit, tmp := filepath.Join(l.Dir(), "critest.xml"), filepath.Join(l.Dir(), "tmp")
	if err := os.Mkdir(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-runtime-endpoint", "unix://" + socket, "-image-endpoint", "unix://" + socket, "-nri-socket", c.NRISocket(),
		"-ginkgo.no-color", "-ginkgo.v", "-ginkgo.seed", strconv.FormatInt(*seed, 10), "-ginkgo.junit-report", junit,
		"-ginkgo.timeout", limit.String(), "-test.timeout", (limit + time.Minute).String(),
	}
	if focus != "" {
		args = append(args, "-ginkgo.focus", focus)
	}
	begin := time.Now()
	p, err := l.StartProcess(ctx, lab.ProcessSpec{Name: "critest", Path: path, Args: args, Env: []string{"TMPDIR=" + tmp}})
	if err != nil {
		t.Fatal(err)
	}
	wait(ctx, t, name, p, begin)
	result.took = time.Since(begin)

	result.report, err = readReport(junit)
	if err != nil {
		t.Fatalf("%s: %v", name, errors.Join(err, p.Err()))
	}
	if p.Err() != nil && result.report.count(failed) == 0 {
		t.Fatalf("%s: critest ended with %v and reports no failure", name, p.Err())
	}
	if result.runtime, err = inRuntimeLog(c.LogPath()); err != nil {
		t.Fatal(err)
	}
	if !through {
		return result
	}
	select {
	case <-n.Proxy().Done():
		t.Fatalf("the door ended during the run: %v", n.Proxy().Err())
	default:
	}
	end, err := n.Control.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	result.counts = end.Counts
	if a, b := began.Runtime.NRI, end.Runtime.NRI; *door == node.NRI && (a == nil || b == nil || !a.Since.Equal(b.Since)) {
		t.Errorf("%s: the plugin's connection was lost during the run: %+v, then %+v", name, began.Runtime, end.Runtime)
	}
	if result.hooked, err = inMetrics(ctx, n); err != nil {
		t.Fatal(err)
	}
	return result
}

// wait waits for critest's end and tells how far it is.
func wait(ctx context.Context, t *testing.T, name string, p *lab.Process, begin time.Time) {
	t.Helper()
	tick := time.NewTicker(20 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-p.Done():
			return
		case <-tick.C:
			// • [1.234 seconds]
			// S [SKIPPED] [0.001 seconds]
			b, err := os.ReadFile(p.LogPath())
			if err != nil {
				t.Fatal(err)
			}
			b = append([]byte("\n"), b...)
			t.Logf("%s: %v: %d specs done, %d of them skipped", name, time.Since(begin).Round(time.Second),
				bytes.Count(b, []byte("\n• ["))+bytes.Count(b, []byte("\nS [")), bytes.Count(b, []byte("\nS [")))
		case <-ctx.Done():
			t.Fatalf("%s: critest did not end: %v", name, errors.Join(ctx.Err(), p.Kill()))
		}
	}
}

// returns finds what containerd logs of a call that succeeded:
//
//	msg="RunPodSandbox for &PodSandboxMetadata{…} returns sandbox id \"0d1…\""
//	msg="CreateContainer within sandbox \"…\" for container name:\"…\" returns container id \"…\""
//	msg="StartContainer for \"…\" returns successfully"
var returns = regexp.MustCompile(`msg="(\w+) .* returns (sandbox id|container id|successfully)`)

// counted are the methods that are both hooked and logged so.
var counted = []string{"RunPodSandbox", "CreateContainer", "StartContainer"}

func inRuntimeLog(path string) (map[string]int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read containerd's log: %w", err)
	}
	calls := map[string]int{}
	for _, m := range returns.FindAllSubmatch(b, -1) {
		calls[string(m[1])]++
	}
	return calls, nil
}

// runtimeMetrics is where containerd serves its metrics, in the lab's own network.
const runtimeMetrics = "127.0.0.1:1338"

// tierPolicy gives the pods of critest a tier.
const tierPolicy = `apiVersion: tideline.io/v1alpha1
kind: QoSPolicy
metadata: {name: critest}
spec:
  rules:
  - {name: critest, match: {namespaces: ["cri-test-namespace*"]}, tier: %s}
`

// hooks find the successful hooks of a door in metrics. The proxy counts calls; of the plugin's hooks containerd does:
//
//	tideline_cri_hooked_calls_total{code="0",method="CreateContainer"} 97
//	containerd_nri_plugin_invocations_total{error="",operation="CreateContainer",plugin="90-tideline",status="success"} 98
var hooks = map[string]*regexp.Regexp{
	node.CRI: regexp.MustCompile(`(?m)^tideline_cri_hooked_calls_total\{code="0",method="(\w+)"\} (\S+)$`),
	node.NRI: regexp.MustCompile(`(?m)^containerd_nri_plugin_invocations_total\{error="",operation="(\w+)",plugin="90-tideline",status="success"\} (\S+)$`),
}

// failedHook finds a hook of the plugin that gave containerd an error.
var failedHook = regexp.MustCompile(`(?m)^containerd_nri_plugin_invocations_total\{.*plugin="90-tideline",status="error"\} .*$`)

func inMetrics(ctx context.Context, n *node.Node) (map[string]int, error) {
	var text string
	if *door == node.NRI {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+runtimeMetrics+"/v1/metrics", nil)
		if err != nil {
			return nil, err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, fmt.Errorf("read containerd's metrics: %w", err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("read containerd's metrics: status %d: %w", res.StatusCode, err)
		}
		text = string(b)
	} else {
		code, body, err := n.Get(ctx, control.PathMetrics)
		if err != nil || code != http.StatusOK {
			return nil, fmt.Errorf("read the proxy's metrics: status %d: %w", code, err)
		}
		text = body
	}
	if line := failedHook.FindString(text); line != "" {
		return nil, fmt.Errorf("a hook of the plugin failed: %s", line)
	}
	return parseHooks(hooks[*door], text)
}

func parseHooks(of *regexp.Regexp, text string) (map[string]int, error) {
	calls := map[string]int{}
	for _, m := range of.FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, fmt.Errorf("parse metrics: %q: %w", m[0], err)
		}
		calls[m[1]] = int(v)
	}
	return calls, nil
}

// removePods removes what critest left. Its pods have no cgroup parent, so they are not below the lab's cgroup, and the
// lab would not remove theirs.
func removePods(t *testing.T, c *lab.Containerd) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute) // also after the run's limit
	defer cancel()
	cri, err := lab.DialCRI(c.Socket())
	if err != nil {
		t.Error(err)
		return
	}
	defer cri.Close()
	pods, err := cri.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Errorf("remove critest's pods: %v", err)
		return
	}
	for _, p := range pods.GetItems() {
		_, err := cri.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.GetId()})
		if err == nil {
			_, err = cri.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		}
		if err != nil {
			t.Errorf("remove critest's pod %s: %v", p.GetMetadata().GetName(), err)
		}
	}
	containers, err := cri.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Errorf("remove critest's containers: %v", err)
		return
	}
	for _, x := range containers.GetContainers() {
		if _, err := cri.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: x.GetId()}); err != nil {
			t.Errorf("remove critest's container %s: %v", x.GetMetadata().GetName(), err)
		}
	}
}
