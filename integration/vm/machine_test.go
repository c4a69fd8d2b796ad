package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/parts"
)

// The tests of this file boot machines, one after the other, as one takes a
// whole CPU of the host.

// needMachine skips where no machine can or shall be booted.
func needMachine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: boots a virtual machine")
	}
	if os.Geteuid() != 0 {
		t.Skip("root: the machine's files and packages need it")
	}
	if inGuest() {
		t.Skip("guest: no machine in the machine")
	}
}

func inGuest() bool { return os.Getenv("TIDELINE_LAB") == "vm" }

// guestTests returns a configuration that runs tests of this binary.
func guestTests(t *testing.T, run string, out io.Writer) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Files:   map[string]string{"/bin/vm.test": self},
		Program: "/bin/vm.test", Args: []string{"-test.run=^" + run + "$", "-test.v"},
		Limit: 4 * time.Minute, Stdout: out, Progress: t.Output(),
	}
}

func TestMachine(t *testing.T) {
	needMachine(t)
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	forwarded := freePort(t)
	greeted := make(chan error, 1)
	go func() { greeted <- meetGuest(host, forwarded) }()

	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	cfg := guestTests(t, "TestGuest", &out)
	cfg.Env = []string{fmt.Sprintf("HOST_PORT=%d", host.Addr().(*net.TCPAddr).Port)}
	cfg.Links = map[string]string{"/bin/link": "vm.test"}
	cfg.CPUs, cfg.NUMANodes = 4, 2
	cfg.Modules = []string{"veth", "bridge"}
	cfg.Ports = map[int]int{forwarded: guestPort}
	cfg.Results = filepath.Join(t.TempDir(), "results")
	exit, err := Run(t.Context(), cfg)
	if err != nil || exit != 0 {
		t.Fatalf("got exit status %d, %v, output:\n%s", exit, err, out.String())
	}
	if !strings.Contains(out.String(), "\n--- PASS: TestGuest ") || strings.Contains(out.String(), "\r") {
		t.Errorf("output is not that of a passing test:\n%q", out.String())
	}
	host.Close()
	if err := <-greeted; err != nil {
		t.Errorf("network: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(cfg.Results, "deep", "report.txt"))
	if err != nil || string(b) != "from the guest\n" {
		t.Errorf("result: %q, %v", b, err)
	}
	info, err := os.Stat(filepath.Join(cfg.Results, "tool"))
	if err != nil || info.Mode() != 0o750 || info.Size() != 300<<10 {
		t.Errorf("result: %v, %v, want 300 KiB with mode 0750", info, err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// freePort finds a port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// meetGuest accepts the guest's connection and answers by one to its forwarded
// port, whose greeting it sends back over the first.
func meetGuest(l net.Listener, forwarded int) error {
	in, err := l.Accept()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(forwarded)))
	if err != nil {
		return err
	}
	defer out.Close()
	greeting, err := io.ReadAll(out)
	if err != nil {
		return err
	}
	_, err = in.Write(greeting)
	return err
}

func TestEnds(t *testing.T) {
	needMachine(t)
	for _, c := range []struct {
		name, script   string
		exit           int
		out            string
		reason, serial string // of the GuestError, if any
	}{
		{name: "status", script: "(sleep 1000 &); echo one; echo two >&2; exit 7", exit: 7, out: "one\ntwo\n"},
		{name: "panic", script: "echo c > /proc/sysrq-trigger", exit: -1, serial: "Kernel panic - not syncing",
			reason: "no exit status of /bin/sh: the machine ended (QEMU: exit status 0)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			exit, err := Run(t.Context(), Config{Program: "/bin/sh", Args: []string{"-c", c.script}, Stdout: &out, Progress: t.Output()})
			if exit != c.exit || out.String() != c.out {
				t.Errorf("got %d, %q, want %d, %q", exit, out.String(), c.exit, c.out)
			}
			var failure *GuestError
			if !errors.As(err, &failure) {
				if c.reason != "" || err != nil {
					t.Errorf("got %v, want GuestError %q", err, c.reason)
				}
			} else if failure.Reason != c.reason || !strings.Contains(failure.Serial, c.serial) {
				t.Errorf("got %v, want %q and %q", err, c.reason, c.serial)
			}
		})
	}
}

// The context ends the machine before it is up, so this costs no boot.
func TestCancel(t *testing.T) {
	needMachine(t)
	for _, c := range []struct {
		name  string
		limit time.Duration
		want  error
	}{
		{"limit", 100 * time.Millisecond, context.DeadlineExceeded},
		{"cancel", 0, context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.limit == 0 {
				// Well after QEMU's start, and before any boot can be over.
				timer := time.AfterFunc(2*time.Second, cancel)
				defer timer.Stop()
			}
			exit, err := Run(ctx, Config{Program: "/bin/sleep", Args: []string{"1000"}, Limit: c.limit, Progress: t.Output()})
			if exit != -1 || !errors.Is(err, c.want) {
				t.Errorf("got %d, %v, want %v", exit, err, c.want)
			}
		})
	}
}

// TestContainerd shows that the kernel and its modules are enough for runc and
// containerd.
func TestContainerd(t *testing.T) {
	needMachine(t)
	store, err := parts.Open(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cfg := guestTests(t, "TestGuestContainerd", &out)
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc", "ctr"} {
		file, err := store.Path(name)
		if errors.Is(err, fs.ErrNotExist) {
			t.Skipf("parts: %s is not built", name)
		}
		if err != nil {
			t.Fatal(err)
		}
		cfg.Files["/bin/"+name] = file
	}
	if cfg.Files["/images.tar"], err = images.Archive(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	cfg.Env = []string{"IMAGE=" + images.Busybox}
	exit, err := Run(t.Context(), cfg)
	t.Log(out.String())
	if err != nil || exit != 0 {
		t.Errorf("got exit status %d, %v", exit, err)
	}
}
