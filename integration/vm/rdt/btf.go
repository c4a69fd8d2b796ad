package rdt

import (
	"bytes"
	"errors"
	"fmt"
)

// types are those that the kernel describes in its section .BTF, see
// https://docs.kernel.org/bpf/btf.html: a header, then a list of types, whose numbers begin with 1, and strings.
type types struct {
	list    []typ
	strings []byte
}

// typ is one type; extra is what follows its 12 bytes.
type typ struct {
	name   uint32
	kind   int
	fields bool   // a struct whose members may be bit fields
	value  uint32 // its size, or the number of another type
	extra  []byte
}

// Kinds of types, of those that matter here.
const (
	kindInt, kindPointer, kindArray, kindStruct, kindUnion, kindEnum = 1, 2, 3, 4, 5, 6
	kindTypedef, kindVolatile, kindConst, kindRestrict               = 8, 9, 10, 11
)

// extraBytes is what follows a type of a kind with n members.
func extraBytes(kind, n int) (int, error) {
	switch kind {
	case kindInt, 14, 17: // variable, declaration tag
		return 4, nil
	case kindArray:
		return 12, nil
	case kindStruct, kindUnion, 15, 19: // data section, 64-bit enum
		return 12 * n, nil
	case kindEnum, 13: // function prototype
		return 8 * n, nil
	case kindPointer, 7, kindTypedef, kindVolatile, kindConst, kindRestrict, 12, 16, 18: // forward, function, float, type tag
		return 0, nil
	}
	return 0, fmt.Errorf("unknown kind %d", kind)
}

func parseBTF(b []byte) (*types, error) {
	const magic, head = 0xeb9f, 24
	if len(b) < head || le.Uint16(b) != magic {
		return nil, errors.New("decode BTF: no header")
	}
	body := b[min(uint64(le.Uint32(b[4:])), uint64(len(b))):]
	part := func(offset, length int) ([]byte, error) {
		o, n := uint64(le.Uint32(b[offset:])), uint64(le.Uint32(b[length:]))
		if o > uint64(len(body)) || n > uint64(len(body))-o {
			return nil, fmt.Errorf("decode BTF: %d bytes at %d of %d", n, o, len(body))
		}
		return body[o:][:n], nil
	}
	list, err := part(8, 12)
	if err != nil {
		return nil, err
	}
	t := &types{list: []typ{{}}}
	if t.strings, err = part(16, 20); err != nil {
		return nil, err
	}
	for len(list) > 0 {
		if len(list) < 12 {
			return nil, fmt.Errorf("decode BTF: type %d is cut", len(t.list))
		}
		info := le.Uint32(list[4:])
		one := typ{name: le.Uint32(list), kind: int(info >> 24 & 0x1f), fields: info>>31 != 0, value: le.Uint32(list[8:])}
		n, err := extraBytes(one.kind, int(info&0xffff))
		if err != nil {
			return nil, fmt.Errorf("decode BTF: type %d: %w", len(t.list), err)
		}
		if n > len(list)-12 {
			return nil, fmt.Errorf("decode BTF: type %d is cut", len(t.list))
		}
		one.extra = list[12:][:n]
		t.list = append(t.list, one)
		list = list[12+n:]
	}
	return t, nil
}

func (t *types) text(offset uint32) string {
	if uint64(offset) >= uint64(len(t.strings)) {
		return ""
	}
	s, _, _ := bytes.Cut(t.strings[offset:], []byte{0})
	return string(s)
}

// plain returns the type behind names and qualifiers. A type that leads to itself has none.
func (t *types) plain(number uint32) (typ, error) {
	for range 16 {
		if uint64(number) >= uint64(len(t.list)) {
			return typ{}, fmt.Errorf("no type %d in BTF", number)
		}
		one := t.list[number]
		if one.kind < kindTypedef || one.kind > kindRestrict {
			return one, nil
		}
		number = one.value
	}
	return typ{}, fmt.Errorf("type %d in BTF has no end", number)
}

func (t *types) structure(name string) (typ, error) {
	for _, one := range t.list {
		if one.kind == kindStruct && t.text(one.name) == name {
			return one, nil
		}
	}
	return typ{}, fmt.Errorf("no struct %s in BTF", name)
}

// size is that of a struct.
func (t *types) size(name string) (uint64, error) {
	one, err := t.structure(name)
	return uint64(one.value), err
}

// field is a member of a struct, or a member of a member.
type field struct {
	offset uint64
	size   int // 0: neither a number nor a pointer
}

// field finds a member by its path from a struct.
func (t *types) field(structure string, path ...string) (field, error) {
	one, err := t.structure(structure)
	if err != nil {
		return field{}, err
	}
	var f field
	at := "struct " + structure
	for _, name := range path {
		offset, next, err := t.member(one, name, 0)
		if err != nil {
			return field{}, fmt.Errorf("%s: %w", at, err)
		}
		f.offset += offset
		one, at = next, at+"."+name
	}
	switch one.kind {
	case kindInt, kindEnum:
		f.size = int(one.value)
	case kindPointer:
		f.size = 8
	}
	return f, nil
}

// errNoMember says that a struct has no member of a name.
var errNoMember = errors.New("no member in BTF")

// member finds a member, also one of unnamed structs and unions within.
func (t *types) member(of typ, name string, depth int) (uint64, typ, error) {
	if depth < 8 && (of.kind == kindStruct || of.kind == kindUnion) {
		for m := of.extra; len(m) >= 12; m = m[12:] {
			bit := le.Uint32(m[8:])
			bitField := of.fields && bit>>24 != 0
			if of.fields {
				bit &= 0xffffff
			}
			next, err := t.plain(le.Uint32(m[4:]))
			if err != nil {
				return 0, typ{}, err
			}
			switch t.text(le.Uint32(m)) {
			case name:
				if bitField {
					return 0, typ{}, fmt.Errorf("member %s is a bit field", name)
				}
				return uint64(bit / 8), next, nil
			case "":
				if offset, found, err := t.member(next, name, depth+1); err == nil {
					return uint64(bit/8) + offset, found, nil
				}
			}
		}
	}
	return 0, typ{}, fmt.Errorf("%w: %s", errNoMember, name)
}
