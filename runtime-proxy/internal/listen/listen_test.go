package listen_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tideline-io/tideline/runtime-proxy/internal/listen"
)

// These tests do not run in parallel: Open sets the umask of the process.

// folder is a short one: a socket's path has at most 107 bytes.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "listen")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// socket makes a socket; a stale one is closed and left there.
func socket(t *testing.T, path string, stale bool) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if stale {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
		return
	}
	t.Cleanup(func() { l.Close() })
}

func TestOpen(t *testing.T) {
	dir := folder(t)
	model := filepath.Join(dir, "runtime.sock")
	socket(t, model, false)
	if err := os.Chmod(model, 0o620); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(model, 12, 34); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]struct {
		make func(path string)
		want string // of the error
	}{
		"nothing there": {func(string) {}, ""},
		"stale":         {func(p string) { socket(t, p, true) }, ""},
		"live":          {func(p string) { socket(t, p, false) }, "somebody answers on"},
		"a file": {func(p string) {
			if err := os.WriteFile(p, []byte("keep"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "is there and no socket"},
		"a link to a stale socket": {func(p string) {
			socket(t, p+".other", true)
			if err := os.Symlink(p+".other", p); err != nil {
				t.Fatal(err)
			}
		}, "is there and no socket"},
		"a folder": {func(p string) {
			if err := os.Mkdir(p, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "is there and no socket"},
	}
	n := 0
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n++
			path := filepath.Join(dir, fmt.Sprint("s", n))
			c.make(path)
			l, from, err := listen.Open(path, model)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("%v", err)
				}
				if _, err := os.Lstat(path); err != nil {
					t.Errorf("what was there is gone: %v", err)
				}
				return
			}
			if err != nil || from != "own" {
				t.Fatalf("%q, %v", from, err)
			}
			defer l.Close()
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != 0o620 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			if st := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && (st.Uid != 12 || st.Gid != 34) {
				t.Errorf("owner %d:%d", st.Uid, st.Gid)
			}
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
		})
	}
}

// Where the runtime is not up yet the socket is for its owner alone, and its folder is made.
func TestOpenWithoutRuntime(t *testing.T) {
	path := filepath.Join(folder(t), "a", "b", "s")
	l, _, err := listen.Open(path, path+".none")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestSystemd starts this test again with a socket as systemd hands it over.
func TestSystemd(t *testing.T) {
	if path := os.Getenv("LISTEN_TEST_PATH"); path != "" {
		os.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid()))
		l, from, err := listen.Open(path, path)
		fmt.Println("from", from, "err", err)
		if err == nil {
			l.Close() // and leaves systemd's socket there
		}
		return
	}
	dir := folder(t)
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for want, told := range map[string]string{"from systemd err <nil>": path, "make ListenStream= of the socket unit and --listen agree": path + ".other"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestSystemd$", "-test.v")
		cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_TEST_PATH="+told)
		cmd.ExtraFiles = []*os.File{file}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("want %q: %v\n%s", want, err, out)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("systemd's socket is gone: %v", err)
		}
	}
}
