// Package resctrl runs what concerns resctrl on the kernel's own resctrl: in virtual machines whose kernel is told that it
// has the hardware (package vm/rdt). One table of operations runs there and on the fake of resctrl/resctrltest, and each
// row has to come to the same; containers are put into groups by a real containerd.
//
//	go test ./resctrl -v -run TestTable
//	go test ./resctrl -run TestTable/amd -args -runs 500 -first 1000   # other random operations than the usual ones
//
// A test of the host boots a machine that runs this binary again, for a test whose name begins with TestGuest. Inside,
// the lab, its parts, Tideline's own programs and /sys/fs/resctrl are at hand.
package resctrl

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/integration/guest"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/vm"
	"github.com/tideline-io/tideline/integration/vm/rdt"
)

// Random operations are done in so many runs, from the first one on: the number of a run is the seed of its operations.
var runs, first int

func TestMain(m *testing.M) {
	flag.IntVar(&runs, "runs", 10, "runs of random operations for each layout")
	flag.IntVar(&first, "first", 0, "number of the first one")
	flag.Parse()
	if inGuest() {
		lab.Isolate() // completes the mounts, no more
	}
	os.Exit(m.Run())
}

func inGuest() bool { return os.Getenv(lab.Env) == "vm" }

func needGuest(t *testing.T) {
	t.Helper()
	if !inGuest() {
		t.Skip("host: runs inside a virtual machine")
	}
}

// needHost skips where no machine can or shall be booted.
func needHost(t *testing.T) {
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

// machine is what a test needs of its virtual machine.
type machine struct {
	hardware             rdt.Options
	cpus, nodes, threads int
	run                  string   // name of the test
	env                  []string // KEY=value
	// containers brings the parts of a container runtime and Tideline's own programs.
	containers bool
}

// boot runs a test of this binary in a machine, and returns the folder with the files that it left in results.
func boot(t *testing.T, m machine) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := vm.Config{
		Files:   map[string]string{"/tideline/run": self},
		Program: "/tideline/run", Args: []string{"-test.run=^" + m.run + "$", "-test.v", "-test.timeout=8m", fmt.Sprint("-runs=", runs), fmt.Sprint("-first=", first)},
		Env: m.env, CPUs: m.cpus, NUMANodes: m.nodes, ThreadsPerCore: m.threads, MemoryMiB: 1024, Resctrl: &m.hardware,
		Results: filepath.Join(t.TempDir(), "results"), Limit: 9 * time.Minute, Progress: t.Output(),
	}
	if m.containers {
		cfg.MemoryMiB = 2048
		if err := guest.Equip(t.Context(), &cfg, t.Output()); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	cfg.Stdout = &out
	exit, err := vm.Run(t.Context(), cfg)
	if err != nil || exit != 0 {
		t.Fatalf("%s in the machine: exit status %d, %v, output:\n%s", m.run, exit, err, out.String())
	}
	if !strings.Contains(out.String(), "\n--- PASS: "+m.run+" ") {
		t.Fatalf("%s did not run in the machine, output:\n%s", m.run, out.String())
	}
	return cfg.Results
}

const root = "/sys/fs/resctrl"

// results is the guest's folder that boot brings to the host.
const results = "/results"

// mounted runs f while resctrl is mounted.
func mounted(t *testing.T, options string, f func()) {
	t.Helper()
	if err := unix.Mount("resctrl", root, "resctrl", 0, options); err != nil {
		t.Fatalf("mount resctrl with options %q: %v", options, err)
	}
	defer func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Errorf("unmount resctrl: %v", err)
		}
	}()
	f()
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// write hands text to the kernel; a failure has what the kernel says of it.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0); err != nil {
		t.Fatalf("%v: %s", err, read(t, root+"/info/last_cmd_status"))
	}
}

// limited is a context for the slow machine.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// groupsOf returns a process' control and monitoring group, "/" being the root:
//
//	res:/tideline-be
//	mon:
func groupsOf(pid int) (control, monitor string, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cpu_resctrl_groups", pid))
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if c, ok := strings.CutPrefix(line, "res:"); ok {
			control = c
		} else if m, ok := strings.CutPrefix(line, "mon:"); ok {
			monitor = m
		}
	}
	return control, monitor, nil
}
