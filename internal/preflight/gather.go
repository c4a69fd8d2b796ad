package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/tideline-io/tideline/internal/hostfs"
)

// Config says where to look.
type Config struct {
	Root            string // of the node's file system
	KubeletConfig   string // "" for that of the running kubelet, else DefaultKubeletConfig
	RuntimeEndpoint string // what the proxy talks to
	ProxyEndpoint   string // what the kubelet should talk to
	JournalDir      string // of the door
}

// Gather reads the node. What can't be read is said in the facts; what only a call can tell (Runtime beyond its socket,
// Door) is left to the caller.
func Gather(cfg Config) Facts {
	f := Facts{
		Runtime:   Runtime{Socket: readSocket(cfg.Root, cfg.RuntimeEndpoint)},
		Proxy:     readSocket(cfg.Root, cfg.ProxyEndpoint),
		JournalAt: cfg.JournalDir,
	}
	var err error
	if f.Machine, err = hostfs.Open(cfg.Root).ReadFacts(); err != nil {
		f.MachineError = err.Error()
	}
	procRoot := filepath.Join(cfg.Root, "proc")
	all := processes(procRoot)
	f.Kubelet = readKubelet(cfg.Root, cfg.KubeletConfig, all)
	f.Agents = OtherAgents(procRoot)
	f.Host = hostProcesses(all)
	f.OOM, f.OOMOf = mayLowerOOM(all)
	if entries, err := os.ReadDir(filepath.Join(cfg.Root, cfg.JournalDir)); err == nil {
		f.Journal = len(slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !strings.HasSuffix(e.Name(), ".json") }))
	}
	return f
}

func readSocket(root, endpoint string) Socket {
	s := Socket{Endpoint: endpoint, Path: SocketPath(endpoint)}
	if s.Path == "" {
		return s
	}
	info, err := os.Stat(filepath.Join(root, s.Path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s
	case err != nil:
		s.Error = err.Error()
		return s
	}
	s.Exists, s.IsSocket, s.Mode = true, info.Mode()&fs.ModeSocket != 0, info.Mode()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.UID = st.Uid
	}
	return s
}

// readKubelet puts the configuration together as the kubelet does: file, drop-ins in the order of their paths, flags.
func readKubelet(root, file string, all []process) Kubelet {
	var args []string
	for _, p := range all {
		if p.name() == "kubelet" {
			args = p.args[1:]
		}
	}
	k := Kubelet{Path: file}
	if k.Path == "" {
		k.Path, _ = flag(args, "config")
	}
	if k.Path == "" {
		k.Path = DefaultKubeletConfig
	}
	at := k.Path
	if file == "" { // else it is the operator's own name for it
		at = filepath.Join(root, k.Path)
	}
	data, err := os.ReadFile(at)
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = fmt.Errorf("read %s: %w", k.Path, pe.Err)
	}
	if err == nil {
		err = k.read(k.Path, data)
	}
	if err == nil {
		if dir, ok := flag(args, "config-dir"); ok {
			err = k.dropIns(root, dir)
		}
	}
	if err != nil {
		k.Error = err.Error()
		return k
	}
	k.flags(args)
	return k
}

// dropIns lays the files DIR/**/*.conf over what is there, in lexical order.
func (k *Kubelet) dropIns(root, dir string) error {
	var names []string
	top := filepath.Join(root, dir)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".conf" {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read drop-ins of the kubelet: %w", err)
	}
	slices.Sort(names)
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read drop-ins of the kubelet: %w", err)
		}
		if err := k.read(filepath.Join(dir, strings.TrimPrefix(name, top)), data); err != nil {
			return err
		}
	}
	return nil
}
