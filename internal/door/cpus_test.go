package door

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/engine/enginetest"
	"github.com/tideline-io/tideline/internal/policy"
)

// link is a runtime that has nothing.
type link struct{ *enginetest.Runtime }

func (link) Carries(policy.Knob) bool { return true }

func (link) Run(ctx context.Context, d *Door, e *engine.Engine) error {
	d.SetRuntime(control.Runtime{Connected: true})
	e.Adopt()
	<-ctx.Done()
	return nil
}

// machine is a root with the CPUs 0-3 in two cores, of which the kubelet reserves 0.
func machine(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	if _, err := cgrouptest.New(root, cgrouptest.V2); err != nil {
		t.Fatal(err)
	}
	archive := txtar.Parse([]byte(`
-- sys/devices/system/cpu/online --
0-3
-- sys/devices/system/cpu/present --
0-3
-- sys/devices/system/node/online --
0
-- sys/devices/system/node/node0/cpulist --
0-3
-- sys/devices/system/node/node0/meminfo --
Node 0 MemTotal:       8388608 kB
-- var/lib/kubelet/config.yaml --
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
reservedSystemCPUs: "0"
`))
	for cpu, siblings := range []string{"0-1", "0-1", "2-3", "2-3"} {
		dir := filepath.Join("sys/devices/system/cpu", "cpu"+string(rune('0'+cpu)), "topology")
		for file, text := range map[string]string{"physical_package_id": "0", "die_id": "0", "core_id": string(rune('0' + cpu/2)), "thread_siblings_list": siblings} {
			archive.Files = append(archive.Files, txtar.File{Name: filepath.Join(dir, file), Data: []byte(text + "\n")})
		}
	}
	for _, f := range archive.Files {
		write(t, filepath.Join(root, f.Name), string(f.Data))
	}
	return root
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// start runs a door on a machine, and gives what asks it. It does not run in parallel: a door sets the umask while it
// starts.
func start(t *testing.T, root string) *control.Client {
	t.Helper()
	run, err := os.MkdirTemp("", "door") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	d, err := Open(Config{
		Name: "test", Root: root, RunDir: run, Mode: control.ModeEnforce, Log: slog.New(slog.DiscardHandler),
		Connect: func(int) (Link, error) { return link{enginetest.New()}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		d.Close()
	})
	return control.Dial(filepath.Join(run, "control.sock"))
}

// pools waits for the pool of LS, since what the door reads of the machine reaches it some time later.
func pools(t *testing.T, c *control.Client, reserved, ls string) {
	t.Helper()
	var got control.CPUs
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got, err = c.CPUs(t.Context()); err == nil && got.Reserved == reserved && got.Pools.LS == ls {
			return
		}
	}
	t.Errorf("%+v, %v, want %q reserved and %q for LS", got, err, reserved, ls)
}

// The kubelet's reserved CPUs are in no pool, and CPUs that go or come are seen while the door runs.
func TestCPUsComeAndGo(t *testing.T) {
	root := machine(t)
	c := start(t, root)
	pools(t, c, "0", "1-3")
	online := filepath.Join(root, "sys/devices/system/cpu/online")
	write(t, online, "0-2\n")
	pools(t, c, "0", "1-2")
	write(t, online, "0-3\n")
	pools(t, c, "0", "1-3")
}

// What can't be read of a moment is no news: no CPUs are none that anybody could run on.
func TestOnlineCPUsUnreadable(t *testing.T) {
	root := machine(t)
	d := &Door{cfg: Config{Root: root, Log: slog.New(slog.DiscardHandler)}, log: slog.New(slog.DiscardHandler)}
	if d.online = d.onlineCPUs(); d.online != "0-3\n" {
		t.Errorf("online: %q", d.online)
	}
	if err := os.Remove(filepath.Join(root, "sys/devices/system/cpu/online")); err != nil {
		t.Fatal(err)
	}
	if got := d.onlineCPUs(); got != "0-3\n" {
		t.Errorf("online: %q", got)
	}
}

// A kubelet whose configuration can't be read, or says nothing that is a list, reserves nothing.
func TestKubeletReserved(t *testing.T) {
	root := machine(t)
	d := &Door{cfg: Config{Root: root}, log: slog.New(slog.DiscardHandler)}
	config := filepath.Join(root, "var/lib/kubelet/config.yaml")
	for _, c := range []struct{ name, text, want string }{
		{"a list", "reservedSystemCPUs: 0,2-3\n", "0,2-3"}, {"nothing", "maxPods: 110\n", ""}, {"no list", "reservedSystemCPUs: many\n", ""}, {"no YAML", "{", ""},
	} {
		write(t, config, c.text)
		if got := d.kubeletReserved().String(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	if got := d.kubeletReserved().String(); got != "" {
		t.Errorf("no file: %q", got)
	}
}
