package relay

import (
	"context"
	"io"
	"testing"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// newTwin serves what the relay is measured against: the same hooks in an ordinary grpc-go proxy. It returns its socket.
func newTwin(t testing.TB, backend string) string {
	cc := newClient(t, backend, 1<<20, false)
	path := tempDir(t) + "/twin"
	l := listen(t, path)
	s := grpc.NewServer(
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return twinCall(cc, s) }),
		grpc.ForceServerCodec(codec{}), grpc.MaxRecvMsgSize(128<<20), grpc.NumStreamWorkers(4),
		grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(1<<20))
	background(t, func() { s.Serve(l) })
	t.Cleanup(s.Stop)
	return path
}

func twinCall(cc *grpc.ClientConn, s grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(s)
	md, _ := metadata.FromIncomingContext(s.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(s.Context(), md))
	defer cancel()
	call := testHook(method)
	if call == nil {
		call = &Call{}
	}
	c, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		for first := true; ; first = false {
			var m []byte
			if err := s.RecvMsg(&m); err != nil {
				c.CloseSend()
				return
			}
			if first && call.Request != nil {
				out, st := call.Request(ctx, m)
				if st != nil { // answered by the loop below
					cancel()
					return
				}
				m = out
			}
			if c.SendMsg(&m) != nil {
				return
			}
		}
	}()
	var responses [][]byte // of a unary call: its status decides
	hd, err := c.Header()
	if err == nil {
		s.SetHeader(hd)
	}
	for {
		var m []byte
		if err := c.RecvMsg(&m); err != nil {
			s.SetTrailer(c.Trailer())
			if ctx.Err() != nil && s.Context().Err() == nil {
				return twinStatus(refusal)
			}
			if err != io.EOF {
				return err
			}
			break
		}
		switch {
		case call.Message != nil:
			m = call.Message(ctx, m)
		case call.Response != nil:
			responses = append(responses, m)
			continue
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
	for _, m := range responses {
		out, st := call.Response(ctx, m)
		if st != nil {
			return twinStatus(st)
		}
		if err := s.SendMsg(&out); err != nil {
			return err
		}
	}
	return nil
}

func twinStatus(s *Status) error {
	var p spb.Status
	if err := proto.Unmarshal(s.Details, &p); err != nil {
		return err
	}
	return status.FromProto(&p).Err()
}
