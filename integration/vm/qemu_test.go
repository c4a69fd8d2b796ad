package vm

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tideline-io/tideline/integration/vm/internal/guest"
)

func TestMachineArgs(t *testing.T) {
	const common = "-nodefaults -no-user-config -no-reboot -display none -monitor none -serial stdio -M q35" +
		" -accel tcg,thread=single -cpu Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm"
	const devices = " -kernel K -initrd I -append " + kernelArgs +
		" -drive file=D,,1,if=none,id=root,format=raw,cache=unsafe -device virtio-blk-pci,drive=root" +
		" -device virtio-serial-pci -chardev socket,id=port,fd=3 -device virtserialport,chardev=port,name=tideline"
	for _, c := range []struct {
		name    string
		machine machine
		want    string
	}{
		{"plain", machine{cpus: 2, memoryMiB: 1024, numaNodes: 1, threads: 1},
			common + " -m 1024M -smp 2,sockets=1,cores=2,threads=1" + devices},
		{"NUMA", machine{cpus: 6, memoryMiB: 1000, numaNodes: 3, threads: 1},
			common + " -m 999M -smp 6,sockets=3,cores=2,threads=1" +
				" -object memory-backend-ram,id=mem0,size=333M -numa node,nodeid=0,cpus=0-1,memdev=mem0" +
				" -object memory-backend-ram,id=mem1,size=333M -numa node,nodeid=1,cpus=2-3,memdev=mem1" +
				" -object memory-backend-ram,id=mem2,size=333M -numa node,nodeid=2,cpus=4-5,memdev=mem2" + devices},
		{"threads", machine{cpus: 16, memoryMiB: 1024, numaNodes: 2, threads: 2},
			common + " -m 1024M -smp 16,sockets=2,cores=4,threads=2" +
				" -object memory-backend-ram,id=mem0,size=512M -numa node,nodeid=0,cpus=0-7,memdev=mem0" +
				" -object memory-backend-ram,id=mem1,size=512M -numa node,nodeid=1,cpus=8-15,memdev=mem1" + devices},
		{"network", machine{cpus: 1, memoryMiB: 512, numaNodes: 1, threads: 1, network: true, ports: map[int]int{8081: 80, 8080: 443}},
			common + " -m 512M -smp 1,sockets=1,cores=1,threads=1" + devices +
				" -netdev user,id=net,hostfwd=tcp:127.0.0.1:8080-:443,hostfwd=tcp:127.0.0.1:8081-:80" +
				" -device virtio-net-pci,netdev=net,romfile="},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.machine.vmlinux, c.machine.initrd, c.machine.disk = "K", "I", "D,1"
			if got := strings.Join(c.machine.args(), " "); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestFollow(t *testing.T) {
	frame := func(k guest.Kind, data string) []byte { return guest.Append(nil, k, []byte(data)) }
	exit := func(n int) []byte { return guest.Append(nil, guest.Exit, guest.AppendStatus(nil, n)) }
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.AddFS(os.DirFS("internal")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	half := archive.Len() / 2
	for _, c := range []struct {
		name    string
		frames  [][]byte
		results bool
		exit    int
		out     string
		err     string
		ended   bool
	}{
		{name: "output and status", frames: [][]byte{frame(guest.Up, ""), frame(guest.Output, "a\n"), frame(guest.Output, "b"), exit(137)},
			exit: 137, out: "a\nb"},
		{name: "results", frames: [][]byte{frame(guest.Results, archive.String()[:half]), frame(guest.Results, archive.String()[half:]), exit(0)},
			results: true},
		{name: "cut results", frames: [][]byte{frame(guest.Results, archive.String()[:half]), exit(0)},
			results: true, exit: -1, err: "unpack result"},
		{name: "end in results", frames: [][]byte{frame(guest.Results, archive.String()[:half])},
			results: true, exit: -1, err: "the machine ended", ended: true},
		{name: "failure", frames: [][]byte{frame(guest.Failure, "start program: no such file")}, exit: -1, err: "start program: no such file"},
		{name: "end", frames: [][]byte{frame(guest.Output, "a")}, exit: -1, out: "a", err: "the machine ended", ended: true},
		{name: "end in a frame", frames: [][]byte{exit(0)[:7]}, exit: -1, err: "the machine ended", ended: true},
		{name: "noise", frames: [][]byte{[]byte("SeaBIOS")}, exit: -1, err: "read frame: bad header 53 65 61 42 49"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			cfg := Config{Stdout: &out}
			if c.results {
				cfg.Results = filepath.Join(t.TempDir(), "made")
			}
			exit, err := cfg.follow(bytes.NewReader(bytes.Join(c.frames, nil)), func() {})
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("got error %v, want %q", err, c.err)
			}
			if exit != c.exit || out.String() != c.out || errors.Is(err, errEnded) != c.ended {
				t.Errorf("got %d, %q, %v, want %d, %q, ended %v", exit, out.String(), err, c.exit, c.out, c.ended)
			}
			if c.results && err == nil {
				for _, name := range []string{"guest/guest.go", "guest/guest_test.go"} {
					got, err := os.ReadFile(filepath.Join(cfg.Results, name))
					want, werr := os.ReadFile(filepath.Join("internal", name))
					if err != nil || werr != nil || !bytes.Equal(got, want) {
						t.Errorf("%s: %v, %v, the same: %v", name, err, werr, bytes.Equal(got, want))
					}
				}
			}
		})
	}
}

func TestUnpackStaysInside(t *testing.T) {
	for _, c := range []struct {
		name   string
		header []tar.Header
	}{
		{"parent", []tar.Header{{Name: "../x", Typeflag: tar.TypeReg}}},
		{"absolute", []tar.Header{{Name: "/x", Typeflag: tar.TypeReg}}},
		{"by a link", []tar.Header{{Name: "l", Linkname: "..", Typeflag: tar.TypeSymlink}, {Name: "l/x", Typeflag: tar.TypeReg}}},
		{"device", []tar.Header{{Name: "x", Typeflag: tar.TypeChar}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range c.header {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			parent := t.TempDir()
			if err := unpack(filepath.Join(parent, "in"), &b); err == nil {
				t.Error("no error")
			}
			if _, err := os.Lstat(filepath.Join(parent, "x")); err == nil {
				t.Error("a file outside")
			}
		})
	}
}

func TestTail(t *testing.T) {
	var tl tail
	io.WriteString(&tl, strings.Repeat("x", tailBytes))
	io.WriteString(&tl, "Kernel panic\r\n")
	if got := tl.String(); len(got) != tailBytes-1 || !strings.HasSuffix(got, "xKernel panic") {
		t.Errorf("got %d bytes that end with %q", len(got), got[len(got)-20:])
	}
}
