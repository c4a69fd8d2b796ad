package cgroup

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/internal/policy"
)

// The walk by hand, for kernels without openat2, follows nothing either.
func TestWalk(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	if err := errors.Join(os.MkdirAll(top+"/a/b", 0o755), os.Symlink("a", top+"/link"), os.Symlink("/", top+"/a/root"), os.WriteFile(top+"/file", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	base, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(base)
	var st unix.Stat_t
	if err := unix.Fstat(base, &st); err != nil {
		t.Fatal(err)
	}
	for _, open := range []func(int, uint64, string) (int, error){walk, openBeneath} {
		for path, want := range map[string]error{
			"a": nil, "a/b": nil, ".": nil,
			"a/none": fs.ErrNotExist, "none/b": fs.ErrNotExist,
			"link": unix.ENOTDIR, "link/b": unix.ENOTDIR, "a/root": unix.ENOTDIR, "a/root/proc": unix.ENOTDIR, "file": unix.ENOTDIR,
		} {
			fd, err := open(base, st.Dev, path)
			if err == nil {
				unix.Close(fd)
			}
			// openat2 says ELOOP of a link on the way.
			if !errors.Is(err, want) && !errors.Is(err, unix.ELOOP) || want == nil && err != nil {
				t.Errorf("open %s: %v, want %v", path, err, want)
			}
		}
	}
	if _, err := walk(base, st.Dev+1, "a"); !errors.Is(err, unix.EXDEV) {
		t.Errorf("another file system: %v", err)
	}
}

// From github.com/opencontainers/cgroups; the ends and the defaults have to match exactly.
func TestWeightOf(t *testing.T) {
	t.Parallel()
	for shares, want := range map[uint64]uint64{0: 1, 2: 1, 51: 11, 102: 17, 256: 35, 512: 59, 1024: 100, 2048: 174, 4096: 303, 8192: 532, 65536: 3023, 262144: 10000, math.MaxUint64: 10000} {
		if got := weightOf(shares); got != want {
			t.Errorf("weightOf(%d) = %d, want %d", shares, got, want)
		}
	}
}

func TestFileNamesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]Path{}
	for _, p := range []Path{"/a/b", "/a%2Fb", "/a-b", "/.a", "/%2Ea", "/a.json", "/" + Path(strings.Repeat("a", 201)), "/" + Path(strings.Repeat("a", 202))} {
		name := fileName(p)
		if other, ok := seen[name]; ok || len(name) > 255 || strings.Contains(name, "/") || strings.HasPrefix(name, ".") {
			t.Errorf("%s and %s: file name %q", p, other, name)
		}
		seen[name] = p
	}
}

// Undo writes what a journal says, so nothing that a write of ours can't have saved gets through.
func FuzzJournal(f *testing.F) {
	good, err := json.Marshal(record{recordVersion, "/kubepods/pod7f/x", "boot", []Entry{{Knob: policy.CPUIdle, Controller: "cpu", File: "cpu.idle", Old: "0", New: "1"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1,"path":"/kubepods","entries":[{"knob":"cpu.weight","controller":"cpu","file":"cpu.shares"}]}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord(data)
		if err != nil {
			return
		}
		if r.Path != Path(filepath.Clean(string(r.Path))) || r.Path == "/" {
			t.Errorf("path %q", r.Path)
		}
		for _, e := range r.Entries {
			if strings.Contains(e.File, "/") || permit(r.Path, e.Knob) != nil {
				t.Errorf("entry %+v", e)
			}
		}
	})
}

func FuzzIOMax(f *testing.F) {
	f.Add("254:0 rbps=1048576 wbps=max riops=max wiops=max\n8:0 wiops=5000000000\n")
	f.Add("8:0\n\n 8:1 rbps=0")
	f.Fuzz(func(t *testing.T, text string) {
		once, err := formatIOMax(text)
		if err != nil {
			return
		}
		if twice, err := formatIOMax(once); err != nil || twice != once {
			t.Errorf("%q -> %q -> %q, %v", text, once, twice, err)
		}
	})
}
