package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/internal/policy"
)

// Entry is a value that a write of ours replaced.
type Entry struct {
	Path       Path        `json:"-"`
	Knob       policy.Knob `json:"knob"`
	Controller string      `json:"controller"`
	File       string      `json:"file"`
	Old        string      `json:"old"` // the first value that we replaced; the kernel's text, which differs from the knob's format for cpu.weight and for memory.max of v1
	New        string      `json:"new"` // the last value that we wrote, likewise
	When       time.Time   `json:"when"`
	ID         ID          `json:"id"` // the cgroup it belongs to, in the controller's hierarchy
}

// journal keeps one file a cgroup. A file lives from the first write until everything in it is undone or forgotten:
//
//	add     before the kernel's file is touched; keeps the Old of an entry that stands for the same cgroup
//	drop    after Undo brought values back, or found the cgroup gone or made anew
//	forget  the caller knows that the cgroup is gone
//
// Files are replaced by rename and not synced: the directory dies with the boot, as cgroups do.
type journal struct {
	dir   string
	boot  string
	clock func() time.Time
}

// record is a journal file.
type record struct {
	Version int     `json:"version"`
	Path    Path    `json:"path"`
	Boot    string  `json:"boot"`
	Entries []Entry `json:"entries"`
}

// save is what a write is going to replace.
type save struct {
	control
	id       ID // of the cgroup, in the controller's hierarchy
	old, new string
}

// ledger is the journal of one cgroup while its lock is held: it is read once.
type ledger struct {
	*journal
	path    Path
	read    bool
	entries []Entry
}

func (j *journal) of(p Path) *ledger { return &ledger{journal: j, path: p} }

const (
	recordVersion = 1
	recordSuffix  = ".json"
	maxRecord     = 1 << 20
)

// fileName is the escaped path ("kubepods%2Fburstable%2F…"), which url.PathUnescape turns back, or a hash if that is
// too long for a file name. The file itself names the path too.
func fileName(p Path) string {
	name := url.PathEscape(strings.TrimPrefix(string(p), "/"))
	if strings.HasPrefix(name, ".") {
		name = "%2E" + name[1:]
	}
	if len(name) > 200 {
		sum := sha256.Sum256([]byte(p))
		name = "sha256-" + hex.EncodeToString(sum[:])
	}
	return name + recordSuffix
}

// load returns the entries of a cgroup, none if there is no file. A file of another boot is removed: its cgroups are gone.
func (j *journal) load(p Path) ([]Entry, error) {
	return j.loadFile(fileName(p), p)
}

// loadFile reads one file; with p "" the file says whose it is.
func (j *journal) loadFile(name string, p Path) ([]Entry, error) {
	file := filepath.Join(j.dir, name)
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	r, err := parseRecord(data)
	if err == nil && (fileName(r.Path) != name || p != "" && r.Path != p) {
		err = fmt.Errorf("it is about %q", r.Path)
	}
	if err != nil {
		return nil, j.setAside(file, err)
	}
	if r.Boot != j.boot {
		return nil, j.remove(name)
	}
	for i := range r.Entries {
		r.Entries[i].Path = r.Path
	}
	return r.Entries, nil
}

func parseRecord(data []byte) (record, error) {
	var r record
	if len(data) > maxRecord {
		return r, fmt.Errorf("longer than %d bytes", maxRecord)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Version != recordVersion {
		return r, fmt.Errorf("version %d, want %d", r.Version, recordVersion)
	}
	if err := checkPath(string(r.Path)); err != nil {
		return r, err
	}
	for _, e := range r.Entries {
		// Undo writes these values: they have to name a place that a write of ours can have saved.
		known := slices.ContainsFunc(append(controls(1, e.Knob), controls(2, e.Knob)...), func(c control) bool {
			return c.file == e.File && c.controller == e.Controller
		})
		if !known {
			return r, fmt.Errorf("unknown file %q of knob %q", e.File, e.Knob)
		}
		if err := permit(r.Path, e.Knob); err != nil {
			return r, err
		}
	}
	return r, nil
}

// setAside renames a file that can't be understood, so that it is neither guessed at nor lost.
func (j *journal) setAside(file string, why error) error {
	for i := range 100 {
		aside := file + ".corrupt-" + strconv.Itoa(i)
		if _, err := os.Lstat(aside); err == nil {
			continue
		}
		if err := os.Rename(file, aside); err != nil {
			return fmt.Errorf("%w: %s: %w; set aside: %w", ErrCorrupt, file, why, err)
		}
		return fmt.Errorf("%w: %s: %w; see %s", ErrCorrupt, file, why, aside)
	}
	return fmt.Errorf("%w: %s: %w; too many are set aside already", ErrCorrupt, file, why)
}

func (l *ledger) load() ([]Entry, error) {
	if l.read {
		return l.entries, nil
	}
	entries, err := l.journal.load(l.path)
	if err == nil {
		l.entries, l.read = entries, true
	}
	return entries, err
}

// add records what is about to be replaced. An entry of the same cgroup keeps its Old; one of a cgroup that was
// removed and made again under the name does not count.
func (l *ledger) add(saves []save) error {
	if len(saves) == 0 {
		return nil
	}
	stored, err := l.load()
	if err != nil {
		return err
	}
	entries := slices.Clone(stored)
	changed := false
	for _, s := range saves {
		e := Entry{
			Path: l.path, Knob: s.knob, Controller: s.controller, File: s.file,
			Old: s.old, New: s.new, When: l.clock().UTC(), ID: s.id,
		}
		i := slices.IndexFunc(entries, func(e Entry) bool { return e.Knob == s.knob && e.File == s.file })
		switch {
		case i < 0:
			entries = append(entries, e)
		case entries[i].ID != e.ID:
			entries[i] = e
		case entries[i].New == e.New:
			continue
		default:
			e.Old = entries[i].Old
			entries[i] = e
		}
		changed = true
	}
	if !changed {
		return nil
	}
	if err := l.store(l.path, entries); err != nil {
		return err
	}
	l.entries = entries
	return nil
}

// store replaces a cgroup's file, or removes it if nothing is left.
func (j *journal) store(p Path, entries []Entry) error {
	name := fileName(p)
	if len(entries) == 0 {
		return j.remove(name)
	}
	data, err := json.MarshalIndent(record{recordVersion, p, j.boot, entries}, "", " ")
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	f, err := os.CreateTemp(j.dir, ".new-*")
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write journal: %w", errors.Join(err, os.Remove(f.Name())))
	}
	if err := os.Rename(f.Name(), filepath.Join(j.dir, name)); err != nil {
		return fmt.Errorf("write journal: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

func (j *journal) remove(name string) error {
	if err := os.Remove(filepath.Join(j.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("drop journal: %w", err)
	}
	return nil
}

// all returns every entry, sorted by path, and joins what could not be read.
func (j *journal) all() ([]Entry, error) {
	files, err := os.ReadDir(j.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	var all []Entry
	var errs []error
	for _, file := range files {
		if strings.HasPrefix(file.Name(), ".") || !strings.HasSuffix(file.Name(), recordSuffix) {
			continue
		}
		entries, err := j.loadFile(file.Name(), "")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, entries...)
	}
	slices.SortStableFunc(all, func(a, b Entry) int { return strings.Compare(string(a.Path), string(b.Path)) })
	return all, errors.Join(errs...)
}
