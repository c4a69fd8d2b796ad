package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"

	"github.com/tideline-io/tideline/integration/vm/internal/guest"
)

// initrd makes the initramfs: init, its specification and modules.
func (in installation) initrd(ctx context.Context, modules []string, spec guest.Spec) ([]byte, error) {
	list, err := in.kernel.modules(ctx, modules)
	if err != nil {
		return nil, err
	}
	var a archive
	// The kernel gives init its console for standard output only if it is there.
	a.device("/dev/console", 0o600, 5, 1)
	a.file("/init", 0o755, in.init)
	for _, m := range list {
		file := "/modules/" + m.name + ".ko"
		a.file(file, 0o644, m.data)
		spec.Modules = append(spec.Modules, file)
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	a.file(guest.SpecFile, 0o644, b)
	return a.end(), nil
}

// archive writes cpio in the "newc" format, see
// https://docs.kernel.org/driver-api/early-userspace/buffer-format.html.
// Directories come by themselves.
type archive struct {
	buf   bytes.Buffer
	inode int
	dirs  map[string]bool
}

const (
	typeDir    = 0o040000
	typeDevice = 0o020000 // character
	typeFile   = 0o100000
)

func (a *archive) file(name string, perm uint32, data []byte) {
	a.parent(name)
	a.entry(name, typeFile|perm, 0, 0, data)
}

func (a *archive) device(name string, perm uint32, major, minor int) {
	a.parent(name)
	a.entry(name, typeDevice|perm, major, minor, nil)
}

func (a *archive) parent(name string) {
	dir := path.Dir(name)
	if dir == "/" || a.dirs[dir] {
		return
	}
	a.parent(dir)
	a.entry(dir, typeDir|0o755, 0, 0, nil)
	if a.dirs == nil {
		a.dirs = map[string]bool{}
	}
	a.dirs[dir] = true
}

func (a *archive) end() []byte {
	a.entry("/TRAILER!!!", 0, 0, 0, nil)
	return a.buf.Bytes()
}

func (a *archive) entry(name string, mode uint32, major, minor int, data []byte) {
	name = name[1:]
	a.inode++
	// inode, mode, uid, gid, links, mtime, size, device, special device, length
	// of the name, checksum
	fmt.Fprintf(&a.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
	a.buf.WriteString(name)
	a.buf.WriteByte(0)
	a.pad()
	a.buf.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}
