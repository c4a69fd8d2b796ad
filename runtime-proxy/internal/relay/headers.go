package relay

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

func (d *direction) onHeaders(f *frame) error {
	block, err := f.unpad()
	if err != nil {
		return err
	}
	h := headerFrame{stream: f.stream, end: f.has(flagEndStream)}
	if f.has(flagPriority) {
		if len(block) < priorityBytes {
			return faultf(errFrameSize, "HEADERS of %d bytes with a priority", len(block))
		}
		h.priority, block = bytes.Clone(block[:priorityBytes]), block[priorityBytes:]
	}
	if f.has(flagEndHeaders) {
		return d.onBlock(h, block)
	}
	d.open, d.block = h, append(d.block[:0], block...)
	return nil
}

// onBlock handles a whole header block. Every block must be decoded, also of streams that are closed, because it
// changes the HPACK table.
func (d *direction) onBlock(h headerFrame, block []byte) error {
	d.fields, d.listSize = d.fields[:0], 0
	_, err := d.dec.Write(block)
	if err == nil {
		err = d.dec.Close()
	}
	if err != nil {
		return faultf(errCompression, "decode header block: %v", err)
	}
	if d.listSize > maxHeaderList {
		return faultf(errEnhanceYourCalm, "header list over %d bytes", maxHeaderList)
	}
	st := d.p.streams[h.stream]
	if st == nil {
		return d.openStream(h)
	}
	if st.dropped[d.index] {
		return nil
	}
	if st.seen[d.index] {
		return faultf(errStreamClosed, "HEADERS on stream %d after its end", h.stream)
	}
	st.seen[d.index] = h.end
	if h.end && !d.isUp() {
		st.status = grpcStatus(d.fields)
	}
	if half := st.half[d.index]; half != nil {
		d.fields = dropField(d.fields, "content-length")
		d.hookedHeaders(st, half, h)
		return nil
	}
	if st.inFifo[d.index] > 0 {
		it := item{kind: frameHeaders, fields: slices.Clone(d.fields), priority: h.priority, end: h.end}
		if err := d.queue(st, it); err != nil {
			return err
		}
		d.pump()
		return nil
	}
	d.writeHeaders(st, d.fields, h.priority, h.end)
	return nil
}

// openStream handles HEADERS of a stream that is not open: a new call, or a late frame.
func (d *direction) openStream(h headerFrame) error {
	p := d.p
	if !d.idle(h.stream) {
		return nil // late, for a closed stream
	}
	if !d.isUp() || h.stream%2 == 0 {
		return faultf(errProtocol, "HEADERS on idle stream %d", h.stream)
	}
	p.lastID = h.stream
	if h.stream > p.acceptID {
		return nil // our GOAWAY says that it is not served
	}
	if len(p.streams) >= maxStreams {
		p.down.out.addWord(frameRSTStream, h.stream, errRefusedStream)
		return nil
	}
	method, err := grpcMethod(d.fields)
	if err != nil {
		return err
	}
	st := &stream{id: h.stream, status: StatusUnseen}
	p.streams[h.stream] = st
	if method != "" && p.Hook != nil {
		p.hook(st, method)
	}
	if st.half[up] != nil {
		d.fields = dropField(d.fields, "content-length")
		d.topUp(st, st.half[up])
	}
	st.seen[up] = h.end
	// HEADERS that open a stream never wait for anything: the ids must rise at the backend, and the ACK of a PING that
	// was sent later must not pass them.
	d.writeHeaders(st, d.fields, h.priority, h.end)
	return nil
}

// writeHeaders writes a header block; all writes of a direction share one HPACK table, so blocks are encoded in the
// order in which they are sent.
func (d *direction) writeHeaders(st *stream, fields []hpack.HeaderField, priority []byte, end bool) {
	d.encBuf.Reset()
	d.encBuf.Write(priority)
	for _, f := range fields {
		d.enc.WriteField(f) // to a bytes.Buffer, so there is no error
	}
	urgent := d.out.urgent
	block, kind, flags := d.encBuf.Bytes(), byte(frameHeaders), byte(0)
	if end {
		flags |= flagEndStream
	}
	if priority != nil {
		flags |= flagPriority
	}
	for first := true; first || len(block) > 0; first = false {
		n := min(len(block), minFrameSize)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		d.out.addHeader(n, kind, flags, st.id)
		d.out.add(block[:n])
		block, kind, flags = block[n:], frameContinuation, 0
	}
	if d.encBuf.Cap() > 64<<10 {
		d.encBuf = bytes.Buffer{} // the encoder keeps a pointer to it
	}
	if h := st.half[d.index]; h != nil && h.mode != passing && !end {
		// They may wait for their message, which saves a system call and a wake-up of the receiver.
		d.out.urgent = urgent
		h.headersIn = d.batch
		d.held1st++
	}
	if d.isUp() && st.half[down] != nil {
		d.back.topUp(st, st.half[down]) // only here: a window update must not pass the HEADERS
	}
	if !d.isUp() {
		st.answered = true
	}
	if end {
		d.ended(st)
	}
}

// grpcMethod returns the path of a gRPC call, and "" for any other request.
func grpcMethod(fields []hpack.HeaderField) (string, error) {
	path, grpc := "", false
	for _, f := range fields {
		switch f.Name {
		case ":path":
			if path != "" {
				return "", faultf(errProtocol, "two :path fields") // which of them would the backend serve?
			}
			path = f.Value
		case "content-type":
			grpc = grpc || strings.HasPrefix(strings.ToLower(f.Value), "application/grpc")
		}
	}
	if !grpc || path == "" {
		return "", nil
	}
	if path[0] != '/' { // servers exist that take it
		path = "/" + path
	}
	return path, nil
}

func grpcStatus(fields []hpack.HeaderField) int {
	for _, f := range fields {
		if f.Name == "grpc-status" {
			if n, err := strconv.ParseUint(f.Value, 10, 31); err == nil {
				return int(n)
			}
		}
	}
	return StatusUnseen
}

// statusFields are the trailers of a call that we end, or its only headers.
func statusFields(s *Status, answered bool) []hpack.HeaderField {
	var f []hpack.HeaderField
	if !answered {
		f = append(f, hpack.HeaderField{Name: ":status", Value: "200"}, hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
	}
	f = append(f, hpack.HeaderField{Name: "grpc-status", Value: strconv.FormatUint(uint64(s.Code), 10)},
		hpack.HeaderField{Name: "grpc-message", Value: percentEncode(s.Message)})
	if s.Details != nil {
		f = append(f, hpack.HeaderField{Name: "grpc-status-details-bin", Value: base64.RawStdEncoding.EncodeToString(s.Details)})
	}
	return f
}

// percentEncode encodes a grpc-message as the gRPC protocol over HTTP/2 demands.
func percentEncode(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// dropField removes a field in place: a hooked message may get another length.
func dropField(fields []hpack.HeaderField, name string) []hpack.HeaderField {
	for i := range fields {
		if fields[i].Name == name {
			return append(fields[:i], fields[i+1:]...)
		}
	}
	return fields
}
