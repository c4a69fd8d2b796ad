package resctrl

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindMount(t *testing.T) {
	t.Parallel()
	const other = "22 1 0:21 / /sys rw,nosuid - sysfs sysfs rw\n"
	for _, tt := range []struct {
		name, text string
		want       MountPoint
		err        error
	}{
		{"none", other, MountPoint{}, ErrNotMounted},
		{"empty", "", MountPoint{}, ErrNotMounted},
		{"plain", other + "36 22 0:31 / /sys/fs/resctrl rw,relatime shared:9 - resctrl resctrl rw\n", MountPoint{Point: "/sys/fs/resctrl"}, nil},
		{"options", "36 22 0:31 / /sys/fs/resctrl rw - resctrl none rw,cdp,cdpl2,mba_MBps,debug,seclabel,later=1\n",
			MountPoint{Point: "/sys/fs/resctrl", Options: MountOptions{CDP: true, CDPL2: true, MBps: true, Debug: true}, Other: []string{"later=1"}}, nil},
		{"read-only bind", "36 22 0:31 / /sys/fs/resctrl ro,relatime - resctrl resctrl rw\n", MountPoint{Point: "/sys/fs/resctrl", ReadOnly: true}, nil},
		{"read-only file system", "36 22 0:31 / /sys/fs/resctrl rw - resctrl resctrl ro\n", MountPoint{Point: "/sys/fs/resctrl", ReadOnly: true}, nil},
		{"the last hides the first", "36 22 0:31 / /sys/fs/resctrl ro - resctrl resctrl rw\n37 22 0:31 / /sys/fs/resctrl rw - resctrl resctrl rw\n",
			MountPoint{Point: "/sys/fs/resctrl"}, nil},
		{"one group only", "36 22 0:31 /g1 /mnt rw - resctrl resctrl rw\n", MountPoint{}, ErrNotMounted},
		{"spaces", "36 22 0:31 / /a\\040b rw - resctrl resctrl rw\n", MountPoint{Point: "/a b"}, nil},
		{"odd lines", "x\n - \n1 - resctrl resctrl rw\n36 22 0:31 / a rw - resctrl resctrl rw\n", MountPoint{}, ErrNotMounted},
	} {
		got, err := FindMount(tt.text)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestCheckMount(t *testing.T) {
	t.Parallel()
	m := MountPoint{Point: "/sys/fs/resctrl", Options: MountOptions{CDP: true, Debug: true}}
	if err := m.Check(MountOptions{CDP: true}); err != nil {
		t.Error(err)
	}
	err := m.Check(MountOptions{})
	var options *OptionsError
	if !errors.As(err, &options) || options.Have != m.Options {
		t.Errorf("%v", err)
	}
	const want = "resctrl is mounted at /sys/fs/resctrl with options cdp,debug, not with no options: unmount it first, which removes all groups"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	m.ReadOnly = true
	if err := m.Check(MountOptions{CDP: true}); !errors.Is(err, ErrReadOnly) {
		t.Error(err)
	}
	if got := (MountOptions{CDP: true, CDPL2: true, MBps: true, Debug: true}).String(); got != "cdp,cdpl2,mba_MBps,debug" {
		t.Error(got)
	}
}

func TestLocate(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if _, err := Locate(root); errors.Is(err, ErrNotSupported) || errors.Is(err, ErrNotMounted) || err == nil {
		t.Errorf("without /proc it is unknown: %v", err)
	}
	proc := filepath.Join(root, "proc/self")
	if err := os.MkdirAll(proc, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(proc, "mountinfo"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	if _, err := Locate(root); !errors.Is(err, ErrNotSupported) {
		t.Errorf("without the mount point: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(root, DefaultPoint), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Locate(root); !errors.Is(err, ErrNotMounted) {
		t.Errorf("with it: %v", err)
	}
	write("36 22 0:31 / /sys/fs/resctrl rw - resctrl resctrl rw\n")
	if m, err := Locate(root); err != nil || m.Point != DefaultPoint {
		t.Errorf("%+v, %v", m, err)
	}
}

func FuzzFindMount(f *testing.F) {
	f.Add("36 22 0:31 / /sys/fs/resctrl rw,relatime shared:9 - resctrl resctrl rw,cdp\n")
	f.Add("36 22 0:31 / /a\\040b\\ rw - resctrl resctrl rw\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := FindMount(text)
		if (err == nil) != (m.Point != "") {
			t.Fatalf("%+v, %v", m, err)
		}
	})
}
