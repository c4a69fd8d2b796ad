// Package relay forwards gRPC over HTTP/2 connections frame by frame, and lets hooks read, change or refuse the
// messages of chosen calls.
//
// It owns the two sockets of a connection, their flow control, and the callbacks that it runs. It never decodes a
// message, knows no method by name, has no message size limit for calls that nobody hooks, and does not log: what is
// worth counting goes to [Config.Observer]. Calls that no hook wants keep status, metadata, trailers, compression and
// timing of the backend; a service that is invented tomorrow passes as well.
//
//	srv := relay.New(relay.Config{Dial: dialRuntime, Hook: hooks.ForMethod, Observer: metrics.Count})
//	go func() { <-term; srv.Shutdown(graceCtx) }()
//	err := srv.Serve(ctx, listener)
//
// # How it works
//
// A client connection has a backend connection of its own, with the same stream ids, so nothing is ever multiplexed
// or renumbered. Header blocks are decoded and encoded again (each hop has its own HPACK state); all other frames of
// an untouched stream are copied. A hooked stream is cut open: the relay acts as receiver towards the sender and as
// sender towards the receiver, with stream windows of its own on both sides. See [direction] for the connection's
// windows, [half] for a hooked stream's, and [stream] for the life of a call.
//
// One mutex guards a connection pair. Nothing blocks under it: sockets are tried without waiting, and what they do
// not take is written by a goroutine. A reader may wait for a socket that is full, as a pipe does, which bounds
// memory; it never waits for a window, which would stop the streams that have one.
//
// # What a fault costs
//
//	a callback panics              its message passes unchanged, EventHookPanicked
//	a callback is too slow         its message passes unchanged, EventHookTimedOut, the late result is dropped
//	a message is compressed        it passes unchanged, EventCompressed
//	too many bytes are kept        that call ends with RESOURCE_EXHAUSTED, EventKeptLimit
//	a peer breaks HTTP/2           GOAWAY with the code to that peer, both connections end, EventProtocolError
//	the backend can't be dialled   the client connection is closed, EventDialFailed; the next one dials again
//
// README.md in this directory names the test that guards each rule.
package relay
