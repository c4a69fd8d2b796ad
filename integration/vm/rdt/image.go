package rdt

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math"
)

var le = binary.LittleEndian

// image is an ELF kernel whose addresses are those of the running kernel, as they are without address randomization.
type image struct {
	b []byte
	f *elf.File
}

func newImage(b []byte) (*image, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("%s %s: want a kernel for x86-64", f.Class, f.Machine)
	}
	return &image{b, f}, nil
}

// section returns a section and its bytes, which are a part of the image.
func (m *image) section(name string) (*elf.Section, []byte, error) {
	s := m.f.Section(name)
	if s == nil {
		return nil, nil, fmt.Errorf("no section %s", name)
	}
	if s.Type == elf.SHT_NOBITS || s.Offset > uint64(len(m.b)) || s.Size > uint64(len(m.b))-s.Offset {
		return nil, nil, fmt.Errorf("section %s: not in the file", name)
	}
	return s, m.b[s.Offset:][:s.Size], nil
}

// at returns n bytes at a kernel address, which are a part of the image.
func (m *image) at(address uint64, n int) ([]byte, error) {
	for _, p := range m.f.Progs {
		if p.Type != elf.PT_LOAD || address < p.Vaddr || address-p.Vaddr > p.Filesz || uint64(n) > p.Filesz-(address-p.Vaddr) {
			continue
		}
		if off := p.Off + (address - p.Vaddr); off <= uint64(len(m.b)) && uint64(n) <= uint64(len(m.b))-off {
			return m.b[off:][:n:n], nil
		}
	}
	return nil, fmt.Errorf("%d bytes at %#x: not in the file", n, address)
}

// text returns the NUL-terminated string at a kernel address.
func (m *image) text(address uint64) (string, error) {
	for n := 32; n <= 256; n *= 2 {
		b, err := m.at(address, n)
		if err != nil {
			return "", err
		}
		if s, _, ok := bytes.Cut(b, []byte{0}); ok {
			return string(s), nil
		}
	}
	return "", fmt.Errorf("text at %#x: no end", address)
}

// room returns the free bytes behind the last code of .text, which the kernel maps as code too, and their address.
func (m *image) room() (address uint64, free []byte, err error) {
	text, _, err := m.section(".text")
	if err != nil {
		return 0, nil, err
	}
	rodata, _, err := m.section(".rodata")
	if err != nil {
		return 0, nil, err
	}
	if rodata.Addr <= text.Addr || rodata.Addr-text.Addr > math.MaxInt32 {
		return 0, nil, fmt.Errorf(".rodata at %#x: want it behind .text at %#x", rodata.Addr, text.Addr)
	}
	b, err := m.at(text.Addr, int(rodata.Addr-text.Addr))
	if err != nil {
		return 0, nil, fmt.Errorf("space behind .text: %w", err)
	}
	n := len(b)
	for n > 0 && (b[n-1] == 0 || b[n-1] == 0xcc || b[n-1] == 0x90) { // nothing, int3, nop
		n--
	}
	n = min(align(n, 64), len(b))
	return text.Addr + uint64(n), b[n:], nil
}

// align rounds up to a power of two.
func align(n, to int) int { return (n + to - 1) &^ (to - 1) }
