// Package guest runs the program that calls it again in a VM with cgroup v2, with the parts, Tideline's own programs and
// the examples at hand, so that one program or test binary serves both cgroup versions.
//
//	exit, err := guest.Run(ctx, guest.Config{Args: []string{"-test.run=TestUpdates"}})
package guest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/integration/parts"
	"github.com/tideline-io/tideline/integration/vm"
)

// Paths in the guest.
const (
	Manifests = "/tideline/examples/demo"
	partsDir  = "/tideline/parts"
	binDir    = "/tideline/bin"
)

// Config says what to run.
type Config struct {
	Args    []string
	Parts   []string          // names beyond the container runtime's
	Files   map[string]string // further ones: guest path to host path
	Env     []string
	Init    vm.Init
	CPUs    int // 0: 2
	Memory  int // MiB, 0: 2048
	NUMA    int // nodes, 0: 1
	Threads int // of a core, 0: 1
	Limit   time.Duration
	Stdout  io.Writer // nil: os.Stdout
	Port    map[int]int
	// Network gives the guest a network in which 10.0.2.2 is the caller's loopback.
	Network bool
}

// Run builds what is missing, boots, runs this program with Args, and returns its exit status.
func Run(ctx context.Context, cfg Config) (int, error) {
	store, err := parts.Open(os.Stderr)
	if err != nil {
		return -1, err
	}
	built, err := store.Build(ctx, append(parts.ContainerRuntime(), cfg.Parts...)...)
	if err != nil {
		return -1, err
	}
	archive, err := images.Archive(ctx, store)
	if err != nil {
		return -1, err
	}
	bin, err := own.Build(ctx, os.Stderr)
	if err != nil {
		return -1, err
	}
	self, err := os.Executable()
	if err != nil {
		return -1, err
	}
	root, err := own.Root()
	if err != nil {
		return -1, err
	}
	files := map[string]string{"/tideline/run": self, path.Dir(Manifests): filepath.Join(root, "deploy", "examples"), partsDir + "/" + filepath.Base(archive): archive}
	for name, p := range built {
		files[partsDir+"/"+name] = p
	}
	for _, name := range []string{own.Proxy, own.Plugin, own.CLI, own.Readback} {
		files[binDir+"/"+name] = filepath.Join(bin, name)
	}
	maps.Copy(files, cfg.Files)
	if cfg.CPUs == 0 {
		cfg.CPUs = 2
	}
	if cfg.Memory == 0 {
		cfg.Memory = 2048
	}
	exit, err := vm.Run(ctx, vm.Config{
		Init: cfg.Init, NUMANodes: cfg.NUMA, ThreadsPerCore: cfg.Threads, Files: files, Program: "/tideline/run", Args: cfg.Args, CPUs: cfg.CPUs, MemoryMiB: cfg.Memory, Limit: cfg.Limit, Stdout: cfg.Stdout, Ports: cfg.Port, Network: cfg.Network,
		Modules: []string{"veth", "bridge"},
		Env:     append([]string{parts.DirEnv + "=" + partsDir, own.DirEnv + "=" + binDir}, cfg.Env...),
	})
	if err != nil {
		return exit, fmt.Errorf("run in a VM: %w", err)
	}
	return exit, nil
}
