package guest

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFramesPassUnchanged(t *testing.T) {
	frames := []Frame{
		{Up, []byte{}},
		{Output, []byte("a\r\n\x00b")},
		{Exit, AppendStatus(nil, 137)},
	}
	var wire []byte
	for _, f := range frames {
		wire = Append(wire, f.Kind, f.Data)
	}
	r := bytes.NewReader(wire)
	for i, want := range frames {
		got, err := Read(r)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if got.Kind != want.Kind || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("frame %d: got %c %q, want %c %q", i, got.Kind, got.Data, want.Kind, want.Data)
		}
	}
	if _, err := Read(r); err != io.EOF {
		t.Errorf("at the end: got %v, want io.EOF", err)
	}
	status, err := ParseStatus(frames[2].Data)
	if err != nil || status != 137 {
		t.Errorf("status: got %d, %v, want 137", status, err)
	}
}

func TestReadRefusesBrokenStreams(t *testing.T) {
	whole := Append(nil, Output, []byte("abc"))
	for _, c := range []struct {
		name string
		wire []byte
		want error // nil: any
	}{
		{"cut header", whole[:3], io.ErrUnexpectedEOF},
		{"header only", whole[:headerSize], io.ErrUnexpectedEOF},
		{"cut data", whole[:headerSize+1], io.ErrUnexpectedEOF},
		{"unknown kind", []byte("?\x00\x00\x00\x00"), nil},
		{"too long", []byte("o\xff\x00\x00\x00"), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Read(bytes.NewReader(c.wire))
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, %v, want error %v", f, err, c.want)
			}
		})
	}
	if _, err := ParseStatus([]byte{1}); err == nil {
		t.Error("a status of one byte: no error")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(Append(nil, Output, []byte("abc")))
	f.Add([]byte("x\x00\x00\x00\x04\x00\x00\x00\x07"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		got, err := Read(bytes.NewReader(wire))
		if err == nil && !bytes.HasPrefix(wire, Append(nil, got.Kind, got.Data)) {
			t.Errorf("%q was read as %c %q", wire, got.Kind, got.Data)
		}
	})
}
