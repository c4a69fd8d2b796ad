package lab

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// loopbackUp sets the interface lo up.
func loopbackUp() error {
	return configureInterface("lo", func(fd int, req *unix.Ifreq) error {
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
			return fmt.Errorf("read the flags of lo: %w", err)
		}
		req.SetUint16(req.Uint16() | unix.IFF_UP)
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
		return nil
	})
}

// addLoopbackAddress gives the interface lo one more IPv4 address. The kubelet
// refuses 127.0.0.0/8 as the address of its node.
func addLoopbackAddress(addr netip.Addr) error {
	a := addr.As4()
	return configureInterface("lo:1", func(fd int, req *unix.Ifreq) error {
		if err := req.SetInet4Addr(a[:]); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, req); err != nil {
			return fmt.Errorf("add address %s to lo: %w", addr, err)
		}
		if err := req.SetInet4Addr([]byte{255, 255, 255, 255}); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFNETMASK, req); err != nil {
			return fmt.Errorf("set the mask of address %s: %w", addr, err)
		}
		return nil
	})
}

func configureInterface(name string, configure func(fd int, req *unix.Ifreq) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("configure interface %s: %w", name, err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("configure interface %s: %w", name, err)
	}
	return configure(fd, req)
}
