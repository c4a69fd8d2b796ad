package resctrl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Mount mounts resctrl at DefaultPoint. ErrNotSupported, ErrMounted; EINVAL means an option that this kernel or machine
// lacks, and the kernel's log says which.
func Mount(o MountOptions) error {
	err := unix.Mount("resctrl", DefaultPoint, "resctrl", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, o.String())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV):
		err = fmt.Errorf("%w: %w", ErrNotSupported, err)
	case errors.Is(err, unix.EBUSY):
		err = fmt.Errorf("%w: %w", ErrMounted, err)
	}
	return &Error{Op: "mount", Path: DefaultPoint, Data: o.String(), Err: err}
}

// Unmount unmounts resctrl. All groups are removed and all settings reset. EBUSY means that a process has a file or its
// working directory in it.
func Unmount(point string) error {
	if err := unix.Unmount(point, 0); err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			err = fmt.Errorf("%w: %w", ErrNotMounted, err)
		}
		return &Error{Op: "unmount", Path: point, Err: err}
	}
	return nil
}
