package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/preflight"
)

// Facts is what was read of a node.
type Facts struct {
	State    *State            // nil: nothing is installed by us
	Texts    map[string]string // the files that may be ours, as they stand; no key where there is none
	Folders  map[string]bool   // their folders that exist
	Programs map[string]bool   // that exist
	Systemd  bool              // is the first process
	Kubelet  Kubelet
	Runtime  Runtime
	Answers  Answer // a door on the control socket
	Ran      bool   // a door ran since the boot
}

// Answer of a door.
type Answer string

// Answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown" // only root may ask
)

// Kubelet is the kubelet that runs.
type Kubelet struct {
	Running   bool
	Unit      string // "" when unknown
	Config    string // its file
	ConfigDir string // "" for none
	Flag      bool   // the endpoint is set on the command line
	Endpoint  string // the path that it talks to, our drop-in left out
	From      string // the file, or the flag, that says so; "" for its default
}

// Runtime is the container runtime that runs.
type Runtime struct {
	Name    string   // "containerd", "cri-o", "" for none
	Unit    string   // "" when unknown
	Config  string   // containerd's file
	Dump    []string // the command that prints its effective configuration
	Imports []string // of that file, absolute
	NRI     bool     // is on
	Socket  string   // of NRI
	Error   string   // why its configuration is not known
	Blocked bool     // NRI is among disabled_plugins, which no drop-in undoes
}

// Node is where facts come from and where steps go to.
type Node struct {
	Root string                                                   // of its file system
	Run  func(ctx context.Context, args []string) (string, error) // gives what the command printed
	Door interface {
		Status(context.Context) (control.Status, error)
		Disable(context.Context) (control.DisableReport, error)
		Bypass(ctx context.Context, on bool) (control.Status, error)
	}
	Say  func(string) // a line on how it goes
	Wait Waits
}

// ReadFacts reads the node. It changes nothing and needs no root.
func ReadFacts(ctx context.Context, n Node) (Facts, error) {
	f := Facts{Texts: map[string]string{}, Folders: map[string]bool{}, Programs: map[string]bool{}, Answers: Yes}
	tree, err := openTree(n.Root)
	if err != nil {
		return f, err
	}
	defer tree.Close()
	text, there, err := tree.read(StateFile)
	if err != nil {
		return f, err
	}
	if there {
		if f.State, err = parseState(text); err != nil {
			return f, err
		}
	}
	all := processes(n.Root)
	if f.Kubelet, err = readKubelet(n.Root, all); err != nil {
		return f, err
	}
	f.Runtime = readRuntime(ctx, n, all)
	names := []string{StateFile, policyFile, crioDropIn}
	for _, d := range []Door{CRI, NRI} {
		p := d.parts()
		names = append(names, path.Join(configDir, p.env))
		for _, u := range p.units {
			names = append(names, path.Join(unitDir, u))
		}
		info, err := os.Stat(filepath.Join(n.Root, p.program))
		f.Programs[p.program] = err == nil && info.Mode().IsRegular()
	}
	if f.Kubelet.ConfigDir != "" {
		names = append(names, path.Join(f.Kubelet.ConfigDir, kubeletDropIn))
	}
	if dir := f.Runtime.dropInDir(); dir != "" {
		names = append(names, path.Join(dir, tomlDropIn))
	}
	if f.State != nil {
		for _, file := range f.State.Files {
			names = append(names, file.Path)
		}
	}
	for _, name := range names {
		text, there, err := tree.read(name)
		if err != nil {
			return f, err
		}
		if there {
			f.Texts[name] = text
		}
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			_, err := tree.root.Lstat(dir[1:])
			f.Folders[dir] = err == nil
		}
	}
	exists := func(name string) bool {
		_, err := os.Lstat(filepath.Join(n.Root, name))
		return err == nil
	}
	f.Ran, f.Systemd = exists(runDir+"/lock"), exists("/run/systemd/system") // as sd_booted(3)
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	_, err = n.Door.Status(ctx)
	switch {
	case errors.Is(err, control.ErrNoDoor):
		f.Answers = No
	case err != nil:
		f.Answers = Unknown
	}
	return f, nil
}

// process is one of the node's, of the owner of its file system: what others call themselves counts for nothing.
type process struct {
	dir  string
	args []string
}

func processes(root string) []process {
	owner := ownerOf(root)
	entries, err := os.ReadDir(filepath.Join(root, "proc"))
	if err != nil {
		return nil
	}
	var out []process
	for _, e := range entries {
		dir := filepath.Join(root, "proc", e.Name())
		if _, err := strconv.Atoi(e.Name()); err != nil || ownerOf(dir) != owner {
			continue
		}
		if line, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil && len(line) > 1 {
			out = append(out, process{dir, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")})
		}
	}
	return out
}

func ownerOf(name string) int {
	info, err := os.Lstat(name)
	if err != nil {
		return -1
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

func find(all []process, program string) (process, bool) {
	i := slices.IndexFunc(all, func(p process) bool { return path.Base(p.args[0]) == program })
	if i < 0 {
		return process{}, false
	}
	return all[i], true
}

// unit is the systemd unit of a process, from its cgroup:
//
//	0::/system.slice/kubelet.service
//	1:name=systemd:/system.slice/kubelet.service
func (p process) unit() string {
	data, err := os.ReadFile(filepath.Join(p.dir, "cgroup"))
	if err != nil {
		return ""
	}
	if m := regexp.MustCompile(`(?m)^(?:0:|\d+:name=systemd):/system\.slice/(?:.*/)?([\w@:.\\-]+\.service)`).FindSubmatch(data); m != nil {
		return string(m[1])
	}
	return ""
}

// flag is the last --name=value or --name value.
func (p process) flag(names ...string) (value string) {
	for i, arg := range p.args {
		name, v, has := strings.Cut(arg, "=")
		if !slices.Contains(names, name) {
			continue
		}
		if !has && i+1 < len(p.args) {
			v = p.args[i+1]
		}
		value = v
	}
	return value
}

// readKubelet finds what the kubelet talks to, as the kubelet does: its file, drop-ins in the order of their paths, the flag.
func readKubelet(root string, all []process) (Kubelet, error) {
	p, ok := find(all, "kubelet")
	if !ok {
		return Kubelet{}, nil
	}
	const flag = "--container-runtime-endpoint"
	k := Kubelet{Running: true, Unit: p.unit(), Config: p.flag("--config"), ConfigDir: p.flag("--config-dir"), Endpoint: containerd}
	if k.Config == "" {
		k.Config = preflight.DefaultKubeletConfig
	}
	names := []string{k.Config}
	if k.ConfigDir != "" {
		if !path.IsAbs(k.ConfigDir) {
			return k, fmt.Errorf("the kubelet's --config-dir is %q: want an absolute path", k.ConfigDir)
		}
		k.ConfigDir = path.Clean(k.ConfigDir)
		top := filepath.Join(root, k.ConfigDir)
		// WalkDir goes in lexical order of names, the kubelet in that of whole paths.
		err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && filepath.Ext(name) == ".conf" && name != filepath.Join(top, kubeletDropIn) {
				names = append(names, path.Join(k.ConfigDir, strings.TrimPrefix(name, top)))
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return k, fmt.Errorf("read drop-ins of the kubelet: %w", err)
		}
		slices.Sort(names[1:])
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var c struct {
			ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`
		}
		if err == nil {
			err = yaml.Unmarshal(data, &c)
		}
		if err != nil {
			return k, fmt.Errorf("read the kubelet's configuration %s: %w", name, err)
		}
		if c.ContainerRuntimeEndpoint != "" {
			k.Endpoint, k.From = c.ContainerRuntimeEndpoint, name
		}
	}
	if v := p.flag(flag); v != "" {
		k.Endpoint, k.From, k.Flag = v, flag, true
	}
	if s := preflight.SocketPath(k.Endpoint); s != "" {
		k.Endpoint = s
	}
	return k, nil
}

const nriPlugin = "io.containerd.nri.v1.nri"

func readRuntime(ctx context.Context, n Node, all []process) Runtime {
	r := Runtime{Socket: nriSocket}
	info, err := os.Stat(filepath.Join(n.Root, preflight.SocketPath("unix://"+nriSocket)))
	socket := err == nil && !info.IsDir()
	if p, ok := find(all, "crio"); ok {
		r.Name, r.Unit, r.NRI = "cri-o", p.unit(), socket
		return r
	}
	p, ok := find(all, "containerd")
	if !ok {
		return r
	}
	r.Name, r.Unit, r.Config = "containerd", p.unit(), p.flag("--config", "-c")
	if r.Config == "" {
		r.Config = "/etc/containerd/config.toml"
	}
	r.Dump = []string{p.program(), "--config", r.Config, "config", "dump"}
	own, err := os.ReadFile(filepath.Join(n.Root, r.Config))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Error = err.Error()
	}
	for _, i := range tomlStrings(tomlValue(string(own), "", "imports")) {
		if !path.IsAbs(i) {
			i = path.Join(path.Dir(r.Config), i)
		}
		r.Imports = append(r.Imports, i)
	}
	dump, err := n.Run(ctx, r.Dump)
	section := "plugins." + nriPlugin
	switch disable := tomlValue(dump, section, "disable"); {
	case err != nil:
		r.Error, r.NRI = err.Error(), socket
	case slices.Contains(tomlStrings(tomlValue(dump, "", "disabled_plugins")), nriPlugin):
		r.Blocked = true
	default:
		// No such section: before 1.7 there is no NRI of this kind.
		r.NRI = disable == "false"
		if disable == "" {
			r.Error = "its configuration has no plugin " + nriPlugin + ", which containerd has from 1.7 on"
		}
		if s := tomlStrings(tomlValue(dump, section, "socket_path")); len(s) == 1 && s[0] != "" {
			r.Socket = s[0]
		}
	}
	return r
}

// program is what a process runs, where that can be read, else what it was called as.
func (p process) program() string {
	if exe, err := os.Readlink(filepath.Join(p.dir, "exe")); err == nil && path.IsAbs(exe) && !strings.HasSuffix(exe, " (deleted)") {
		return exe
	}
	return p.args[0]
}

// dropInDir is an imported folder that takes our file, "" for none.
func (r Runtime) dropInDir() string {
	for _, i := range r.Imports {
		if ok, err := path.Match(path.Base(i), tomlDropIn); ok && err == nil && path.IsAbs(i) && !strings.ContainsAny(path.Dir(i), "*?[") {
			return path.Dir(i)
		}
	}
	return ""
}

// tomlValue is the value of a key as text, "" for none. It reads what containerd prints and people write, one key a line
// and arrays over several:
//
//	imports = ["/etc/containerd/conf.d/*.toml"]
//	[plugins.'io.containerd.nri.v1.nri']
//	  disable = true
func tomlValue(text, section, key string) string {
	at := ""
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			at = strings.NewReplacer(`"`, "", "'", "", " ", "", "[", "").Replace(strings.SplitN(line, "]", 2)[0])
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if !ok || at != section || strings.Trim(k, ` "'`) != key {
			continue
		}
		for v = strings.TrimSpace(v); strings.HasPrefix(v, "[") && !strings.Contains(v, "]") && i+1 < len(lines); i++ {
			next, _, _ := strings.Cut(lines[i+1], "#")
			v += strings.TrimSpace(next)
		}
		return v
	}
	return ""
}

// tomlStrings are the quoted texts of a value.
func tomlStrings(value string) (out []string) {
	for _, m := range regexp.MustCompile(`"([^"]*)"|'([^']*)'`).FindAllStringSubmatch(value, -1) {
		out = append(out, m[1]+m[2])
	}
	return out
}
