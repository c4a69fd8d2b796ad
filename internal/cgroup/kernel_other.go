//go:build !linux

package cgroup

import (
	"errors"
	"fmt"
)

// realKernel stands in where there are no cgroups: `tideline explain -f` works on any machine.
type realKernel struct{ root string }

func (realKernel) OpenDir(Mount, string) (Dir, error) {
	return nil, fmt.Errorf("open cgroup: %w: only Linux has them", errors.ErrUnsupported)
}
