// Package ioprio asks the kernel for the I/O priority of a process. It shares no code with Tideline, so that it can't
// share a mistake either.
//
//	v, err := ioprio.Of(pid) // "best-effort:7"
package ioprio

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Of is the I/O priority of a process in the words of ionice: "none", "realtime:N", "best-effort:N" or "idle".
func Of(pid int) (string, error) {
	// include/uapi/linux/ioprio.h: IOPRIO_WHO_PROCESS is 1, the class stands in bits 13 to 15, the level in bits 0 to 2.
	v, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(pid), 0)
	if errno != 0 {
		return "", fmt.Errorf("ioprio_get of process %d: %w", pid, errno)
	}
	switch class, level := v>>13&7, v&7; class {
	case 0:
		return "none", nil
	case 1:
		return fmt.Sprintf("realtime:%d", level), nil
	case 2:
		return fmt.Sprintf("best-effort:%d", level), nil
	case 3:
		return "idle", nil
	default:
		return "", fmt.Errorf("ioprio_get of process %d: class %d", pid, class)
	}
}
