// Package resctrl speaks to the resctrl file system of Linux.
package resctrl
