package vm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseModinfo(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       modinfo
	}{
		{"nothing", "", modinfo{}},
		{"empty depends", "license=GPL\x00depends=\x00name=overlay\x00", modinfo{}},
		{"several", "depends=failover,net_failover\x00", modinfo{depends: []string{"failover", "net_failover"}}},
		{"soft", "softdep=pre: crc32c post: zstd\x00softdep=pre: a b\x00", modinfo{softdeps: []string{"crc32c", "a", "b"}}},
		{"value with =", "parm=x=depends=y\x00", modinfo{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := parseModinfo([]byte(c.text)); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func FuzzParseModinfo(f *testing.F) {
	f.Add([]byte("softdep=pre: crc32c post: zstd\x00depends=failover,net_failover\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		info := parseModinfo(b)
		if slices.Contains(info.depends, "") || slices.Contains(info.softdeps, "") {
			t.Errorf("%q: an empty name in %+v", b, info)
		}
	})
}

// elfWith returns the smallest ELF file that has a section .modinfo.
func elfWith(modinfo string) []byte {
	const header, section = 64, 64
	names := "\x00.modinfo\x00.shstrtab\x00"
	le := binary.LittleEndian
	b := make([]byte, header)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 1)  // relocatable
	le.PutUint16(b[18:], 62) // x86-64
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[40:], uint64(header+len(modinfo)+len(names)))
	le.PutUint16(b[52:], header)
	le.PutUint16(b[58:], section)
	le.PutUint16(b[60:], 3) // sections: none, modinfo, names
	le.PutUint16(b[62:], 2)
	b = append(b, modinfo+names...)
	b = append(b, make([]byte, section)...)
	add := func(name, kind uint32, offset, size int) {
		s := make([]byte, section)
		le.PutUint32(s, name)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], uint64(offset))
		le.PutUint64(s[32:], uint64(size))
		b = append(b, s...)
	}
	add(1, 1, header, len(modinfo))
	add(10, 3, header+len(modinfo), len(names))
	return b
}

func TestResolveModules(t *testing.T) {
	kernel := map[string]string{
		"virtio_net":   "depends=net_failover\x00",
		"net_failover": "depends=failover\x00",
		"failover":     "depends=\x00",
		"bridge":       "depends=stp,llc\x00",
		"stp":          "depends=llc\x00",
		"llc":          "depends=\x00",
		"ext4":         "depends=mbcache,jbd2\x00softdep=pre: crc32c\x00",
		"mbcache":      "depends=\x00",
		"jbd2":         "depends=\x00softdep=pre: bfq\x00",
		"bfq":          "depends=\x00",
		"bad":          "depends=nowhere\x00",
	}
	files := map[string]string{}
	for name := range kernel {
		files[name] = "kernel/" + name + ".ko.xz"
	}
	read := func(name string) ([]byte, error) {
		if name == "llc" && kernel[name] == "" {
			return nil, errors.New("unreadable")
		}
		return elfWith(kernel[name]), nil
	}
	for _, c := range []struct {
		name, want string
		modules    []string
		err        string
	}{
		{name: "chain", modules: []string{"virtio_net"}, want: "failover net_failover virtio_net"},
		{name: "hyphens", modules: []string{"virtio-net"}, want: "failover net_failover virtio_net"},
		{name: "shared and repeated", modules: []string{"bridge", "stp", "bridge"}, want: "llc stp bridge"},
		{name: "soft ones, absent and there", modules: []string{"ext4"}, want: "mbcache bfq jbd2 ext4"},
		{name: "built in", modules: []string{"virtio_pci", "bfq"}, want: "bfq"},
		{name: "unknown", modules: []string{"9p"}, err: "find module 9p: the kernel has none"},
		{name: "unknown dependency", modules: []string{"bad"}, err: "module bad: find module nowhere: the kernel has none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := resolveModules(c.modules, files, map[string]bool{"virtio_pci": true}, read)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Fatalf("got error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, m := range list {
				names = append(names, m.name)
			}
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestParseBzImage(t *testing.T) {
	image := func(payload string) []byte {
		const setup = 2
		b := make([]byte, (setup+1)*512+16)
		copy(b[0x202:], "HdrS")
		b[0x1f1] = setup
		binary.LittleEndian.PutUint32(b[0x248:], 16)
		binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(payload)))
		return append(b, payload...)
	}
	cut := image("\x28\xb5\x2f\xfdxxxx\x00\x01\x00\x00")
	cut = cut[:len(cut)-1]
	for _, c := range []struct {
		name  string
		image []byte
		want  payload
		err   string
	}{
		{name: "zstd", image: image("\x28\xb5\x2f\xfdxxxx\x00\x01\x00\x00"),
			want: payload{data: []byte("\x28\xb5\x2f\xfdxxxx"), size: 256, tool: []string{"zstd", "-dc"}}},
		{name: "xz", image: image("\xfd7zXZ\x00\x02\x00\x00\x00"),
			want: payload{data: []byte("\xfd7zXZ\x00"), size: 2, tool: []string{"xz", "-dc", "--single-stream"}}},
		{name: "lz4", image: image("\x02\x21\x4c\x18xxxx\x00\x01\x00\x00"), err: "unknown compression 02 21 4c 18"},
		{name: "cut", image: cut, err: "payload at 1552 of 12 bytes is outside the image of 1563"},
		{name: "short payload", image: image("\x28\xb5\x2f\xfd"), err: "payload at 1552 of 4 bytes is outside the image of 1556"},
		{name: "no kernel", image: bytes.Repeat([]byte{1}, 1000), err: "no bzImage"},
		{name: "empty", err: "no bzImage"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseBzImage(c.image)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Fatalf("got error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

func FuzzParseBzImage(f *testing.F) {
	b := make([]byte, 4096)
	copy(b[0x202:], "HdrS")
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) { parseBzImage(b) })
}
