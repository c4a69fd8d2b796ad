package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kernel is an unpacked kernel package.
type kernel struct {
	dir     string // the package's tree
	vmlinux string // its ELF kernel
}

// writeVmlinux unpacks the one kernel of a package tree. QEMU starts an ELF
// kernel directly (PVH); the compressed one would unpack itself in the emulated
// machine, which takes 10 s.
func writeVmlinux(ctx context.Context, dir string) error {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil {
		return err
	}
	if len(images) != 1 {
		return fmt.Errorf("find kernel: got %v, want one in %s", images, dir)
	}
	image, err := os.ReadFile(images[0])
	if err != nil {
		return err
	}
	p, err := parseBzImage(image)
	if err != nil {
		return fmt.Errorf("read %s: %w", images[0], err)
	}
	cmd := exec.CommandContext(ctx, p.tool[0], p.tool[1:]...)
	cmd.Stdin = bytes.NewReader(p.data)
	vmlinux, err := output(cmd)
	if err != nil {
		return err
	}
	if len(vmlinux) != p.size {
		return fmt.Errorf("unpack %s: got %d bytes, want %d", images[0], len(vmlinux), p.size)
	}
	return os.WriteFile(filepath.Join(dir, "vmlinux"), vmlinux, 0o644)
}

// payload is the compressed ELF kernel of a bzImage.
type payload struct {
	data []byte
	size int // unpacked
	tool []string
}

// parseBzImage finds the payload by the boot protocol's header, see
// https://docs.kernel.org/arch/x86/boot.html. The last four bytes of the
// payload are its unpacked size.
func parseBzImage(image []byte) (payload, error) {
	const header, setupSectors, payloadOffset, payloadLength, end = 0x202, 0x1f1, 0x248, 0x24c, 0x250
	if len(image) < end || string(image[header:header+4]) != "HdrS" {
		return payload{}, errors.New("no bzImage")
	}
	sectors := int(image[setupSectors])
	if sectors == 0 {
		sectors = 4
	}
	start := uint64(sectors+1)*512 + uint64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	length := uint64(binary.LittleEndian.Uint32(image[payloadLength:]))
	if length < 8 || start+length > uint64(len(image)) {
		return payload{}, fmt.Errorf("payload at %d of %d bytes is outside the image of %d", start, length, len(image))
	}
	data := image[start : start+length]
	p := payload{data: data[:length-4], size: int(binary.LittleEndian.Uint32(data[length-4:]))}
	switch {
	case bytes.HasPrefix(data, []byte("\x28\xb5\x2f\xfd")):
		p.tool = []string{"zstd", "-dc"}
	case bytes.HasPrefix(data, []byte("\xfd7zXZ")):
		p.tool = []string{"xz", "-dc", "--single-stream"}
	default:
		return payload{}, fmt.Errorf("unknown compression % x", data[:4])
	}
	return p, nil
}

// module is one file of the initramfs.
type module struct {
	name string
	data []byte
}

// modules returns modules and all that they depend on, in the order to load.
func (k kernel) modules(ctx context.Context, want []string) ([]module, error) {
	files := map[string]string{} // by name
	builtin := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(k.dir, "lib", "modules"), func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if filepath.Base(p) == "modules.builtin" {
			b, err := os.ReadFile(p)
			for _, f := range strings.Fields(string(b)) {
				builtin[moduleName(f)] = true
			}
			return err
		}
		if strings.HasSuffix(p, ".ko.xz") {
			files[moduleName(p)] = p
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	read := func(name string) ([]byte, error) {
		return output(exec.CommandContext(ctx, "xz", "-dc", files[name]))
	}
	return resolveModules(want, files, builtin, read)
}

// moduleName is the kernel's name of the module in a file: the kernel has only
// underscores where files have hyphens too.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// resolveModules orders modules after those that they need. Modules that are
// built in need nothing; a soft dependency may be absent.
func resolveModules(want []string, files map[string]string, builtin map[string]bool, read func(name string) ([]byte, error)) ([]module, error) {
	var list []module
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = moduleName(name)
		if done[name] || builtin[name] {
			return nil
		}
		done[name] = true
		if files[name] == "" {
			return fmt.Errorf("find module %s: the kernel has none", name)
		}
		data, err := read(name)
		if err != nil {
			return err
		}
		info, err := readModinfo(data)
		if err != nil {
			return fmt.Errorf("read module %s: %w", name, err)
		}
		for _, d := range info.depends {
			if err := add(d); err != nil {
				return fmt.Errorf("module %s: %w", name, err)
			}
		}
		for _, d := range info.softdeps {
			if files[moduleName(d)] == "" {
				continue
			}
			if err := add(d); err != nil {
				return fmt.Errorf("module %s: %w", name, err)
			}
		}
		list = append(list, module{name, data})
		return nil
	}
	for _, name := range want {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// modinfo is what a module says of its needs.
type modinfo struct {
	depends  []string
	softdeps []string // those to be loaded before
}

func readModinfo(module []byte) (modinfo, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return modinfo{}, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return modinfo{}, errors.New("no section .modinfo")
	}
	b, err := s.Data()
	if err != nil {
		return modinfo{}, err
	}
	return parseModinfo(b), nil
}

// parseModinfo reads strings that end with NUL:
//
//	softdep=pre: crc32c post: zstd
//	depends=failover,net_failover
func parseModinfo(b []byte) modinfo {
	var info modinfo
	for entry := range strings.SplitSeq(string(b), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "depends":
			info.depends = append(info.depends, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		case "softdep":
			before := false
			for _, word := range strings.Fields(value) {
				if strings.HasSuffix(word, ":") {
					before = word == "pre:"
				} else if before {
					info.softdeps = append(info.softdeps, word)
				}
			}
		}
	}
	return info
}
