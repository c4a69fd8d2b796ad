package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// device is a block device's number.
type device struct{ major, minor uint32 }

func (d device) String() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

func parseDevice(s string) (device, error) {
	major, minor, ok := strings.Cut(s, ":")
	ma, err1 := strconv.ParseUint(major, 10, 12)
	mi, err2 := strconv.ParseUint(minor, 10, 20)
	if !ok || err1 != nil || err2 != nil {
		return device{}, fmt.Errorf("%w: device %q, want MAJ:MIN", ErrValue, s)
	}
	return device{uint32(ma), uint32(mi)}, nil
}

// limits of one device, in the order of ioKeys; 0 is no limit.
type limits [4]uint64

var (
	ioKeys        = [4]string{"rbps", "wbps", "riops", "wiops"}
	throttleFiles = [4]string{
		"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device",
		"blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device",
	}
)

// top returns the value that means no limit to the kernel: operations are counted in 32 bits, and v1 cuts a larger
// number off without a word (5000000000 becomes 705032704).
func top(key int) uint64 {
	if key >= 2 {
		return math.MaxUint32
	}
	return math.MaxUint64
}

// ioMax is the whole of an io.max file.
type ioMax map[device]limits

// parseIOMax reads both the kernel's form and the knob's: "254:0 rbps=1048576 wbps=max riops=max wiops=max".
func parseIOMax(text string) (ioMax, error) {
	m := ioMax{}
	for line := range strings.SplitSeq(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		dev, err := parseDevice(fields[0])
		if err != nil {
			return nil, err
		}
		if _, ok := m[dev]; ok {
			return nil, fmt.Errorf("%w: device %s twice", ErrValue, dev)
		}
		var l limits
		for _, field := range fields[1:] {
			key, value, _ := strings.Cut(field, "=")
			i := slices.Index(ioKeys[:], key)
			if i < 0 {
				return nil, fmt.Errorf("%w: %q, want rbps, wbps, riops or wiops", ErrValue, field)
			}
			if value == "max" {
				continue
			}
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("%w: %q, want a number above 0 or max", ErrValue, field)
			}
			if n < top(i) {
				l[i] = n
			}
		}
		m.put(dev, l)
	}
	return m, nil
}

func (m ioMax) put(dev device, l limits) {
	if l == (limits{}) {
		delete(m, dev)
		return
	}
	m[dev] = l
}

// String gives the knob's form: only the limits that are set, sorted by device.
func (m ioMax) String() string {
	var lines []string
	for _, dev := range sortedDevices(m) {
		line := dev.String()
		for i, n := range m[dev] {
			if n != 0 {
				line += " " + ioKeys[i] + "=" + strconv.FormatUint(n, 10)
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func sortedDevices(of ...ioMax) []device {
	all := map[device]bool{}
	for _, m := range of {
		for dev := range m {
			all[dev] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b device) int {
		return cmp.Or(cmp.Compare(a.major, b.major), cmp.Compare(a.minor, b.minor))
	})
}

func formatIOMax(value string) (string, error) {
	m, err := parseIOMax(value)
	return m.String(), err
}

func readIOMax(d Dir) (string, error) {
	text, err := d.ReadFile("io.max")
	if err != nil {
		return "", err
	}
	return formatIOMax(text)
}

// noDevice means that the kernel does not know a block device: it was unplugged, and its limits with it.
type noDevice struct{ dev device }

func (e noDevice) Error() string { return "no block device " + e.dev.String() }

// setIOMax writes one line a device that differs, since the kernel reads one a write, with all four limits, since it
// keeps those that a line does not name. Devices that are gone come last, as the error: the others are done.
func setIOMax(d Dir, now, want string) error {
	return eachDevice(now, want, func(dev device, _, to limits) error {
		line := dev.String()
		for i, n := range to {
			value := "max"
			if n != 0 {
				value = strconv.FormatUint(n, 10)
			}
			line += " " + ioKeys[i] + "=" + value
		}
		return d.WriteFile("io.max", line)
	})
}

// readThrottle reads the four files of v1, lines "254:0 1048576".
func readThrottle(d Dir) (string, error) {
	m := ioMax{}
	for i, file := range throttleFiles {
		text, err := d.ReadFile(file)
		if err != nil {
			return "", err
		}
		for line := range strings.SplitSeq(text, "\n") {
			fields := strings.Fields(line)
			if len(fields) == 0 {
				continue
			}
			if len(fields) != 2 {
				return "", fmt.Errorf("bad line %q in %s", line, file)
			}
			dev, err := parseDevice(fields[0])
			if err != nil {
				return "", err
			}
			n, err := strconv.ParseUint(fields[1], 10, 64)
			if err != nil {
				return "", fmt.Errorf("bad line %q in %s", line, file)
			}
			l := m[dev]
			l[i] = n
			m[dev] = l
		}
	}
	return m.String(), nil
}

func setThrottle(d Dir, now, want string) error {
	return eachDevice(now, want, func(dev device, from, to limits) error {
		for i, n := range to {
			if n == from[i] {
				continue
			}
			// 0 takes a limit away.
			if err := d.WriteFile(throttleFiles[i], fmt.Sprintf("%s %d", dev, n)); err != nil {
				return err
			}
		}
		return nil
	})
}

func eachDevice(now, want string, write func(dev device, from, to limits) error) error {
	old, err := parseIOMax(now)
	if err != nil {
		return err
	}
	m, err := parseIOMax(want)
	if err != nil {
		return err
	}
	var errs []error
	for _, dev := range sortedDevices(old, m) {
		if old[dev] == m[dev] {
			continue
		}
		err := write(dev, old[dev], m[dev])
		switch {
		case err == nil:
		case isGone(err) && m[dev] == limits{}:
			// The limits went with the device.
		case isGone(err):
			errs = append(errs, fmt.Errorf("%w: %w", noDevice{dev}, err))
		default:
			errs = append(errs, fmt.Errorf("device %s: %w", dev, err))
		}
	}
	return errors.Join(errs...)
}

// withoutMissing drops a device that err names from a text, for Undo: nothing is left to bring back there.
func withoutMissing(text string, err error) (string, bool) {
	missing, ok := errors.AsType[noDevice](err)
	if !ok {
		return text, false
	}
	m, err := parseIOMax(text)
	if err != nil {
		return text, false
	}
	if _, ok := m[missing.dev]; !ok {
		return text, false
	}
	delete(m, missing.dev)
	return m.String(), true
}
