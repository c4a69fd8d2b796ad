package preflight

import (
	"errors"
	"fmt"
	"io"
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

// ReadKubelet reads the kubelet's part alone. The file is "" for that of the running kubelet, else DefaultKubeletConfig.
func ReadKubelet(root, file string) Kubelet {
	return readKubelet(root, file, processes(filepath.Join(root, "proc")))
}

// maxFile is above what the kubelet's files and those of procfs hold.
const maxFile = 1 << 20

var errTooLong = fmt.Errorf("longer than %d bytes", maxFile)

// readFile reads a regular file whose name or text is others': a device or a pipe would have no end.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("no regular file")
	}
	data, err := readHead(name, maxFile+1)
	if err != nil {
		return nil, cause(err)
	}
	if len(data) > maxFile {
		return nil, errTooLong
	}
	return data, nil
}

// cause drops the path that the os package adds: it has the injected root in it.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// readHead reads at most that many bytes.
func readHead(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// kubeletArgs is how the node's kubelet was called. What a pod or another user names so is none.
func kubeletArgs(root string, all []process) (args []string) {
	owner, known := ownerOf(root)
	for _, p := range all {
		if p.name() != "kubelet" || p.inKubepods() {
			continue
		}
		if uid, ok := ownerOf(p.dir); known && ok && uid == owner {
			args = p.args[1:]
		}
	}
	return args
}

func ownerOf(name string) (uid uint32, ok bool) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}

// readKubelet puts the configuration together as the kubelet does: file, drop-ins in the order of their paths, flags.
func readKubelet(root, file string, all []process) Kubelet {
	args := kubeletArgs(root, all)
	k := Kubelet{Path: file}
	dir, _ := flag(args, "root-dir")
	k.Manager = readCPUManager(root, dir)
	if k.Path == "" {
		k.Path, _ = flag(args, "config")
	}
	if k.Path == "" {
		k.Path = DefaultKubeletConfig
	}
	var data []byte
	var err error
	if file == "" {
		data, err = readFile(filepath.Join(root, k.Path))
	} else { // the operator's own name for it, which may be a pipe
		data, err = os.ReadFile(file)
		err = cause(err)
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", k.Path, err)
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
		data, err := readFile(name)
		if err != nil {
			return fmt.Errorf("read drop-ins of the kubelet: %s: %w", filepath.Join(dir, strings.TrimPrefix(name, top)), err)
		}
		if err := k.read(filepath.Join(dir, strings.TrimPrefix(name, top)), data); err != nil {
			return err
		}
	}
	return nil
}
