package rdt

import "fmt"

// code is x86-64 machine code for a known address. Kernel addresses fit into the sign-extended 32 bits of an instruction.
type code struct {
	start uint64
	b     []byte
}

func (c *code) here() uint64 { return c.start + uint64(len(c.b)) }

func (c *code) raw(b ...byte) { c.b = append(c.b, b...) }

func (c *code) u32(v uint32) { c.b = le.AppendUint32(c.b, v) }

// align fills up with nop.
func (c *code) align(n int) {
	for len(c.b)%n != 0 {
		c.raw(0x90)
	}
}

// store is mov [address], value for a number of 1, 2 or 4 bytes.
func (c *code) store(address uint64, size int, value uint32) error {
	if size < 4 && value>>(8*size) != 0 {
		return fmt.Errorf("value %d does not fit into %d bytes", value, size)
	}
	switch size {
	case 1:
		c.raw(0xc6, 0x04, 0x25)
		c.u32(uint32(address))
		c.raw(byte(value))
	case 2:
		c.raw(0x66, 0xc7, 0x04, 0x25)
		c.u32(uint32(address))
		c.raw(byte(value), byte(value>>8))
	case 4:
		c.raw(0xc7, 0x04, 0x25)
		c.u32(uint32(address))
		c.u32(value)
	default:
		return fmt.Errorf("a number of %d bytes: want 1, 2 or 4", size)
	}
	return nil
}

// or is or dword [address], value.
func (c *code) or(address uint64, value uint32) {
	c.raw(0x81, 0x0c, 0x25)
	c.u32(uint32(address))
	c.u32(value)
}

// jump is jmp target.
func (c *code) jump(target uint64) {
	c.raw(0xe9)
	c.u32(uint32(target - (c.here() + 4)))
}

// eachCPU runs ors on a place of each CPU's area: pairs of an offset there and a value.
func (c *code) eachCPU(offsets, count uint64, ors [][2]uint32) {
	c.raw(0x31, 0xc9) // xor ecx, ecx
	top := c.here()
	c.raw(0x48, 0x8b, 0x04, 0xcd) // mov rax, [rcx*8 + offsets]
	c.u32(uint32(offsets))
	for _, o := range ors {
		c.raw(0x81, 0x88) // or dword [rax + o[0]], o[1]
		c.u32(o[0])
		c.u32(o[1])
	}
	c.raw(0xff, 0xc1)       // inc ecx
	c.raw(0x3b, 0x0c, 0x25) // cmp ecx, [count]
	c.u32(uint32(count))
	c.raw(0x0f, 0x82) // jb top
	c.u32(uint32(top - (c.here() + 4)))
}

// counter is a function in place of the kernel's __rmid_read: edi is the RMID, esi the number of the event, rdx where the
// value goes, and eax an error or 0.
func (c *code) counter(m *Monitor) {
	answer := func(rmids []int, errno int32) {
		for _, r := range rmids {
			c.raw(0x81, 0xff) // cmp edi, r
			c.u32(uint32(r))
			c.raw(0x75, 0x06) // jne over these
			c.raw(0xb8)       // mov eax, -errno
			c.u32(uint32(-errno))
			c.raw(0xc3) // ret
		}
	}
	const eio, einval = 5, 22
	answer(m.Unavailable, einval)
	answer(m.Failing, eio)
	c.raw(0x49, 0x89, 0xd0)       // mov r8, rdx
	c.raw(0x8d, 0x4f, 0x01)       // lea ecx, [rdi+1]
	c.raw(0x83, 0xfe, 0x01)       // cmp esi, 1
	c.raw(0x74, 0x19)             // je to the end: occupancy
	c.raw(0x0f, 0x31)             // rdtsc
	c.raw(0x48, 0xc1, 0xe2, 0x20) // shl rdx, 32
	c.raw(0x48, 0x09, 0xd0)       // or rax, rdx
	c.raw(0x48, 0xc1, 0xe8, 0x14) // shr rax, 20
	c.raw(0x48, 0x0f, 0xaf, 0xc8) // imul rcx, rax
	c.raw(0x83, 0xfe, 0x03)       // cmp esi, 3
	c.raw(0x75, 0x03)             // jne to the end: total
	c.raw(0x48, 0xd1, 0xe9)       // shr rcx, 1
	c.raw(0x49, 0x89, 0x08)       // mov [r8], rcx
	c.raw(0x31, 0xc0)             // xor eax, eax
	c.raw(0xc3)                   // ret
}
