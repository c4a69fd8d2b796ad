package resctrl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// hostile is a directory that looks like a resctrl tree and has ways out of it.
func hostile(t *testing.T) (root, secret string) {
	t.Helper()
	dir := t.TempDir()
	root, secret = filepath.Join(dir, "resctrl"), filepath.Join(dir, "secret")
	for name, text := range map[string]string{
		"secret/tasks": "42\n", "resctrl/schemata": "L3:0=f\n", "resctrl/tasks": "1\n2\n", "resctrl/info/last_cmd_status": "ok\n",
		"resctrl/g1/tasks": "3\n", "resctrl/g1/schemata": strings.Repeat("L3:0=f\n", 3), "resctrl/g1/mode": "shareable\n",
	} {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.Symlink(secret, filepath.Join(root, "out")),
		os.Symlink("g1", filepath.Join(root, "inside")),
		os.Symlink("../secret/tasks", filepath.Join(root, "g1/link")),
		unix.Mkfifo(filepath.Join(root, "g1/pipe"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	return root, secret
}

func TestOSStaysInside(t *testing.T) {
	t.Parallel()
	root, secret := hostile(t)
	files := OS(root)
	for _, name := range []string{
		"../secret/tasks", "g1/../../secret/tasks", "/etc/passwd", "out/tasks", "inside/tasks", "g1/link", "", "g1//tasks", "./tasks", "g1/",
	} {
		if text, err := files.ReadFile(name); err == nil {
			t.Errorf("read %q: %q", name, text)
		}
		if err := files.WriteFile(name, "x\n"); err == nil {
			t.Errorf("wrote %q", name)
		}
		if _, err := files.ReadDir(name); err == nil {
			t.Errorf("listed %q", name)
		}
		if name == "" {
			continue
		}
		if err := files.Mkdir(filepath.Join(name, "x")); name != "g1//tasks" && name != "./tasks" && name != "g1/" && err == nil {
			t.Errorf("made a directory in %q", name)
		}
	}
	for _, name := range []string{"../x", "out/x", ".", ""} {
		if err := errors.Join(files.Mkdir(name)); err == nil {
			t.Errorf("made %q", name)
		}
		if err := files.Rmdir(name); err == nil {
			t.Errorf("removed %q", name)
		}
		if err := files.Rename("g1", name); err == nil {
			t.Errorf("moved g1 to %q", name)
		}
		if err := files.Rename(name, "g2"); err == nil {
			t.Errorf("moved %q to g2", name)
		}
	}
	if text, err := os.ReadFile(filepath.Join(secret, "tasks")); err != nil || string(text) != "42\n" {
		t.Errorf("secret: %q, %v", text, err)
	}
}

func TestOSReadsAndWrites(t *testing.T) {
	t.Parallel()
	root, _ := hostile(t)
	files := OS(root)
	if err := files.WriteFile("g1/mode", "exclusive\n"); err != nil {
		t.Fatal(err)
	}
	if text, err := files.ReadFile("g1/mode"); err != nil || text != "exclusive\n" {
		t.Errorf("%q, %v", text, err)
	}
	list, err := files.ReadDir(".")
	if err != nil || !slices.Equal(list, []Entry{{"g1", true}, {"info", true}, {"schemata", false}, {"tasks", false}}) {
		t.Errorf("%v, %v", list, err)
	}
	if err := files.WriteFile("g1/new", "x"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a file was made: %v", err)
	}
	if _, err := files.ReadFile("g1/pipe"); err == nil {
		t.Error("read a pipe")
	}
	if err := files.WriteFile("g1/pipe", "x"); err == nil {
		t.Error("wrote a pipe")
	}
	if err := errors.Join(files.Mkdir("g2"), files.Rename("g2", "g3"), files.Rmdir("g3")); err != nil {
		t.Error(err)
	}
	if err := files.Rmdir("g1"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("%v", err)
	}
	if _, err := OS(filepath.Join(root, "nosuch")).ReadFile("tasks"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// An odd tree gives errors that name the file, and never a panic.
func TestOddTree(t *testing.T) {
	t.Parallel()
	root, _ := hostile(t)
	f := Open(OS(root))
	groups, err := f.Groups()
	if err != nil || len(groups) != 1 || groups[0].Name() != "g1" {
		t.Fatalf("%v, %v", groups, err)
	}
	_, err = groups[0].Schemata()
	var parse *ParseError
	if !errors.As(err, &parse) || parse.Part != "L3" {
		t.Errorf("the same resource three times: %v", err)
	}
	if _, err := f.Info(); err != nil {
		t.Errorf("info without resources: %v", err)
	}
}

// Every path works the same without openat2.
func TestWalk(t *testing.T) {
	t.Parallel()
	root, _ := hostile(t)
	base, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(base)
	for _, tt := range []struct {
		name string
		ok   bool
	}{{"tasks", true}, {"g1/tasks", true}, {".", true}, {"g1", true}, {"out/tasks", false}, {"inside/tasks", false}, {"g1/link", false}, {"nosuch/x", false}} {
		fd, err := walk(base, tt.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
}
