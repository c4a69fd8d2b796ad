package vm

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tideline-io/tideline/integration/vm/rdt"
)

// patchKernel makes the kernel whose resctrl sees the hardware of o, and returns its file. Its name in the cache has the
// hashes of what it is made from: the kernel and the patcher, and the options.
func patchKernel(cache, vmlinux string, o rdt.Options, progress io.Writer) (string, error) {
	image, err := os.ReadFile(vmlinux)
	if err != nil {
		return "", err
	}
	options, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	source := fmt.Sprintf("resctrl-%.6x-%.6x-", sha256.Sum256(image), sha256.Sum256([]byte(rdt.Sources())))
	dir := filepath.Join(cache, source+fmt.Sprintf("%.6x", sha256.Sum256(options)))
	return filepath.Join(dir, "vmlinux"), once(dir, func(dir string) error {
		if err := removeOthers(cache, source); err != nil {
			return err
		}
		fmt.Fprintln(progress, "vm: waking the kernel's resctrl")
		patched, err := rdt.Patch(image, o)
		if err != nil {
			return fmt.Errorf("%s: %w", vmlinux, err)
		}
		return os.WriteFile(filepath.Join(dir, "vmlinux"), patched, 0o644)
	})
}

// removeOthers removes what was made from another kernel or by another patcher: nothing leads there any more, and each is
// as large as the kernel.
func removeOthers(cache, source string) error {
	dirs, err := filepath.Glob(filepath.Join(cache, "resctrl-*"))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if strings.HasPrefix(filepath.Base(d), source) {
			continue
		}
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	return nil
}
