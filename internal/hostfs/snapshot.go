package hostfs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/tideline-io/tideline/internal/cgroup"
)

// A snapshot is a txtar archive of what ReadFacts looked at, so that FromSnapshot runs the same code, and of the resctrl tree:
//
//	# tideline snapshot v1
//	# kernel: 6.1.0-57-amd64
//	# date: 2026-11-30T12:00:00Z
//	-- page-size --
//	4096
//	-- proc/meminfo --
//	MemTotal:       24576 kB
//	-- cgroup/cpu/child --
//	cpu.idle
//	cpu.max
//
// Files carry their path. A listing of a directory is not stored; it follows from the paths below it. What is no file has a name of its own: page-size, and
// under cgroup/CONTROLLER/ the lists root, child and kubepods of cgroupFiles, so that no name of a cgroup but the kubelet's own gets in. The resctrl tree is under resctrl/, see
// recordTree for what is different there.
const (
	header      = "# tideline snapshot v1"
	maxSnapshot = 4 << 20
)

// Snapshot writes one text file with all that ReadFacts reads, the resctrl tree, and nothing else. It holds no host name, address, serial
// number, kernel command line, mount but those of cgroups and resctrl, task, or name of a pod, a container or a resctrl group of others.
func Snapshot(h *Host, w io.Writer) error {
	root, err := os.OpenRoot(h.root)
	if err != nil {
		return fmt.Errorf("take snapshot: %w", err)
	}
	defer root.Close()
	rec := &recorder{source: live{root}, files: map[string]string{}}
	facts := readFacts(rec)
	now := time.Now
	if h.Clock != nil {
		now = h.Clock
	}
	archive := &txtar.Archive{Comment: fmt.Appendf(nil, "%s\n# kernel: %s\n# date: %s\n", header, facts.Kernel, now().UTC().Format(time.RFC3339))}
	if facts.Resctrl != nil {
		recordTree(openTree(h.root, facts.Resctrl.Mount.Point), rec.keep)
	}
	rec.keep("page-size", strconv.FormatInt(facts.PageSizeBytes, 10))
	for _, name := range sortedKeys(rec.files) {
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(rec.files[name])})
	}
	data := txtar.Format(archive)
	if len(data) > maxSnapshot {
		return fmt.Errorf("take snapshot: %d bytes, more than %d", len(data), maxSnapshot)
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// recorder keeps what readers see, less what is nobody's business.
type recorder struct {
	source
	files map[string]string
}

func (r *recorder) text(name string) (string, error) {
	text, err := r.source.text(name)
	if err != nil {
		return "", err
	}
	text = redact(name, text)
	r.keep(name, text)
	return text, nil
}

func (r *recorder) cgroups(mount, controller string, version int) (cgroupFiles, error) {
	files, err := r.source.cgroups(mount, controller, version)
	if err != nil {
		return files, err
	}
	at := "cgroup/" + controller + "/"
	r.keep(at+"root", strings.Join(files.root, "\n"))
	if files.child != nil {
		r.keep(at+"child", strings.Join(files.child, "\n"))
	}
	if len(files.kubepods) > 0 {
		r.keep(at+"kubepods", strings.Join(files.kubepods, "\n"))
	}
	return files, nil
}

// keep stores a text as txtar can hold it: it ends in a newline and has no line that looks like a file's head. No kernel file has one.
func (r *recorder) keep(name, text string) {
	text = strings.TrimRight(text, "\n")
	if text != "" {
		text += "\n"
	}
	if strings.HasPrefix(text, "-- ") || strings.Contains(text, "\n-- ") {
		return
	}
	r.files[name] = text
}

// redact leaves the lines that readFacts uses.
func redact(name, text string) string {
	switch base := path.Base(name); {
	case base == "meminfo":
		return lines(text, func(line string) bool { return strings.Contains(line, "MemTotal:") })
	case name == "proc/filesystems":
		return lines(text, func(line string) bool { return slices.Contains(strings.Fields(line), "resctrl") })
	case name == "proc/self/mountinfo":
		return lines(text, func(line string) bool {
			// In a container the root is a path with its ID.
			mounts := cgroup.ParseMountinfo(line)
			if len(mounts) != 1 {
				return false
			}
			_, whole := mounts[0].Above()
			return whole
		})
	}
	return text
}

func lines(text string, keep func(string) bool) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if keep(line) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// FromSnapshot reads the facts out of a snapshot. The text is not trusted: it may be anything, of at most 4 MiB.
func FromSnapshot(data []byte) (Facts, error) {
	if len(data) > maxSnapshot {
		return Facts{}, fmt.Errorf("read snapshot: %d bytes, more than %d", len(data), maxSnapshot)
	}
	archive := txtar.Parse(data)
	if first, _, _ := strings.Cut(string(archive.Comment), "\n"); strings.TrimSpace(first) != header {
		return Facts{}, fmt.Errorf("read snapshot: the first line is not %q", header)
	}
	s := stored{files: map[string]string{}, dirs: map[string]map[string]bool{}}
	for _, file := range archive.Files {
		if !fs.ValidPath(file.Name) || len(file.Name) > 256 {
			return Facts{}, fmt.Errorf("read snapshot: bad file name %.80q", file.Name)
		}
		if _, ok := s.files[file.Name]; ok {
			return Facts{}, fmt.Errorf("read snapshot: file %q twice", file.Name)
		}
		s.files[file.Name] = string(file.Data)
		for name := file.Name; name != "."; name = path.Dir(name) {
			dir := path.Dir(name)
			if s.dirs[dir] == nil {
				s.dirs[dir] = map[string]bool{}
			}
			s.dirs[dir][path.Base(name)] = true
		}
	}
	f := readFacts(s)
	tree, copied, err := storedTree(s.files)
	if err != nil {
		return Facts{}, fmt.Errorf("read snapshot: %w", err)
	}
	if f.Resctrl != nil {
		f.Resctrl.Files, f.Resctrl.Copy = tree, copied
	}
	return f, nil
}

// stored is a snapshot as a source.
type stored struct {
	files map[string]string
	dirs  map[string]map[string]bool
}

func (s stored) text(name string) (string, error) {
	text, ok := s.files[name]
	if !ok {
		return "", fs.ErrNotExist
	}
	return text, nil
}

func (s stored) names(dir string) ([]string, error) {
	if s.dirs[dir] == nil {
		return nil, fs.ErrNotExist
	}
	return sortedKeys(s.dirs[dir]), nil
}

func (s stored) cgroups(_, controller string, _ int) (cgroupFiles, error) {
	var files cgroupFiles
	at := "cgroup/" + controller + "/"
	root, ok := s.files[at+"root"]
	if !ok {
		return files, fs.ErrNotExist
	}
	files.root = strings.Fields(root)
	if child, ok := s.files[at+"child"]; ok {
		files.child = append([]string{}, strings.Fields(child)...)
	}
	files.kubepods = strings.Fields(s.files[at+"kubepods"])
	return files, nil
}

func (s stored) pageSize() int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s.files["page-size"]), 10, 32)
	if err != nil || n <= 0 {
		return 0
	}
	return n
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
