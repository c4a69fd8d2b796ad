//go:build !linux

package resctrl

import "os"

// OS reads a copy of a resctrl tree in a directory: this system has no resctrl of its own. Every change is EROFS.
func OS(root string) Files { return copied{os.DirFS(root)} }
