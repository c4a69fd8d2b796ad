package vm

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTreeCopiesModesLinksAndDirectories(t *testing.T) {
	host := t.TempDir()
	mustWrite := func(name, text string, mode fs.FileMode) {
		t.Helper()
		file := filepath.Join(host, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	mustWrite("dir/sub/prog", "#!/bin/sh\n", 0o755)
	mustWrite("dir/secret", "s", 0o400)
	mustWrite("suid", "u", 0o4755|fs.ModeSetuid)
	for link, target := range map[string]string{"dir/inside": "sub/prog", "outside": "suid"} {
		if err := os.Symlink(target, filepath.Join(host, link)); err != nil {
			t.Fatal(err)
		}
	}
	tr := tree{ctx: t.Context(), dir: t.TempDir()}
	if err := tr.link("/bin/ls", "busybox"); err != nil {
		t.Fatal(err)
	}
	for guest, from := range map[string]string{"/opt/d": "dir", "/bin/ls": "outside"} {
		if err := tr.copy(guest, filepath.Join(host, from)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	err := filepath.WalkDir(tr.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == tr.dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(tr.dir, p)
		target, _ := os.Readlink(p)
		got = append(got, strings.TrimSpace(info.Mode().String()+" "+rel+" "+target))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"drwxr-xr-x bin", "urwxr-xr-x bin/ls",
		"drwxr-xr-x opt", "drwxr-xr-x opt/d",
		"Lrwxrwxrwx opt/d/inside sub/prog", "-r-------- opt/d/secret",
		"drwxr-xr-x opt/d/sub", "-rwxr-xr-x opt/d/sub/prog",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestParseLdd(t *testing.T) {
	// Debian 12, ldd of runc 1.1.5.
	const sample = "\tlinux-vdso.so.1 (0x00007ffd5a1e8000)\n" +
		"\tlibseccomp.so.2 => /lib/x86_64-linux-gnu/libseccomp.so.2 (0x00007f1e0e6a5000)\n" +
		"\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1e0e4c4000)\n" +
		"\t/lib64/ld-linux-x86-64.so.2 (0x00007f1e0e8d0000)\n"
	got, err := parseLdd(sample)
	want := []string{"/lib/x86_64-linux-gnu/libseccomp.so.2", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err := parseLdd("\tlibx.so.1 => not found\n"); err == nil {
		t.Errorf("a missing library: got %v and no error", got)
	}
}

func TestParseDepends(t *testing.T) {
	// Debian 12, apt-cache depends --important.
	got, err := parseDepends("linux-image-6.12-cloud-amd64\n  Depends: linux-image-6.12.117+deb12-cloud-amd64\n")
	if want := "linux-image-6.12.117+deb12-cloud-amd64"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if got, err := parseDepends("busybox\n"); err == nil {
		t.Errorf("without dependencies: got %q and no error", got)
	}
}
