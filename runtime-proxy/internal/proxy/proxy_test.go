package proxy_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/runtime-proxy/internal/proxy"
)

// These tests do not run in parallel: a proxy sets the umask of the process while it starts.

const patience = 60 * time.Second

// runtime is a fake one. Exec-like calls hang in Status until they are let go.
type runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	hold, entered chan struct{}
}

func (r *runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1"}, nil
}

func (r *runtime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{}, nil
}

func (r *runtime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{}, nil
}

func (r *runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	if r.hold != nil {
		close(r.entered)
		<-r.hold
	}
	return &runtimeapi.StatusResponse{}, nil
}

// node is a machine on which proxies run.
type node struct {
	t    *testing.T
	cfg  proxy.Config
	ctl  *control.Client
	back string
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "proxy") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	root := t.TempDir()
	if _, err := cgrouptest.New(root, cgrouptest.V2); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	n := &node{t: t, back: filepath.Join(dir, "back.sock"), ctl: control.Dial(filepath.Join(run, "control.sock"))}
	n.cfg = proxy.Config{Root: root, Listen: "unix://" + filepath.Join(dir, "front.sock"), RuntimeEndpoint: "unix://" + n.back, Mode: control.ModeEnforce, RunDir: run, DrainTimeout: patience}
	return n
}

// serve starts the runtime, and gives what stops it.
func (n *node) serve(r *runtime) (stop func()) {
	n.t.Helper()
	l, err := net.Listen("unix", n.back)
	if err != nil {
		n.t.Fatal(err)
	}
	s := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(s, r)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			s.Stop()
			<-done
		}
	}
	n.t.Cleanup(stop)
	return stop
}

// start runs a proxy, and gives what sends it the signal to end, and its end.
func (n *node) start() (term func(), ended <-chan error) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	done, end := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(end)
		done <- proxy.Run(ctx, n.cfg, slog.New(slog.DiscardHandler))
	}()
	n.t.Cleanup(func() {
		cancel()
		select {
		case <-end:
		case <-time.After(patience):
			n.t.Error("the proxy does not end")
		}
	})
	n.eventually("the proxy answers", func() bool {
		_, err := n.ctl.Status(n.t.Context())
		return err == nil
	})
	return cancel, done
}

func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func (n *node) client() runtimeapi.RuntimeServiceClient {
	n.t.Helper()
	c, err := grpc.NewClient(n.cfg.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, MaxDelay: 100 * time.Millisecond, Multiplier: 1.6}}))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	return runtimeapi.NewRuntimeServiceClient(c)
}

func (n *node) version(c runtimeapi.RuntimeServiceClient) error {
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	_, err := c.Version(ctx, &runtimeapi.VersionRequest{})
	return err
}

func (n *node) get(path string) (int, string) {
	n.t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.cfg.RunDir, "control.sock"))
	}}}
	res, err := c.Get("http://door" + path)
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func (n *node) status() control.Status {
	n.t.Helper()
	st, err := n.ctl.Status(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return st
}

// The runtime comes, goes and comes back; the proxy stays.
func TestRuntimeAway(t *testing.T) {
	n := newNode(t)
	n.start()
	c := n.client()
	if err := n.version(c); status.Code(err) != codes.Unavailable {
		t.Errorf("without a runtime: %v", err)
	}
	if code, _ := n.get(control.PathHealth); code != http.StatusOK {
		t.Errorf("healthz %d", code)
	}
	if code, body := n.get(control.PathReady); code != http.StatusServiceUnavailable || !strings.Contains(body, "away") {
		t.Errorf("readyz %d %s", code, body)
	}
	for range 2 {
		stop := n.serve(&runtime{})
		n.eventually("calls work", func() bool { return n.version(c) == nil })
		n.eventually("ready", func() bool { code, _ := n.get(control.PathReady); return code == http.StatusOK })
		n.eventually("nothing is degraded", func() bool { return len(n.status().Degraded) == 0 })
		stop()
		n.eventually("calls are Unavailable", func() bool { return status.Code(n.version(c)) == codes.Unavailable })
		n.eventually("not ready", func() bool { code, _ := n.get(control.PathReady); return code != http.StatusOK })
	}
	if code, body := n.get(control.PathMetrics); code != http.StatusOK || !strings.Contains(body, "tideline_runtime_connected 0") || !strings.Contains(body, `tideline_relay_events_total{kind="dial-failed"}`) {
		t.Errorf("metrics %d\n%s", code, body)
	}
	info, err := os.Stat(filepath.Join(n.cfg.RunDir, "control.sock"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("control socket %v, %v", info.Mode(), err)
	}
}

func TestDrain(t *testing.T) {
	n := newNode(t)
	r := &runtime{hold: make(chan struct{}), entered: make(chan struct{})}
	n.serve(r)
	term, ended := n.start()
	c := n.client()
	answered := make(chan error, 1)
	go func() {
		_, err := c.Status(t.Context(), &runtimeapi.StatusRequest{})
		answered <- err
	}()
	<-r.entered
	term()
	select {
	case err := <-ended:
		t.Fatalf("ended with a call under way: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	close(r.hold)
	if err := <-answered; err != nil {
		t.Errorf("the call: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := os.Lstat(strings.TrimPrefix(n.cfg.Listen, "unix://")); err == nil {
		t.Error("the socket is left")
	}
	n.start() // and another may follow
}

func TestDrainLimit(t *testing.T) {
	n := newNode(t)
	n.cfg.DrainTimeout = 200 * time.Millisecond
	r := &runtime{hold: make(chan struct{}), entered: make(chan struct{})}
	n.serve(r)
	t.Cleanup(func() { close(r.hold) })
	term, ended := n.start()
	answered := make(chan error, 1)
	go func() {
		_, err := n.client().Status(t.Context(), &runtimeapi.StatusRequest{})
		answered <- err
	}()
	<-r.entered
	term()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("does not end")
	}
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("the call: %v", err)
	}
}

func TestSecondInstance(t *testing.T) {
	n := newNode(t)
	n.start()
	again := n.cfg
	again.Listen += "2"
	err := proxy.Run(t.Context(), again, slog.New(slog.DiscardHandler))
	if want := fmt.Sprintf("another door runs on this node (pid %d", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
	if n.status().PID != os.Getpid() {
		t.Error("the first one is disturbed")
	}
}

func TestBypassIsRemembered(t *testing.T) {
	n := newNode(t)
	n.serve(&runtime{})
	term, ended := n.start()
	if st, err := n.ctl.Bypass(t.Context(), true); err != nil || st.Mode != control.ModeBypass || st.StartMode != control.ModeEnforce {
		t.Errorf("%+v, %v", st, err)
	}
	term()
	<-ended
	term, ended = n.start()
	if st := n.status(); st.Mode != control.ModeBypass {
		t.Errorf("%+v", st)
	}
	if st, err := n.ctl.Bypass(t.Context(), false); err != nil || st.Mode != control.ModeEnforce {
		t.Errorf("%+v, %v", st, err)
	}
	if r, err := n.ctl.Disable(t.Context()); err != nil || len(r.Errors) > 0 || n.status().Mode != control.ModeBypass {
		t.Errorf("%+v, %v", r, err)
	}
	term()
	<-ended
	n.start()
	if st := n.status(); st.Mode != control.ModeBypass {
		t.Errorf("%+v", st)
	}
}

func TestPolicyFile(t *testing.T) {
	n := newNode(t)
	n.cfg.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
	write := func(name, more string) {
		text := "apiVersion: tideline.io/v1alpha1\nkind: QoSPolicy\nmetadata: {name: " + name + "}\n" + more
		if err := os.WriteFile(n.cfg.PolicyFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("bad", "odd: true\n")
	n.start() // the node keeps its runtime: calls pass, and the status says why nothing is decided
	if st := n.status(); st.Mode != control.ModeBypass || !strings.Contains(st.ModeWhy, n.cfg.PolicyFile) || len(st.Degraded) == 0 {
		t.Errorf("a bad policy at the start: %+v", st)
	}
	write("one", "")
	n.eventually("policy one", func() bool { st := n.status(); return st.Mode == control.ModeEnforce && st.Policy.Name == "one" })
	if p := n.status().Policy; p.Name != "one" || p.Generation != 1 {
		t.Errorf("%+v", p)
	}
	write("two", "")
	n.eventually("policy two", func() bool { p := n.status().Policy; return p.Name == "two" && p.Generation == 2 })
	write("bad", "odd: true\n")
	n.eventually("the error", func() bool { return strings.Contains(n.status().Policy.Error, "odd") })
	if p := n.status().Policy; p.Name != "two" || p.Generation != 2 {
		t.Errorf("%+v", p)
	}
	write("three", "")
	n.eventually("policy three", func() bool { p := n.status().Policy; return p.Name == "three" && p.Error == "" })
}

func TestPassThrough(t *testing.T) {
	n := newNode(t)
	n.cfg.PassThrough = true
	n.serve(&runtime{})
	n.start()
	if err := n.version(n.client()); err != nil {
		t.Error(err)
	}
	if st := n.status(); st.Mode != control.ModeBypass || st.ModeWhy != "--pass-through" {
		t.Errorf("%+v", st)
	}
	if code, _ := n.get(control.PathReady); code != http.StatusOK {
		t.Errorf("readyz %d", code)
	}
	if _, err := n.ctl.Disable(t.Context()); err == nil {
		t.Error("disable without an engine")
	}
	if _, err := os.Stat(filepath.Join(n.cfg.RunDir, "records")); err == nil {
		t.Error("files were made")
	}
}

func TestBadConfig(t *testing.T) {
	for want, edit := range map[string]func(*proxy.Config){
		`--listen "front.sock"`:           func(c *proxy.Config) { c.Listen = "front.sock" },
		`--runtime-endpoint "unix://rel"`: func(c *proxy.Config) { c.RuntimeEndpoint = "unix://rel" },
		"would talk to itself":            func(c *proxy.Config) { c.RuntimeEndpoint = c.Listen },
		"at most 107 bytes":               func(c *proxy.Config) { c.Listen = "unix:///" + strings.Repeat("x", 120) },
		`--metrics-address "0.0.0.0:1"`:   func(c *proxy.Config) { c.MetricsAddress = "0.0.0.0:1" },
		`--metrics-address ":1"`:          func(c *proxy.Config) { c.MetricsAddress = ":1" },
		`--metrics-address "localhost:1"`: func(c *proxy.Config) { c.MetricsAddress = "localhost:1" },
		`--metrics-address "127.0.0.1"`:   func(c *proxy.Config) { c.MetricsAddress = "127.0.0.1" },
	} {
		n := newNode(t)
		edit(&n.cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a configuration that is taken runs until then
		defer cancel()
		if err := proxy.Run(ctx, n.cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

func TestMetricsAddress(t *testing.T) {
	n := newNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.cfg.MetricsAddress = l.Addr().String()
	if err := proxy.Run(t.Context(), n.cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--metrics-address") {
		t.Errorf("an address in use: %v", err)
	}
	l.Close()
	n.start()
	for path, want := range map[string]int{control.PathMetrics: 200, control.PathHealth: 200, control.PathReady: 503, control.PathStatus: 404, control.PathDisable: 404} {
		res, err := http.Get("http://" + n.cfg.MetricsAddress + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
}
