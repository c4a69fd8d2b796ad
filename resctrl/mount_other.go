//go:build !linux

package resctrl

// Mount mounts resctrl where there is one.
func Mount(o MountOptions) error {
	return &Error{Op: "mount", Path: DefaultPoint, Data: o.String(), Err: ErrNotSupported}
}

// Unmount unmounts resctrl where there is one.
func Unmount(point string) error { return &Error{Op: "unmount", Path: point, Err: ErrNotSupported} }
