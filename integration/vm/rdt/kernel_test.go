package rdt

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDebianKernel patches the kernel of the virtual machines, if it is there.
func TestDebianKernel(t *testing.T) {
	files, err := filepath.Glob("../../../.cache/vm/linux-image-*/vmlinux")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("parts: no kernel in .cache/vm")
	}
	vmlinux, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	patched, err := Patch(vmlinux, Options{
		L3:      &Cache{Bits: 11, CLOSIDs: 16, Shareable: 0x600, CDP: true},
		MB:      &Bandwidth{CLOSIDs: 8, Max: 100, Min: 10, Step: 10},
		Monitor: &Monitor{RMIDs: 16, Unit: 65536},
	})
	if err != nil {
		t.Fatal(err)
	}
	var first, last, changed int
	for i := range patched {
		if patched[i] != vmlinux[i] {
			if changed == 0 {
				first = i
			}
			last = i
			changed++
		}
	}
	t.Logf("%d bytes of %d changed, from %#x to %#x", changed, len(vmlinux), first, last)
	if len(patched) != len(vmlinux) || changed == 0 || changed > 1024 {
		t.Errorf("%d bytes of %d changed", changed, len(vmlinux))
	}
}
