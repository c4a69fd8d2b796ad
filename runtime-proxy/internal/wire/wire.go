// Package wire edits CRI messages in their encoded form: it decodes the few fields that a hook reads, and puts changed
// ones back between the bytes that came. Decoding and encoding a whole message costs several times as much, since most of
// a CreateContainerRequest is environment and mounts, and every string of them is allocated anew.
//
// It is pure, and it knows no policy: what to change is the caller's word. The outcome is that of decoding the message,
// changing it and encoding it: the same messages are refused (see schema), and what comes out decodes to the same message.
// All other bytes stay as they are and where they are, unknown fields and unusual encodings included.
//
// A field that is no list may stand in a message several times; protobuf then merges them. Where that happens on the way
// to what is changed, the message is decoded and encoded as a whole.
//
//	c, err := wire.ReadCreate(msg) // err: not a CreateContainerRequest
//	c.Request.Config.Linux.Resources.CpuShares = 2
//	msg, err = c.Write("tideline.io/decision", birth)
package wire

import (
	"errors"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// ErrInvalid says that bytes are not the message that they should be. proto.Unmarshal refuses them too.
var ErrInvalid = errors.New("cannot parse invalid wire-format data")

// field is one field of a message as it stands in the bytes. Positions are those of the whole message, however deep the
// field is in it.
type field struct {
	num   protowire.Number
	typ   protowire.Type
	start int // of the tag
	value int // of the content, behind the length if there is one
	end   int
}

// absent stands for a field that is to be added at the end of its parent.
func absent(num protowire.Number, at int) field {
	return field{num: num, typ: protowire.BytesType, start: at, value: at, end: at}
}

// fields yields the fields of the message in msg[from:to], which a schema has found valid.
func fields(msg []byte, from, to int) iter.Seq[field] {
	return func(yield func(field) bool) {
		for i := from; i < to; {
			num, typ, n := protowire.ConsumeTag(msg[i:to])
			if n < 0 {
				return
			}
			f := field{num: num, typ: typ, start: i, value: i + n}
			if n = protowire.ConsumeFieldValue(num, typ, msg[f.value:to]); n < 0 {
				return
			}
			f.end = f.value + n
			if typ == protowire.BytesType {
				_, n = protowire.ConsumeVarint(msg[f.value:to])
				f.value += n
			}
			if i = f.end; !yield(f) {
				return
			}
		}
	}
}

// message finds the submessage with that number in msg[from:to], and says how often it is there.
func message(msg []byte, from, to int, num protowire.Number) (found field, times int) {
	found = absent(num, to)
	for f := range fields(msg, from, to) {
		if f.num == num && f.typ == protowire.BytesType {
			found = f
			times++
		}
	}
	return found, times
}

// edit is a change of one field: the content of a submessage on a path is replaced, and something may be added to the
// submessage that the path begins with.
type edit struct {
	path    []field // each in the one before it
	content []byte  // of the last one
	added   []byte  // at the end of the first one
}

// appendTo appends path[0], changed, with its tag and length.
func (e *edit) appendTo(out, msg []byte) []byte {
	sizes := make([]int, len(e.path)) // of the contents
	size := len(e.content)
	for i := len(e.path) - 1; i >= 0; i-- {
		if i == 0 {
			size += len(e.added)
		}
		sizes[i] = size
		if i > 0 {
			parent, child := e.path[i-1], e.path[i]
			size = parent.end - parent.value - (child.end - child.start) + protowire.SizeTag(child.num) + protowire.SizeBytes(size)
		}
	}
	for i, f := range e.path {
		if i > 0 {
			out = append(out, msg[e.path[i-1].value:f.start]...)
		}
		out = protowire.AppendTag(out, f.num, protowire.BytesType)
		out = protowire.AppendVarint(out, uint64(sizes[i]))
	}
	out = append(out, e.content...)
	for i := len(e.path) - 1; i > 0; i-- {
		out = append(out, msg[e.path[i].end:e.path[i-1].end]...)
	}
	return append(out, e.added...)
}

// room is enough for what a change adds to a message beside its content: tags and lengths of the path.
const room = 64

// mapEntry encodes one entry of a map<string, string>. Of entries with the same key the last one counts.
func mapEntry(num protowire.Number, key, value string) []byte {
	size := 2*protowire.SizeTag(1) + protowire.SizeBytes(len(key)) + protowire.SizeBytes(len(value))
	out := make([]byte, 0, protowire.SizeTag(num)+protowire.SizeBytes(size))
	out = protowire.AppendTag(out, num, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(size))
	out = protowire.AppendTag(out, 1, protowire.BytesType)
	out = protowire.AppendString(out, key)
	out = protowire.AppendTag(out, 2, protowire.BytesType)
	return protowire.AppendString(out, value)
}

// merge decodes bytes into a message that may hold something already, as protobuf merges fields that stand apart.
func merge(b []byte, into proto.Message) error {
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(b, into)
}
