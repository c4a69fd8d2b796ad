package relay

import "encoding/binary"

// Frame types of RFC 9113, section 6.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	framePriority     = 0x2
	frameRSTStream    = 0x3
	frameSettings     = 0x4
	framePushPromise  = 0x5
	framePing         = 0x6
	frameGoAway       = 0x7
	frameWindowUpdate = 0x8
	frameContinuation = 0x9
)

// Frame flags.
const (
	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Settings that the relay reads.
const (
	settingHeaderTableSize   = 0x1
	settingInitialWindowSize = 0x4
	settingMaxFrameSize      = 0x5
)

// Error codes of RFC 9113, section 7.
const (
	errNone            = 0x0
	errProtocol        = 0x1
	errFlowControl     = 0x3
	errStreamClosed    = 0x5
	errFrameSize       = 0x6
	errRefusedStream   = 0x7
	errCancel          = 0x8
	errCompression     = 0x9
	errEnhanceYourCalm = 0xb
)

// gRPC status codes that the relay itself gives or looks for.
const (
	statusOK                = 0
	statusResourceExhausted = 8
)

const (
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeader   = 9
	priorityBytes = 5
	prefixBytes   = 5 // of a gRPC message: a compression flag and a length
	settingBytes  = 6

	defaultWindow = 65535
	maxWindow     = 1<<31 - 1
	maxStreamID   = 1<<31 - 1

	minFrameSize = 16384   // what every receiver takes, and the default
	maxFrameSize = 1 << 20 // a receiver's larger SETTINGS_MAX_FRAME_SIZE is forwarded as this: it bounds our buffers
	maxTableSize = 4096    // the same for SETTINGS_HEADER_TABLE_SIZE: with equal tables on both hops no block grows much
)

// Bounds against peers that mean harm. Honest gRPC peers stay far below each.
const (
	maxHeaderList     = 1 << 20 // bytes of a decoded header block
	maxStreams        = 10000   // open at a time on one connection
	maxPendingSetting = 1000    // SETTINGS whose ACK is awaited
	maxQueuedItems    = 100000  // frames that wait for the connection window
	maxQueuedFields   = 4 << 20 // bytes of the header fields among them
)

// frame is one HTTP/2 frame; its slices are valid until the handler returns.
type frame struct {
	kind    byte
	flags   byte
	stream  uint32
	payload []byte
	raw     []byte // the frame with its header
}

func (f *frame) has(flag byte) bool { return f.flags&flag != 0 }

// parseFrame cuts the first frame off b. size is its size on the wire, or as much as can be said of it: while
// size > len(b) the frame is not whole, and f is not valid. x/net/http2.Framer is not used because it copies each
// payload and allocates for each frame, which is most of what a relay costs.
func parseFrame(b []byte, maxPayload int) (f frame, size int, err error) {
	if len(b) < frameHeader {
		return f, frameHeader, nil
	}
	n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	if n > maxPayload {
		return f, 0, faultf(errFrameSize, "frame of %d bytes, allowed are %d", n, maxPayload)
	}
	size = frameHeader + n
	if len(b) < size {
		return f, size, nil
	}
	f = frame{
		kind:    b[3],
		flags:   b[4],
		stream:  binary.BigEndian.Uint32(b[5:]) & maxStreamID,
		payload: b[frameHeader:size],
		raw:     b[:size],
	}
	return f, size, nil
}

// check verifies what the frame's type demands of its length and stream (RFC 9113, section 6).
func (f *frame) check() error {
	length, stream := -1, true
	switch f.kind {
	case framePriority:
		length = priorityBytes
	case frameRSTStream:
		length = 4
	case framePing:
		length, stream = 8, false
	case frameWindowUpdate:
		if len(f.payload) != 4 {
			return faultf(errFrameSize, "WINDOW_UPDATE of %d bytes", len(f.payload))
		}
		return nil // either stream
	case frameSettings:
		stream = false
		if len(f.payload)%settingBytes != 0 || (f.has(flagAck) && len(f.payload) > 0) {
			return faultf(errFrameSize, "SETTINGS of %d bytes", len(f.payload))
		}
	case frameGoAway:
		stream = false
		if len(f.payload) < 8 {
			return faultf(errFrameSize, "GOAWAY of %d bytes", len(f.payload))
		}
	case frameData, frameHeaders, frameContinuation:
	default:
		return nil // PUSH_PROMISE is refused elsewhere; other types are extensions
	}
	if length >= 0 && len(f.payload) != length {
		return faultf(errFrameSize, "frame type %d of %d bytes", f.kind, len(f.payload))
	}
	if (f.stream != 0) != stream {
		return faultf(errProtocol, "frame type %d on stream %d", f.kind, f.stream)
	}
	return nil
}

// unpad returns the payload of a DATA or HEADERS frame without its padding.
func (f *frame) unpad() ([]byte, error) {
	b := f.payload
	if !f.has(flagPadded) {
		return b, nil
	}
	if len(b) == 0 || int(b[0]) > len(b)-1 {
		return nil, faultf(errProtocol, "padding longer than the frame")
	}
	return b[1 : len(b)-int(b[0])], nil
}

func appendFrameHeader(b []byte, n int, kind, flags byte, stream uint32) []byte {
	b = append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	return binary.BigEndian.AppendUint32(b, stream)
}

// appendWordFrame appends a frame whose payload is one 32-bit word: RST_STREAM or WINDOW_UPDATE.
func appendWordFrame(b []byte, kind byte, stream, word uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, kind, 0, stream), word)
}

func appendGoAway(b []byte, last, code uint32, reason string) []byte {
	b = appendFrameHeader(b, 8+len(reason), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, code)
	return append(b, reason...)
}
