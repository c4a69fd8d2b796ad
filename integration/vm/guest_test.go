package vm

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The tests of this file run inside the machines that machine_test.go boots.

func needGuest(t *testing.T) {
	t.Helper()
	if !inGuest() {
		t.Skip("host: runs inside a virtual machine")
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

const cgroupRoot = "/sys/fs/cgroup"

func TestGuest(t *testing.T) {
	needGuest(t)
	t.Run("controllers", func(t *testing.T) {
		got := strings.Fields(read(t, cgroupRoot+"/cgroup.subtree_control"))
		for _, c := range []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"} {
			if !slices.Contains(got, c) {
				t.Errorf("got %v, want %s too", got, c)
			}
		}
	})
	t.Run("knobs", guestKnobs)
	t.Run("throttling", guestThrottling)
	t.Run("pressure", func(t *testing.T) {
		for _, dir := range []string{"/proc/pressure/", cgroupRoot + "/knobs/"} {
			for _, kind := range []string{"cpu", "io", "memory"} {
				file := dir + kind
				if dir != "/proc/pressure/" {
					file += ".pressure"
				}
				if got := read(t, file); !strings.HasPrefix(got, "some avg10=") {
					t.Errorf("%s: got %q", file, got)
				}
			}
		}
	})
	t.Run("NUMA", func(t *testing.T) {
		for file, want := range map[string]string{"online": "0-1", "node0/cpulist": "0-1", "node1/cpulist": "2-3"} {
			if got := read(t, "/sys/devices/system/node/"+file); got != want {
				t.Errorf("%s: got %s, want %s", file, got, want)
			}
		}
	})
	t.Run("modules", func(t *testing.T) {
		run(t, "ip link add v0 type veth peer name v1 && ip link add br0 type bridge && ip link set v0 master br0")
		run(t, "mkdir -p /ov/l /ov/u /ov/w /ov/m && mount -t overlay -o lowerdir=/ov/l,upperdir=/ov/u,workdir=/ov/w ov /ov/m")
	})
	t.Run("root", func(t *testing.T) {
		if got, err := os.Readlink("/bin/link"); got != "vm.test" {
			t.Errorf("link: got %q, %v", got, err)
		}
		if got := run(t, "hostname; id -un; echo $HOME"); got != "vm\nroot\n/root\n" {
			t.Errorf("got %q", got)
		}
		// The clock comes from the host, if not to the second.
		if year := time.Now().Year(); year < 2025 {
			t.Errorf("year %d", year)
		}
	})
	t.Run("network", guestNetwork)
	t.Run("results", func(t *testing.T) {
		if err := os.Mkdir("/results/deep", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/results/deep/report.txt", []byte("from the guest\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/results/tool", bytes.Repeat([]byte("tool"), 75<<10), 0o750); err != nil {
			t.Fatal(err)
		}
	})
}

// run runs a shell script.
func run(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("/bin/sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// guestKnobs writes what the product writes, to a child of the root.
func guestKnobs(t *testing.T) {
	if err := os.WriteFile("/sys/block/vda/queue/scheduler", []byte("bfq"), 0); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cgroupRoot, "knobs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	disk := read(t, "/sys/block/vda/dev")
	for _, c := range []struct{ file, write, want string }{
		{"cpu.weight", "59", "59"},
		{"cpu.idle", "1", "1"},
		{"cpu.max", "20000 100000", "20000 100000"},
		{"cpu.max.burst", "10000", "10000"},
		{"cpuset.cpus", "2-3", "2-3"},
		{"cpuset.mems", "1", "1"},
		{"memory.min", "1048576", "1048576"},
		{"memory.low", "20971520", "20971520"},
		{"memory.high", "104857600", "104857600"},
		{"memory.max", "209715200", "209715200"},
		{"pids.max", "100", "100"},
		{"io.bfq.weight", "200", "200"},
		{"io.max", disk + " rbps=1048576", disk + " rbps=1048576 wbps=max riops=max wiops=max"},
	} {
		file := filepath.Join(dir, c.file)
		if err := os.WriteFile(file, []byte(c.write), 0); err != nil {
			t.Error(err)
			continue
		}
		if got := strings.TrimPrefix(read(t, file), "default "); got != c.want {
			t.Errorf("%s: wrote %q, read %q, want %q", c.file, c.write, got, c.want)
		}
	}
}

// guestThrottling shows that a limit has its effect too.
func guestThrottling(t *testing.T) {
	run(t, `cd `+cgroupRoot+` && mkdir throttled && echo 20000 > throttled/cpu.max &&
		(echo 0 > throttled/cgroup.procs; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done)`)
	if stat := read(t, cgroupRoot+"/throttled/cpu.stat"); strings.Contains(stat, "nr_throttled 0\n") {
		t.Errorf("never throttled:\n%s", stat)
	}
}

// guestPort is the port that TestMachine forwards.
const guestPort = 9000

// guestNetwork calls the host, which calls back and returns what it hears.
func guestNetwork(t *testing.T) {
	l, err := net.Listen("tcp", "10.0.2.15:9000")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const greeting = "hello from the guest"
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.WriteString(conn, greeting)
			conn.Close()
		}
		served <- err
	}()
	conn, err := net.Dial("tcp", net.JoinHostPort("10.0.2.2", os.Getenv("HOST_PORT")))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != greeting {
		t.Errorf("got %q, %v", got, err)
	}
	l.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestGuestContainerd(t *testing.T) {
	needGuest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	start := time.Now()
	step := func(name string) {
		t.Logf("%s: %.1f s", name, time.Since(start).Seconds())
		start = time.Now()
	}
	containerd := exec.CommandContext(ctx, "containerd")
	var log tail
	containerd.Stdout, containerd.Stderr = &log, &log
	containerd.WaitDelay = time.Second // shims keep the pipe open
	if err := containerd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		containerd.Process.Kill()
		containerd.Wait()
		if t.Failed() {
			t.Logf("containerd's last words:\n%s", log.String())
		}
	}()
	ctr := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "ctr", args...).CombinedOutput()
		return string(out), err
	}
	for {
		if _, err := ctr("version"); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatalf("containerd does not answer: %v", err)
		}
	}
	step("containerd is ready")
	if out, err := ctr("images", "import", "/images.tar"); err != nil {
		t.Fatalf("import images: %v: %s", err, out)
	}
	step("images imported")
	for _, name := range []string{"first", "second"} {
		if out, err := ctr("run", "--rm", os.Getenv("IMAGE"), name, "/bin/true"); err != nil {
			t.Fatalf("run container: %v: %s", err, out)
		}
		step(name + " container run")
	}
	if out, err := ctr("run", "--detach", "--memory-limit", "67108864", os.Getenv("IMAGE"), "limited", "/bin/sleep", "1000"); err != nil {
		t.Fatalf("start container: %v: %s", err, out)
	}
	step("container started")
	if got := read(t, cgroupRoot+"/default/limited/memory.max"); got != "67108864" {
		t.Errorf("memory.max of the container: got %s", got)
	}
	if got := read(t, cgroupRoot+"/default/limited/cgroup.procs"); got == "" {
		t.Error("no process in the container's cgroup")
	}
}
