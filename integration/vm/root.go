package vm

import (
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// freeMiB is what a guest can write to its root. The image is sparse.
const freeMiB = 4096

// standard are the small files that programs expect, by guest path.
var standard = map[string]string{
	"/etc/group":         "root:x:0:\n",
	"/etc/hostname":      "vm\n",
	"/etc/hosts":         "127.0.0.1 localhost vm\n",
	"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	"/etc/passwd":        "root:x:0:0:root:/root:/bin/sh\n",
	"/etc/resolv.conf":   "",
}

// directories of every root, besides those of files.
var directories = []string{
	"/dev", "/mnt", "/opt", "/proc", "/results", "/root", "/run", "/sbin", "/sys", "/tmp", "/usr/bin", "/usr/sbin", "/var/lib", "/var/log",
}

// writeRoot makes the guest's disk: it collects the tree in dir and makes a
// file system of it, without mounting anything.
func writeRoot(ctx context.Context, image, dir string, inst installation, cfg Config) error {
	t := tree{ctx: ctx, dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := standard
	if cfg.Init == Systemd {
		spec, err := json.Marshal(cfg.spec())
		if err != nil {
			return err
		}
		if err := t.addSystemd(inst, spec); err != nil {
			return err
		}
		files = maps.Clone(standard)
		maps.Copy(files, systemdFiles)
	}
	for _, d := range directories {
		if err := os.MkdirAll(t.host(d), 0o755); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := t.write(name, files[name]); err != nil {
			return err
		}
	}
	if err := t.copy("/bin/busybox", inst.busybox); err != nil {
		return err
	}
	applets, err := output(exec.CommandContext(ctx, inst.busybox, "--list"))
	if err != nil {
		return err
	}
	for _, a := range strings.Fields(string(applets)) {
		if _, err := os.Lstat(t.host("/bin/" + a)); err == nil {
			continue // itself, or the real one
		}
		if err := t.link("/bin/"+a, "busybox"); err != nil {
			return err
		}
	}
	if err := t.link("/var/run", "/run"); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Files)) {
		if err := t.copy(name, cfg.Files[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Links)) {
		if err := t.link(name, cfg.Links[name]); err != nil {
			return err
		}
	}
	// A journal would only slow down a disk that nobody reads after the run.
	size := fmt.Sprintf("%dM", t.bytes>>20+freeMiB)
	_, err = output(exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", dir, image, size))
	return err
}

// tree collects the files of a root in a directory of the host.
type tree struct {
	ctx   context.Context
	dir   string
	bytes int64 // of all files
}

func (t *tree) host(guest string) string { return filepath.Join(t.dir, guest) }

func (t *tree) write(guest, text string) error {
	if err := os.MkdirAll(filepath.Dir(t.host(guest)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(t.host(guest), []byte(text), 0o644)
}

// link replaces what is there, as copy does: a caller's file may have the name
// of an applet.
func (t *tree) link(guest, target string) error {
	to := t.host(guest)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Symlink(target, to)
}

// copy copies a file or a directory with all that is in it. Symbolic links
// inside a directory are kept, others are followed.
func (t *tree) copy(guest, host string) error {
	host, err := filepath.EvalSymlinks(host)
	if err != nil {
		return fmt.Errorf("copy to %s: %w", guest, err)
	}
	err = filepath.WalkDir(host, func(from string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(host, from)
		if err != nil {
			return err
		}
		name := filepath.Join(guest, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			if err := os.MkdirAll(t.host(name), 0o755); err != nil {
				return err
			}
			return os.Chmod(t.host(name), mode(info))
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(from)
			if err != nil {
				return err
			}
			return t.link(name, target)
		case d.Type().IsRegular():
			return t.file(name, from, info)
		}
		return fmt.Errorf("%s is neither a file, a directory nor a symbolic link", from)
	})
	if err != nil {
		return fmt.Errorf("copy to %s: %w", guest, err)
	}
	return nil
}

// mode are the bits that survive a copy.
func mode(info fs.FileInfo) fs.FileMode {
	return info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

func (t *tree) file(guest, host string, info fs.FileInfo) error {
	to := t.host(guest)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	in, err := os.Open(host)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	n, err := io.Copy(out, in)
	if err != nil {
		return err
	}
	t.bytes += n
	// Not by os.OpenFile, as the umask cuts the mode of a new file.
	if err := out.Chmod(mode(info)); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return t.libraries(host)
}

// libraries adds the shared libraries of a dynamically linked program at their
// own paths.
func (t *tree) libraries(program string) error {
	dynamic, err := isDynamic(program)
	if err != nil || !dynamic {
		return err
	}
	out, err := output(exec.CommandContext(t.ctx, "ldd", program))
	if err != nil {
		return err
	}
	files, err := parseLdd(string(out))
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	for _, f := range files {
		if _, err := os.Lstat(t.host(f)); err == nil {
			continue
		}
		if err := t.copy(f, f); err != nil {
			return err
		}
	}
	return nil
}

// isDynamic reports whether a file is a program that asks for a loader.
func isDynamic(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || string(magic[:]) != elf.ELFMAG {
		return false, nil // too short is no program either
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", file, err)
	}
	return slices.ContainsFunc(e.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
}

// parseLdd reads the files of
//
//	linux-vdso.so.1 (0x00007ffd5a1e8000)
//	libseccomp.so.2 => /lib/x86_64-linux-gnu/libseccomp.so.2 (0x00007f1e0e6a5000)
//	/lib64/ld-linux-x86-64.so.2 (0x00007f1e0e8d0000)
func parseLdd(out string) ([]string, error) {
	var files []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "not found") {
			return nil, fmt.Errorf("parse ldd: %s", line)
		}
		if _, right, ok := strings.Cut(line, " => "); ok {
			line = right
		}
		if file, _, ok := strings.Cut(line, " ("); ok && filepath.IsAbs(file) {
			files = append(files, file)
		}
	}
	return files, nil
}
