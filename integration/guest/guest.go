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

// Equip gives a machine what a node is made of: a container runtime and further parts, images, and Tideline's own programs. It
// builds what is missing. Package lab finds all of it in the guest.
func Equip(ctx context.Context, machine *vm.Config, progress io.Writer, further ...string) error {
	store, err := parts.Open(progress)
	if err != nil {
		return err
	}
	built, err := store.Build(ctx, append(parts.ContainerRuntime(), further...)...)
	if err != nil {
		return err
	}
	archive, err := images.Archive(ctx, store)
	if err != nil {
		return err
	}
	bin, err := own.Build(ctx, progress)
	if err != nil {
		return err
	}
	machine.Files[partsDir+"/"+filepath.Base(archive)] = archive
	for name, p := range built {
		machine.Files[partsDir+"/"+name] = p
	}
	for _, name := range []string{own.Proxy, own.Plugin, own.CLI, own.Readback} {
		machine.Files[binDir+"/"+name] = filepath.Join(bin, name)
	}
	machine.Modules = append(machine.Modules, "veth", "bridge")
	machine.Env = append(machine.Env, parts.DirEnv+"="+partsDir, own.DirEnv+"="+binDir)
	return nil
}

// Run builds what is missing, boots, runs this program with Args, and returns its exit status.
func Run(ctx context.Context, cfg Config) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return -1, err
	}
	root, err := own.Root()
	if err != nil {
		return -1, err
	}
	machine := vm.Config{
		Files:   map[string]string{"/tideline/run": self, path.Dir(Manifests): filepath.Join(root, "deploy", "examples")},
		Program: "/tideline/run", Args: cfg.Args,
		Init: cfg.Init, NUMANodes: cfg.NUMA, ThreadsPerCore: cfg.Threads, CPUs: cfg.CPUs, MemoryMiB: cfg.Memory, Limit: cfg.Limit, Stdout: cfg.Stdout, Ports: cfg.Port, Network: cfg.Network,
	}
	if err := Equip(ctx, &machine, os.Stderr, cfg.Parts...); err != nil {
		return -1, err
	}
	maps.Copy(machine.Files, cfg.Files)
	machine.Env = append(machine.Env, cfg.Env...)
	if machine.CPUs == 0 {
		machine.CPUs = 2
	}
	if machine.MemoryMiB == 0 {
		machine.MemoryMiB = 2048
	}
	exit, err := vm.Run(ctx, machine)
	if err != nil {
		return exit, fmt.Errorf("run in a VM: %w", err)
	}
	return exit, nil
}
