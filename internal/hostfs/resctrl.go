package hostfs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/tideline-io/tideline/internal/partition"
	"github.com/tideline-io/tideline/resctrl"
)

// Resctrl is the mounted resctrl of a machine.
type Resctrl struct {
	Mount resctrl.MountPoint
	Files resctrl.Files // nil in facts of a snapshot that was taken without the tree

	// Copy is set in facts of a snapshot: Files can't be changed, lists of tasks are empty, and names of groups that are not
	// ours are replaced.
	Copy *ResctrlCopy
}

// ResctrlCopy is what a copy of the tree has beside its files.
type ResctrlCopy struct {
	Tasks   map[string]int // how many, by resctrl.Group.Path
	LeftOut int            // control groups that were too many for a snapshot
}

// findResctrl finds the mount; there is nothing to be read for it.
func findResctrl(mountinfo string) *Resctrl {
	m, err := resctrl.FindMount(mountinfo)
	if err != nil {
		return nil
	}
	return &Resctrl{Mount: m}
}

// The tree in a snapshot. Files are as the kernel shows them, but of the tasks file there is the number of lines only, and
// last_cmd_status is left out, as it may hold task ids. Names of groups that are not ours may be those of pods, containers or customers: they
// are replaced by their place in the order of names, and so are all names of ours but plain ones.
const (
	treeDir     = "resctrl/"
	taskCount   = "tasks.count"
	leftOutFile = "left-out"

	maxTree     = 2 << 20  // bytes of a tree, names included
	maxTreeFile = 64 << 10 // bytes of one file, but of tasks
	maxGroups   = 1024     // control groups; no kernel has as many CLOSIDs
)

// recordTree copies the tree of a machine, without what a stranger should not read.
func recordTree(files resctrl.Files, keep func(name, text string)) {
	t := &treeRecorder{files: files, texts: map[string]string{}}
	t.dir("info", "info", 3)
	t.group(".", ".")
	groups := t.groups(".", func(name string) bool { return name != "info" && name != "mon_data" && name != "mon_groups" })
	left := 0
	for i, g := range groups {
		if i == maxGroups || !t.all(func() { t.group(g.real, g.shown) }) {
			left = len(groups) - i
			break
		}
	}
	for name, text := range t.texts {
		keep(treeDir+name, text)
	}
	if left > 0 {
		keep(treeDir+leftOutFile, strconv.Itoa(left))
	}
}

type treeRecorder struct {
	files resctrl.Files
	texts map[string]string
	size  int
}

// all keeps what do adds only if all of it has room.
func (t *treeRecorder) all(do func()) bool {
	before, size := t.texts, t.size
	t.texts = map[string]string{}
	do()
	added := t.texts
	t.texts = before
	if t.size > maxTree {
		t.size = size
		return false
	}
	for name, text := range added {
		t.texts[name] = text
	}
	return true
}

func (t *treeRecorder) put(name, text string) {
	t.texts[name] = text
	t.size += len(treeDir) + len(name) + len(text) + len("--  --\n")
}

// file copies a file, if it is there.
func (t *treeRecorder) file(from, to string) {
	if t.size > maxTree {
		return
	}
	if text, err := t.files.ReadFile(from); err == nil && len(text) <= maxTreeFile && plainText(text) {
		t.put(to, text)
	}
}

func (t *treeRecorder) dir(from, to string, depth int) {
	list, err := t.files.ReadDir(from)
	if err != nil || depth == 0 {
		return
	}
	for _, e := range list {
		switch {
		case e.Name == "last_cmd_status" || !plainName(e.Name):
		case e.Dir:
			t.dir(from+"/"+e.Name, to+"/"+e.Name, depth-1)
		default:
			t.file(from+"/"+e.Name, to+"/"+e.Name)
		}
	}
}

// group copies a control or monitoring group and, of a control group, its monitoring groups.
func (t *treeRecorder) group(from, to string) {
	text, err := t.files.ReadFile(path.Join(from, "tasks"))
	if errors.Is(err, fs.ErrNotExist) {
		return // it was removed meanwhile
	}
	if err == nil {
		t.put(path.Join(to, taskCount), strconv.Itoa(strings.Count(text, "\n")))
	}
	for _, name := range []string{"schemata", "size", "mode", "cpus_list", "ctrl_hw_id", "mon_hw_id", "mbm_L3_assignments"} {
		t.file(path.Join(from, name), path.Join(to, name))
	}
	t.dir(path.Join(from, "mon_data"), path.Join(to, "mon_data"), 3)
	for _, g := range t.groups(path.Join(from, "mon_groups"), func(string) bool { return true }) {
		t.group(g.real, path.Join(to, "mon_groups", path.Base(g.shown)))
	}
}

type shownGroup struct{ real, shown string }

// groups lists the groups in a directory, by the name that is shown.
func (t *treeRecorder) groups(dir string, is func(name string) bool) []shownGroup {
	list, err := t.files.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	replaced := 0
	for _, e := range list {
		if e.Dir && is(e.Name) {
			names = append(names, e.Name)
			if !isOurs(e.Name) {
				replaced++
			}
		}
	}
	slices.Sort(names)
	groups := make([]shownGroup, 0, len(names))
	digits, n := len(strconv.Itoa(replaced)), 0
	for _, name := range names {
		g := shownGroup{real: path.Join(dir, name), shown: name}
		if !isOurs(name) {
			n++
			word := "foreign"
			if dir != "." {
				word = "mon"
			}
			g.shown = fmt.Sprintf("%s-%0*d", word, digits, n)
		}
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b shownGroup) int { return cmp.Compare(a.shown, b.shown) })
	return groups
}

func isOurs(name string) bool { return strings.HasPrefix(name, partition.Prefix) && plainName(name) }

// plainName is one that can't be mistaken for anything else in a snapshot.
func plainName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && c != '-' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return len(name) <= 48 && strings.Trim(name, ".") != ""
}

func plainPath(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if !plainName(part) {
			return false
		}
	}
	return true
}

// plainText is one that a terminal prints as it is.
func plainText(text string) bool {
	for i := range len(text) {
		if c := text[i]; c != '\n' && c != '\t' && (c < ' ' || c > '~') {
			return false
		}
	}
	return true
}

// storedTree makes the copy of a snapshot's tree. There is none in snapshots of older versions.
func storedTree(files map[string]string) (resctrl.Files, *ResctrlCopy, error) {
	c := &ResctrlCopy{Tasks: map[string]int{}}
	archive := &txtar.Archive{}
	size, groups := 0, 0
	add := func(name, text string) {
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(text)})
	}
	for _, at := range sortedKeys(files) {
		name, ok := strings.CutPrefix(at, treeDir)
		if !ok {
			continue
		}
		text := files[at]
		if !plainPath(name) || !plainText(text) {
			return nil, nil, fmt.Errorf("%.80q: a name or text that no snapshot has", at)
		}
		if size += len(at) + len(text); size > maxTree+maxTreeFile || len(text) > maxTreeFile {
			return nil, nil, fmt.Errorf("%.80q: the resctrl tree has more than %d bytes, or this file more than %d", at, maxTree, maxTreeFile)
		}
		switch base := path.Base(name); {
		case name == leftOutFile:
			n, err := parseCount(at, text)
			if err != nil {
				return nil, nil, err
			}
			c.LeftOut = n
		case base == taskCount:
			n, err := parseCount(at, text)
			if err != nil {
				return nil, nil, err
			}
			c.Tasks[path.Dir(name)] = n
			if strings.Count(name, "/") == 1 {
				groups++
			}
			if groups > maxGroups {
				return nil, nil, fmt.Errorf("resctrl tree: more than %d groups", maxGroups)
			}
			add(path.Join(path.Dir(name), "tasks"), "") // a group is known by this file
		case base == "tasks":
			return nil, nil, fmt.Errorf("%.80q: a snapshot has no lists of tasks", at)
		default:
			add(name, text)
		}
	}
	if len(archive.Files) == 0 {
		return nil, nil, nil
	}
	tree, err := txtar.FS(archive)
	if err != nil {
		return nil, nil, fmt.Errorf("resctrl tree: %w", err)
	}
	return resctrl.FromFS(tree), c, nil
}

func parseCount(name, text string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%.80q: no number: %.40q", name, strings.TrimSpace(text))
	}
	return int(n), nil
}

// openTree is the tree of a machine whose root is there.
func openTree(root, point string) resctrl.Files { return resctrl.OS(filepath.Join(root, point)) }
