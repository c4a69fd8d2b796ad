// Package install puts a door on a node and takes it away, as drop-ins: the kubelet's and the runtime's own files are
// never written. ReadFacts reads the node, Install and Uninstall decide on a plan that a person can read, and Apply carries
// it out, one step after the other. What was changed is remembered in StateFile, so that it can be taken back exactly.
//
//	facts, err := install.ReadFacts(ctx, node, install.CRI)
//	plan, err := install.Install(facts, install.Options{Door: install.CRI})
//	err = install.Apply(ctx, node, plan)
package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/tideline-io/tideline/internal/control"
)

// Door is how decisions reach containers; its text is that of control.Status.
type Door string

// Doors.
const (
	CRI Door = "cri" // the runtime proxy
	NRI Door = "nri" // the NRI plugin
)

// Valid says whether d is a door that can be installed.
func (d Door) Valid() bool { return d == CRI || d == NRI }

func (d Door) other() Door {
	if d == CRI {
		return NRI
	}
	return CRI
}

// Places on a node.
const (
	StateFile = "/var/lib/tideline/install.json"

	unitDir       = "/etc/systemd/system"
	configDir     = "/etc/tideline"
	policyFile    = configDir + "/policy.yaml"
	runDir        = control.DefaultRunDir
	criSocket     = runDir + "/cri.sock"
	kubeletDropIn = "20-tideline.conf"
	tomlDropIn    = "20-tideline.toml"
	crioDropIn    = "/etc/crio/crio.conf.d/20-tideline.conf"
	containerd    = "/run/containerd/containerd.sock" // as in the proxy's unit
	nriSocket     = "/var/run/nri/nri.sock"           // as in the plugin's unit
)

// parts is what is fixed of a door.
type parts struct {
	program string
	units   []string // in the order of their start; the last one is the door itself
	env     string
}

func (d Door) parts() parts {
	if d == NRI {
		return parts{"/usr/local/bin/tideline-nri-plugin", []string{"tideline-nri-plugin.service"}, "nri-plugin.env"}
	}
	return parts{"/usr/local/bin/tideline-runtime-proxy", []string{"tideline-runtime-proxy.socket", "tideline-runtime-proxy.service"}, "runtime-proxy.env"}
}

func (p parts) service() string { return p.units[len(p.units)-1] }

// State is what StateFile remembers, as JSON.
type State struct {
	Version     int      `json:"version"` // 1
	Door        Door     `json:"door"`
	Done        bool     `json:"done"`               // the last install ended
	Disabled    bool     `json:"disabled,omitempty"` // an uninstall that did not end turned bypass on
	Restored    bool     `json:"restored,omitempty"` // and put every kernel value back
	KubeletUnit string   `json:"kubeletUnit,omitempty"`
	RuntimeUnit string   `json:"runtimeUnit,omitempty"`
	Files       []File   `json:"files"`             // sorted by path
	Folders     []string `json:"folders,omitempty"` // that were made, parents first
}

// File is one that was written, or is about to be.
type File struct {
	Path   string   `json:"path"`
	Door   Door     `json:"door,omitempty"` // whose part it is; "" for both
	SHA256 []string `json:"sha256"`         // of every text of ours that may stand there
	Before *string  `json:"before,omitempty"`
}

// ours says whether text is what we wrote, or what stood there before, so nothing that somebody made since.
func (f File) ours(text string) bool {
	return slices.Contains(f.SHA256, hash(text)) || f.Before != nil && *f.Before == text
}

// config says that a file is the operator's to edit: it is kept as it is found.
func (f File) config() bool { return path.Dir(f.Path) == configDir }

// back is the text to put back, nil for none. A text that leads the kubelet to our socket never goes back: nobody would
// answer there.
func (f File) back() *string {
	if f.Before == nil || strings.Contains(*f.Before, criSocket) {
		return nil
	}
	return f.Before
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (s *State) file(name string) *File {
	for i := range s.Files {
		if s.Files[i].Path == name {
			return &s.Files[i]
		}
	}
	return nil
}

func (s *State) put(f File) {
	if old := s.file(f.Path); old != nil {
		*old = f
		return
	}
	s.Files = append(s.Files, f)
	slices.SortFunc(s.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
}

func (s *State) clone() *State {
	c := *s
	c.Folders = slices.Clone(s.Folders)
	c.Files = slices.Clone(s.Files)
	for i := range c.Files {
		c.Files[i].SHA256 = slices.Clone(c.Files[i].SHA256)
	}
	return &c
}

func (s *State) text() string {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil { // strings and bools alone
		panic(err)
	}
	return string(data) + "\n"
}

func parseState(text string) (*State, error) {
	var s State
	err := json.Unmarshal([]byte(text), &s)
	if err == nil && (s.Version != 1 || !s.Door.Valid()) {
		err = fmt.Errorf("version %d, door %q", s.Version, s.Door)
	}
	for _, f := range s.Files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || !strings.Contains(f.Path, "tideline") {
			err = errors.Join(err, fmt.Errorf("%q is no file of ours", f.Path))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w\nIt is damaged, or of another version of tideline. Move it away and undo by hand: docs/install-node.md, \"Undo everything\"", StateFile, err)
	}
	return &s, nil
}

// Step is one thing that is done. Which fields count depends on Op.
type Step struct {
	Op    Op
	Path  string
	Text  string      // to be written
	Was   *string     // what stands there, nil for nothing
	Mode  fs.FileMode // of a file
	Args  []string    // of a command
	Unit  string
	Door  Door
	QoS   control.Mode // that the door must have been started with, "" for any
	State *State
	Why   string
}

// Op is what a step does.
type Op string

// Ops.
const (
	Remember     Op = "remember"      // State goes to StateFile
	Write        Op = "write"         // Text goes to Path, where Was stands
	Remove       Op = "remove"        // Path, where Was stands
	RemoveFolder Op = "remove-folder" // Path, if it is empty
	RemoveTree   Op = "remove-tree"   // Path and what is below
	Run          Op = "run"           // Args
	WaitDoor     Op = "wait-door"     // until Door answers
	WaitUnit     Op = "wait-unit"     // until Unit is active and stays so
	CheckNRI     Op = "check-nri"     // the runtime's effective configuration (Args print it) has NRI on
	Disable      Op = "disable"       // every kernel value back, by the door
	EndBypass    Op = "end-bypass"
	Forget       Op = "forget" // StateFile
)

// Plan is what is to be done, in order.
type Plan struct {
	Title string
	Steps []Step
	Notes []string // what stays as it is, and why
	Next  string   // what the operator does when all is done
}
