package rdt

import (
	"bytes"
	"errors"
	"fmt"
)

// symbols are those of the kernel's own table.
type symbols struct {
	addresses map[string][]uint64 // several where files have static symbols of one name
	perCPU    map[string]uint64   // offsets in each CPU's area
}

// address returns the one address of a name.
func (s *symbols) address(name string) (uint64, error) {
	switch a := s.addresses[name]; len(a) {
	case 0:
		return 0, fmt.Errorf("no symbol %s", name)
	case 1:
		return a[0], nil
	default:
		return 0, fmt.Errorf("symbol %s: there are %d of it", name, len(a))
	}
}

// parseKallsyms decodes the symbol table that scripts/kallsyms.c of the kernel writes into .rodata, each part of it
// aligned to 8 bytes, without anything that says where it begins:
//
//	[offsets, relative base]     up to 6.3
//	num_syms u32
//	names: for each symbol the number of tokens (7 or 14 bits) and so many tokens of one byte
//	markers u32: where each 256th name begins
//	token_table: 256 strings that end with NUL
//	token_index u16: where each string begins
//	[offsets i32, relative base u64]     from 6.4
//
// The first letter of a name is its type. A negative offset is that of an address behind the relative base, less one;
// others are absolute, as per-CPU ones are. The address of _text is known and tells whether the parts are the right ones.
func parseKallsyms(rodata []byte, text uint64) (*symbols, error) {
	err := errors.New("decode kallsyms: no table of tokens")
	for index := 0; index+512 <= len(rodata); index += 8 {
		table, ok := tokenTable(rodata, index)
		if !ok {
			continue
		}
		var s *symbols
		if s, err = symbolsAround(rodata, table, index, text); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// tokenTable returns where the table of tokens begins whose index is at a place, if it is one there.
func tokenTable(d []byte, index int) (table int, ok bool) {
	if le.Uint16(d[index:]) != 0 {
		return 0, false
	}
	for i := 2; i < 512; i += 2 {
		if int(le.Uint16(d[index+i:])) < int(le.Uint16(d[index+i-2:]))+2 { // a token has a byte and its NUL
			return 0, false
		}
	}
	last := int(le.Uint16(d[index+510:]))
	const longest = 512 // of a token, with padding
	for table = (index - last - 2) &^ 7; table >= 0 && index-last-table <= longest; table -= 8 {
		if endsAt(d, table, index) {
			return table, true
		}
	}
	return 0, false
}

// endsAt reports whether each token of a table ends right before the next one, and the last one at the index.
func endsAt(d []byte, table, index int) bool {
	begin := func(i int) int { return table + int(le.Uint16(d[index+2*i:])) }
	for i := range 255 {
		token := d[begin(i):begin(i+1)]
		if bytes.IndexByte(token, 0) != len(token)-1 {
			return false
		}
	}
	n := bytes.IndexByte(d[begin(255):index], 0)
	return n > 0 && align(begin(255)+n+1, 8) == index
}

func symbolsAround(d []byte, table, index int, text uint64) (*symbols, error) {
	var tokens [256]string
	for i := range tokens {
		t := d[table+int(le.Uint16(d[index+2*i:])):]
		tokens[i] = string(t[:bytes.IndexByte(t, 0)])
	}
	for at := table - 16; at >= 0; at -= 8 {
		n := int(le.Uint32(d[at:]))
		if n == 0 || n > (table-at)/2 {
			continue
		}
		names, ok := splitNames(d[:table], at+8, n)
		if !ok {
			continue
		}
		end := align(index+512+4*n, 8)
		for _, place := range []struct{ offsets, base int }{
			{index + 512, end},
			{at - 8 - align(4*n, 8), at - 8},
		} {
			if place.offsets < 0 || place.base+8 > len(d) {
				continue
			}
			s := resolve(names, &tokens, d[place.offsets:], le.Uint64(d[place.base:]))
			if a := s.addresses["_text"]; len(a) == 1 && a[0] == text {
				return s, nil
			}
		}
	}
	return nil, errors.New("decode kallsyms: no table of names that gives _text its address")
}

// splitNames returns n names, each a list of tokens, if they are followed by markers that agree and by d's end.
func splitNames(d []byte, at, n int) (names [][]byte, ok bool) {
	var markers []int
	start := at
	for i := range n {
		if i%256 == 0 {
			markers = append(markers, at-start)
		}
		if at+2 > len(d) {
			return nil, false
		}
		length := int(d[at])
		at++
		if length&0x80 != 0 {
			length = length&0x7f | int(d[at])<<7
			at++
		}
		if length == 0 || length > len(d)-at {
			return nil, false
		}
		names = append(names, d[at:at+length])
		at += length
	}
	at = align(at, 8)
	if align(at+4*len(markers), 8) != len(d) {
		return nil, false
	}
	for i, m := range markers {
		if int(le.Uint32(d[at+4*i:])) != m {
			return nil, false
		}
	}
	return names, true
}

func resolve(names [][]byte, tokens *[256]string, offsets []byte, base uint64) *symbols {
	s := &symbols{make(map[string][]uint64, len(names)), map[string]uint64{}}
	var name []byte
	for i, list := range names {
		name = name[:0]
		for _, t := range list {
			name = append(name, tokens[t]...)
		}
		o := int32(le.Uint32(offsets[4*i:]))
		if o >= 0 {
			s.perCPU[string(name[1:])] = uint64(o)
			continue
		}
		s.addresses[string(name[1:])] = append(s.addresses[string(name[1:])], base-1-uint64(int64(o)))
	}
	return s
}
