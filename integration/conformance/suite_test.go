package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
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
	hooked  map[string]int // successful calls that the proxy counted, by method; nil without a proxy
	runtime map[string]int // the same by containerd's log
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
	var n *node.Node
	var c *lab.Containerd
	var socket string
	if through {
		if n, err = node.Start(ctx, l, node.Options{}); err != nil {
			t.Fatal(err)
		}
		c, socket = n.Containerd, n.Socket()
	} else {
		if c, err = l.StartContainerd(ctx, lab.ContainerdOptions{}); err != nil {
			t.Fatal(err)
		}
		socket = c.Socket()
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
	if through {
		select {
		case <-n.Proxy().Done():
			t.Fatalf("the proxy ended during the run: %v", n.Proxy().Err())
		default:
		}
		if result.hooked, err = inMetrics(ctx, n); err != nil {
			t.Fatal(err)
		}
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

// inMetrics reads the successful hooked calls:
//
//	tideline_cri_hooked_calls_total{code="0",method="CreateContainer"} 97
func inMetrics(ctx context.Context, n *node.Node) (map[string]int, error) {
	code, text, err := n.Get(ctx, control.PathMetrics)
	if err != nil || code != 200 {
		return nil, fmt.Errorf("read the proxy's metrics: status %d: %w", code, err)
	}
	calls := map[string]int{}
	for line := range strings.Lines(text) {
		var method string
		rest, ok := strings.CutPrefix(line, `tideline_cri_hooked_calls_total{code="0",method="`)
		if !ok {
			continue
		}
		method, rest, _ = strings.Cut(rest, `"} `)
		v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
		if err != nil {
			return nil, fmt.Errorf("parse the proxy's metrics: %q: %w", line, err)
		}
		calls[method] = int(v)
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
