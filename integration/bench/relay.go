package bench

import (
	"fmt"
	"io"
	"net"
	"os"
)

// serveCopy is the least that a proxy in Go can do: bytes from one socket to the other.
func serveCopy(socket, backend string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	endWithParent(func() { l.Close() })
	for {
		front, err := l.Accept()
		if err != nil {
			return nil // closed
		}
		back, err := net.Dial("unix", backend)
		if err != nil {
			front.Close()
			return fmt.Errorf("dial the runtime: %w", err)
		}
		for _, pair := range [][2]net.Conn{{front, back}, {back, front}} {
			go func() { // ends with its connections, at the latest with the process
				_, _ = io.Copy(pair[0], pair[1])
				pair[0].Close()
			}()
		}
	}
}

// endWithParent calls stop when the process that started this one has closed its end of the pipe, in whatever way it ended.
func endWithParent(stop func()) {
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
}
