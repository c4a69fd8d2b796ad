package lab_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/lab"
)

// helperEnv makes this test binary a program that isolates itself and then
// does what the variable says. Run from inside the lab of the tests, it has a
// lab inside a lab.
const helperEnv = "TIDELINE_LAB_TEST_HELPER"

// runHelper is the isolated program. It leaves behind what it can: an orphan,
// a frozen process in a cgroup below its own, and a mount.
func runHelper(what, marker string) error {
	dir, name := os.Getenv("TIDELINE_LAB_DIR"), os.Getenv("TIDELINE_LAB_NAME")
	if err := os.Mkdir(filepath.Join(dir, "mnt"), 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", filepath.Join(dir, "mnt"), "tmpfs", 0, ""); err != nil {
		return err
	}
	if err := exec.Command("sh", "-c", "setsid sleep "+marker+" >/dev/null 2>&1 &").Run(); err != nil {
		return err
	}
	frozen := exec.Command("sleep", marker)
	if err := frozen.Start(); err != nil {
		return err
	}
	freeze, state := "freezer.state", "FROZEN"
	if lab.Unified() {
		freeze, state = "cgroup.freeze", "1"
	}
	cgroup := "/" + name + "/sub"
	for _, w := range []struct{ file, value string }{{"cgroup.procs", fmt.Sprint(frozen.Process.Pid)}, {freeze, state}} {
		path := lab.CgroupFile("freezer", cgroup, w.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(w.value), 0); err != nil {
			return err
		}
	}
	if what == "handle" {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		fmt.Println(name)
		<-signals
		os.Exit(3)
	}
	fmt.Println(name)
	switch what {
	case "exit":
		os.Exit(7)
	case "panic":
		panic("helper panics")
	}
	time.Sleep(time.Hour)
	return nil
}

func TestIsolateLeavesNothing(t *testing.T) {
	if os.Getenv(lab.Env) == "vm" {
		t.Skip("no namespaces in a VM")
	}
	tests := []struct {
		name, helper string
		signal       syscall.Signal
		want         int // the exit status; -1 for an end by signal
	}{
		{name: "exit status", helper: "exit", want: 7},
		{name: "panic", helper: "panic", want: 2},
		{name: "signal is handled", helper: "handle", signal: syscall.SIGTERM, want: 3},
		{name: "signal is not handled", helper: "wait", signal: syscall.SIGINT, want: 130},
		{name: "SIGKILL of the outer process", helper: "wait", signal: syscall.SIGKILL, want: -1},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mountsBefore := mounts(t)
			marker := fmt.Sprintf("%d.%d", 77000+os.Getpid(), i)
			cmd := exec.Command("/proc/self/exe", marker)
			cmd.Env = append(os.Environ(), lab.Env+"=", helperEnv+"="+tt.helper)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				t.Fatalf("read the name of the helper's lab: %v, %s", err, stderr.String())
			}
			name := strings.TrimSpace(line)
			if tt.signal != 0 {
				if err := cmd.Process.Signal(tt.signal); err != nil {
					t.Fatal(err)
				}
			}
			err = cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != tt.want {
				t.Errorf("end: got %v, want status %d; stderr:\n%s", err, tt.want, stderr.String())
			}
			// After SIGKILL the rest follows on its own.
			end := time.Now().Add(10 * time.Second)
			for tt.signal == syscall.SIGKILL && len(leftovers(t, name, marker)) > 0 && time.Now().Before(end) {
				time.Sleep(20 * time.Millisecond)
			}
			if got := leftovers(t, name, marker); len(got) > 0 {
				t.Errorf("left behind: %q", got)
			}
			if got := mounts(t); got != mountsBefore {
				t.Errorf("mounts: got\n%s\nwant\n%s", got, mountsBefore)
			}
		})
	}
}

// leftovers lists the processes, folders and cgroups of a lab.
func leftovers(t *testing.T, name, marker string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name, filepath.Join(os.TempDir(), name)} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), "\x00"+marker+"\x00") {
			found = append(found, p+": "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

func mounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestNamespacesAreOwn(t *testing.T) {
	if os.Getenv(lab.Env) == "vm" {
		t.Skip("no namespaces in a VM")
	}
	b, err := os.ReadFile("/proc/1/environ")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), lab.Env+"=init") {
		t.Errorf("pid 1 is not the lab's: %q", b)
	}
	for _, dir := range []string{"/run", "/var/log/containers", "/var/lib/kubelet", "/var/lib/cni"} {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil || st.Type != 0x01021994 {
			t.Errorf("%s: got type %#x, %v, want a tmpfs", dir, st.Type, err)
		}
	}
}
