package wire

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The messages that are edited.
var (
	createRequest  = newSchema(&runtimeapi.CreateContainerRequest{})
	statusResponse = newSchema(&runtimeapi.ContainerStatusResponse{})
	eventResponse  = newSchema(&runtimeapi.ContainerEventResponse{})
	podResponse    = newSchema(&runtimeapi.PodSandboxStatusResponse{})
)

// schema is what proto.Unmarshal checks of a message: that its fields can be told apart, its submessages too, and that
// its strings are UTF-8. It is asked about the fields that are not decoded, so that a message that the runtime
// will refuse is not taken for a good one here.
type schema struct {
	fields []rule // by number
}

// rule is the check of a field with a length; the other wire types can be checked without knowing the field.
type rule struct {
	kind kind
	of   *schema // of isMessage
}

type kind uint8

const (
	isOpaque  kind = iota // bytes; an unknown field; one that is not of the wire type that its own type has, which is unknown too
	isText                // UTF-8, as proto3 wants it
	isMessage             // map entries too
	isVarints             // a packed list
	isFixed32
	isFixed64
)

func newSchema(m protoreflect.ProtoMessage) *schema {
	return buildSchema(m.ProtoReflect().Descriptor(), map[protoreflect.FullName]*schema{})
}

func buildSchema(m protoreflect.MessageDescriptor, built map[protoreflect.FullName]*schema) *schema {
	if s := built[m.FullName()]; s != nil {
		return s
	}
	s := &schema{}
	built[m.FullName()] = s
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		for len(s.fields) <= int(f.Number()) {
			s.fields = append(s.fields, rule{})
		}
		r := &s.fields[f.Number()]
		switch f.Kind() {
		case protoreflect.StringKind:
			r.kind = isText
		case protoreflect.MessageKind:
			r.kind, r.of = isMessage, buildSchema(f.Message(), built)
		case protoreflect.BytesKind, protoreflect.GroupKind:
		case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
			r.kind = packed(f, isFixed32)
		case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
			r.kind = packed(f, isFixed64)
		default:
			r.kind = packed(f, isVarints)
		}
	}
	return s
}

// packed: lists of numbers are taken in one piece, whether or not they are declared so.
func packed(f protoreflect.FieldDescriptor, k kind) kind {
	if f.IsList() {
		return k
	}
	return isOpaque
}

// valid says whether proto.Unmarshal would take b.
func (s *schema) valid(b []byte) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return false
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return false
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 || int(num) < len(s.fields) && !s.fields[num].valid(v) {
			return false
		}
		b = b[n:]
	}
	return true
}

func (r rule) valid(v []byte) bool {
	switch r.kind {
	case isText:
		return utf8.Valid(v)
	case isMessage:
		return r.of.valid(v)
	case isVarints:
		for len(v) > 0 {
			_, n := protowire.ConsumeVarint(v)
			if n < 0 {
				return false
			}
			v = v[n:]
		}
	case isFixed32:
		return len(v)%4 == 0
	case isFixed64:
		return len(v)%8 == 0
	}
	return true
}
