// Package guest is what the harness on the host and its init in the virtual
// machine agree on: the specification of the work, which init finds in its
// initramfs, and the frames that it sends back over the virtio port. It never
// touches a file or a device itself.
//
//	w.Write(guest.Append(nil, guest.Output, []byte("hello\n")))
//	frame, err := guest.Read(r)
//	status, err := guest.ParseStatus(frame.Data)
package guest

import (
	"encoding/binary"
	"fmt"
	"io"
)

// SpecFile is the path of the JSON form of the Spec in the initramfs, and in a
// root with systemd too.
const SpecFile = "/spec.json"

// PortName names the virtio-serial port that carries the frames. One port
// carries everything, so that a frame's arrival proves that all before it came.
const PortName = "tideline"

// RootDevice is the disk that init makes the root.
const RootDevice = "/dev/vda"

// ResultsDir is the guest directory that is copied back.
const ResultsDir = "/results"

// Spec is the work of init, the first process of the guest.
type Spec struct {
	Modules []string // files of the initramfs, in the order to load them
	Systemd bool     // become systemd, a service of which runs init again for the rest
	Network bool     // give eth0 the address that QEMU's user network expects
	Results bool     // send ResultsDir after the program's end
	Program string   // path in the root image
	Args    []string // without the program's own name
	Env     []string // the whole environment, KEY=value
}

// Kind tells what a frame carries.
type Kind byte

const (
	// Up says that the program is about to start.
	Up Kind = 'u'
	// Output is a piece of the program's standard output and error, in order.
	Output Kind = 'o'
	// Results is a piece of a tar stream of ResultsDir.
	Results Kind = 'r'
	// Failure is a text: what init could not do. It is the last frame.
	Failure Kind = 'f'
	// Exit is the program's exit status. It is the last frame.
	Exit Kind = 'x'
)

// Valid reports whether k is one of the kinds above.
func (k Kind) Valid() bool {
	switch k {
	case Up, Output, Results, Failure, Exit:
		return true
	}
	return false
}

// Frame is one message of the guest.
type Frame struct {
	Kind Kind
	Data []byte
}

// MaxData bounds the data of one frame, so that a damaged stream can't make the
// reader ask for gigabytes.
const MaxData = 1 << 20

const headerSize = 5

// Append adds the wire form of a frame to b: kind, length (32 bits, big
// endian), data. The data must not be longer than MaxData.
func Append(b []byte, kind Kind, data []byte) []byte {
	b = append(b, byte(kind))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// Read reads one frame. It returns io.EOF only at the end of a whole frame.
func Read(r io.Reader) (Frame, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(head[0])}
	n := binary.BigEndian.Uint32(head[1:])
	if !f.Kind.Valid() || n > MaxData {
		return Frame{}, fmt.Errorf("read frame: bad header % x", head)
	}
	f.Data = make([]byte, n)
	if _, err := io.ReadFull(r, f.Data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

// AppendStatus adds the data of an Exit frame to b.
func AppendStatus(b []byte, status int) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(status))
}

// ParseStatus reads the data of an Exit frame.
func ParseStatus(data []byte) (int, error) {
	if len(data) != 4 {
		return 0, fmt.Errorf("parse exit status % x: want 4 bytes", data)
	}
	return int(binary.BigEndian.Uint32(data)), nil
}
