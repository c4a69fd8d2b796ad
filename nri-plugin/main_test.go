package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"

	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
)

// These tests do not run in parallel: a door sets the umask of the process while it starts.

const patience = 60 * time.Second

// A runtime starts plugins of its folder with three variables in their environment and nothing else. Ours is this test
// under the name of a plugin, in a folder of a node.
func TestMain(m *testing.M) {
	nrilog.Set(quiet{})
	if os.Getenv(api.PluginSocketEnvVar) == "" {
		os.Exit(m.Run())
	}
	dir := filepath.Dir(filepath.Dir(os.Args[0]))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		os.Exit(2)
	}
	os.Exit(run(context.Background(), filepath.Join(dir, "root"), append(os.Args[1:], "--run-dir", filepath.Join(dir, "run")), log, log))
}

// quiet drops what NRI logs.
type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}

// node is a machine with a plugin folder.
type node struct {
	t    *testing.T
	dir  string
	root string
	ctl  *control.Client
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, dir: dir, root: filepath.Join(dir, "root"), ctl: control.Dial(filepath.Join(dir, "run", "control.sock"))}
	if err := os.Mkdir(n.root, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := cgrouptest.New(n.root, cgrouptest.V2); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) policy(text string) {
	n.t.Helper()
	path := filepath.Join(n.root, launchedPolicy)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

const namedPolicy = "apiVersion: tideline.io/v1alpha1\nkind: QoSPolicy\nmetadata: {name: mine}\n"

func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("%s: not within %v; %s", what, patience, n.log())
		}
	}
}

func (n *node) status() control.Status {
	st, _ := n.ctl.Status(n.t.Context())
	return st
}

// runtime starts one that has our plugin in its folder, where installed.
func (n *node) runtime(installed bool) *adaptation.Adaptation {
	n.t.Helper()
	adaptation.SetPluginRegistrationTimeout(patience)
	adaptation.SetPluginRequestTimeout(patience)
	plugins := filepath.Join(n.dir, "plugins")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if installed {
		self, err := os.Executable()
		if err == nil {
			err = os.Symlink(self, filepath.Join(plugins, "42-tideline"))
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
	a, err := adaptation.New("fake", "v1",
		func(ctx context.Context, cb adaptation.SyncCB) error { _, err := cb(ctx, nil, nil); return err },
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithPluginPath(plugins), adaptation.WithPluginConfigPath(filepath.Join(n.dir, "none")), adaptation.WithSocketPath(filepath.Join(n.dir, "nri.sock")))
	if err == nil {
		err = a.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(a.Stop)
	return a
}

func (n *node) log() string {
	b, err := os.ReadFile(filepath.Join(n.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// A pre-installed plugin gets no flags: the policy is the node's, where there is one.
func TestLaunchedByTheRuntime(t *testing.T) {
	for name, text := range map[string]string{"built in": "", "the node's": namedPolicy} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			if text != "" {
				n.policy(text)
			}
			n.runtime(true)
			n.eventually("connected", func() bool { return n.status().Runtime.Connected })
			st := n.status()
			if mine := st.Policy.Name == "mine" && strings.HasSuffix(st.Policy.Source, launchedPolicy); mine != (text != "") {
				t.Errorf("%+v", st.Policy)
			}
			if st.Door != "nri" || st.Runtime.Name != "fake" || st.Mode != control.ModeEnforce {
				t.Errorf("%+v", st)
			}
			if log := n.log(); !strings.Contains(log, "index=42") {
				t.Error(log)
			}
		})
	}
}

// A policy that is there and can't be taken is not replaced by the built-in one.
func TestLaunchedWithABadPolicy(t *testing.T) {
	n := newNode(t)
	n.policy("x: y")
	t.Setenv(api.PluginSocketEnvVar, "3")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { run(ctx, n.root, []string{"--run-dir", filepath.Join(n.dir, "run")}, io.Discard, io.Discard) })
	defer wg.Wait()
	defer cancel()
	n.eventually("it says why", func() bool { return strings.Contains(fmt.Sprint(n.status().Degraded), launchedPolicy) })
}

// One that was started by hand has its flags, and neither another's policy; disable goes through its control socket.
func TestByHand(t *testing.T) {
	n := newNode(t)
	n.policy(namedPolicy)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var log bytes.Buffer
	code := -1
	wg.Go(func() {
		code = run(ctx, n.root, []string{"--nri-socket", filepath.Join(n.dir, "nri.sock"), "--index", "07", "--run-dir", filepath.Join(n.dir, "run")}, &log, &log)
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	n.eventually("it answers", func() bool { return n.status().Door == "nri" })
	if st := n.status(); st.Runtime.Connected || st.Policy.Source != "built in" || len(st.Degraded) == 0 {
		t.Errorf("%+v", st)
	}
	n.runtime(false)
	n.eventually("connected", func() bool { return n.status().Runtime.Connected })
	report, err := n.ctl.Disable(t.Context())
	if err != nil || len(report.Errors) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
	if st := n.status(); st.Mode != control.ModeBypass {
		t.Errorf("%+v", st)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "run", "bypass")); errors.Is(err, fs.ErrNotExist) {
		t.Error("bypass is not remembered")
	}
	cancel()
	wg.Wait()
	if code != 0 || !strings.Contains(log.String(), "index=07") {
		t.Errorf("status %d, %s", code, log.String())
	}
}

func TestFlags(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--mode", "off"}, `--mode "off": want enforce or observe`},
		{[]string{"--index", "9"}, `--index "9": want two digits`},
		{[]string{"--index", "100"}, `--index "100": want two digits`},
		{[]string{"--nri-socket", "nri.sock"}, `--nri-socket "nri.sock": want an absolute path`},
		{[]string{"--nri-socket", "/" + strings.Repeat("x", 107)}, `want an absolute path of at most 107 bytes`},
		{[]string{"--log-level", "loud"}, `loud`},
		{[]string{"--metrics-address", "0.0.0.0:1"}, `loopback`},
		{[]string{"now"}, `unknown command "now"`},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), n.root, append(c.args, "--run-dir", filepath.Join(n.dir, "run")), &out, &out); code != 1 || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: status %d, %s", c.args, code, out.String())
		}
	}
	var out bytes.Buffer
	if code := run(t.Context(), n.root, []string{"--help"}, &out, &out); code != 0 || !strings.Contains(out.String(), launchedPolicy) {
		t.Errorf("%d, %s", code, out.String())
	}
}
