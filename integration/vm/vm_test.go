package vm

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCompleteReportsAllProblems(t *testing.T) {
	cfg := Config{
		Init: "upstart", Files: map[string]string{"bin/x": "x", "/run/x": "x", "/": "x"},
		Links: map[string]string{"/a/../b": "c"},
		Env:   []string{"A"}, CPUs: 3, NUMANodes: 2, Limit: -time.Second, Ports: map[int]int{0: 80},
	}
	err := cfg.complete()
	want := strings.Join([]string{
		`check configuration: init "upstart": want "systemd" or nothing`,
		`no program`,
		`file "/": want a clean absolute path`,
		`file "/run/x": the guest mounts a file system over it`,
		`file "bin/x": want a clean absolute path`,
		`link "/a/../b": want a clean absolute path`,
		`environment "A": want KEY=value`,
		`3 CPUs can't be divided among 2 NUMA nodes`,
		`limit -1s: negative`,
		`port 0 to 80: want 1 to 65535`,
	}, "\n")
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestCompleteSetsDefaults(t *testing.T) {
	cfg := Config{Program: "/bin/true", Ports: map[int]int{8080: 80}}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	if cfg.CPUs != 2 || cfg.MemoryMiB != 1024 || cfg.NUMANodes != 1 || cfg.Limit != 5*time.Minute || !cfg.Network || cfg.Stdout == nil || cfg.Progress == nil {
		t.Errorf("got %+v", cfg)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"HOME=/x", "A=1=2", "A=3", "TIDELINE_PARTS=/bin"})
	want := []string{"A=3", "HOME=/x", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TIDELINE_LAB=vm", "TIDELINE_PARTS=/bin"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
