//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalHeight is the number of lines of a terminal, 0 for anything else.
func terminalHeight(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Row)
}
