package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/policy"
)

// control is what is read, saved, written and brought back as one: a kernel file, or files that only make sense together.
// Its text form is the one that read gives and that the journal keeps; show turns it into the knob's format.
type control struct {
	knob       policy.Knob
	controller string // "cpu", "cpuset", "memory" or "io"
	file       string // the name it has in the journal, and the file that says whether the kernel has it
	read       func(d Dir) (string, error)
	want       func(now, value string) (string, error) // a value in the knob's format -> the text that read gives once it is in place
	set        func(d Dir, now, want string) error     // from one text to another, in the order that the kernel accepts
	show       func(text string) string                // text -> the knob's format
}

// unlimited is what v1 shows where v2 shows "max": the largest multiple of a page.
const unlimited = math.MaxInt64

func pageSize() uint64 { return uint64(os.Getpagesize()) }

// controllersV1 are the names of our controllers on v1.
var controllersV1 = []string{"cpu", "cpuset", "memory", "blkio"}

// controllerOf names the controller of a knob as v2 does.
func controllerOf(k policy.Knob) string {
	name, _, _ := strings.Cut(string(k), ".")
	return name
}

// controls lists where a knob lives. Of several, those that exist count, and there has to be one. None means that this
// version has nothing for the knob.
func controls(version int, k policy.Knob) []control {
	c := control{knob: k, controller: controllerOf(k), file: string(k), show: same}
	c.read, c.set = readTrimmed(c.file), setFile(c.file)
	v1 := func(file string) {
		c.file, c.read, c.set = file, readTrimmed(file), setFile(file)
	}
	switch k {
	case policy.CPUSetCPUs, policy.CPUSetMems:
		c.want = wantList
		c.set = func(d Dir, _, want string) error {
			// A write of no bytes does not reach the kernel's handler; an empty line clears the list.
			return d.WriteFile(c.file, want+"\n")
		}
	case policy.CPUWeight:
		c.want, c.read = wantWeight, readWeight
		if version == 1 {
			v1("cpu.shares")
			c.want = wantShares
		}
	case policy.CPUMax:
		c.want = func(_, value string) (string, error) { return parseCPUMax(value) }
		if version == 1 {
			c.file, c.read, c.set = "cpu.cfs_quota_us", readCFS, setCFS
		}
	case policy.CPUMaxBurst:
		c.want = wantUint(0, math.MaxInt64)
		if version == 1 {
			v1("cpu.cfs_burst_us")
		}
	case policy.CPUIdle:
		c.want = wantUint(0, 1)
	case policy.MemoryLow, policy.MemoryHigh:
		if version == 1 {
			return nil
		}
		c.want = wantBytes
	case policy.MemoryMax:
		c.want = wantBytes
		if version == 1 {
			c.file, c.read, c.set, c.want, c.show = "memory.limit_in_bytes", readLimits, setLimits, wantLimits, firstField
		}
	case policy.IOWeight:
		c.want = wantUint(1, 1000)
		if version == 1 {
			v1("blkio.bfq.weight")
			c.read = readIOWeight(c.file)
			return []control{c}
		}
		bfq, cost := c, c
		bfq.file, bfq.read, bfq.set = "io.bfq.weight", readIOWeight("io.bfq.weight"), setFile("io.bfq.weight")
		cost.file, cost.read = "io.weight", readIOWeight("io.weight")
		cost.set = func(d Dir, _, want string) error { return d.WriteFile("io.weight", "default "+want) }
		return []control{bfq, cost}
	case policy.IOMax:
		c.want = func(_, value string) (string, error) { return formatIOMax(value) }
		c.read, c.set = readIOMax, setIOMax
		if version == 1 {
			c.file, c.read, c.set = throttleFiles[0], readThrottle, setThrottle
		}
	default:
		return nil
	}
	return []control{c}
}

func same(s string) string { return s }

func firstField(s string) string {
	first, _, _ := strings.Cut(s, " ")
	return first
}

func readTrimmed(file string) func(Dir) (string, error) {
	return func(d Dir) (string, error) {
		text, err := d.ReadFile(file)
		return strings.TrimSpace(text), err
	}
}

func setFile(file string) func(Dir, string, string) error {
	return func(d Dir, _, want string) error { return d.WriteFile(file, want) }
}

func wantUint(least, most uint64) func(string, string) (string, error) {
	return func(_, value string) (string, error) {
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil || n < least || n > most {
			return "", fmt.Errorf("%w: %q, want a number from %d to %d", ErrValue, value, least, most)
		}
		return strconv.FormatUint(n, 10), nil
	}
}

// maxID is more CPUs or memory nodes than any kernel is built for; a list that goes further would only eat memory.
const maxID = 1 << 16

// wantList brings a list of CPUs or memory nodes into the form in which the kernel prints it: sorted, runs joined.
func wantList(_, value string) (string, error) {
	for part := range strings.SplitSeq(value, ",") {
		for number := range strings.SplitSeq(part, "-") {
			if n, err := strconv.ParseUint(number, 10, 32); value != "" && (err != nil || n >= maxID) {
				return "", fmt.Errorf("%w: list %q, want numbers and ranges below %d", ErrValue, value, maxID)
			}
		}
	}
	set, err := cpuset.Parse(value)
	if err != nil {
		return "", fmt.Errorf("%w: list %q: %w", ErrValue, value, err)
	}
	return set.String(), nil
}

const (
	minShares, maxShares, defaultShares = 2, 262144, 1024
	minWeight, maxWeight, defaultWeight = 1, 10000, 100
)

func wantShares(_, value string) (string, error) {
	if value == policy.Unset {
		return strconv.Itoa(defaultShares), nil
	}
	return wantUint(minShares, maxShares)("", value)
}

// readWeight gives 0 for an idle group, as the kernel's documentation says and kernels before 6.12 do. Later ones show 1,
// the least weight that can be written (measured on 6.12.117).
func readWeight(d Dir) (string, error) {
	weight, err := readTrimmed("cpu.weight")(d)
	if err != nil || weight != "1" {
		return weight, err
	}
	if idle, err := readTrimmed("cpu.idle")(d); err == nil && idle == "1" {
		return "0", nil
	}
	return weight, nil
}

func wantWeight(_, value string) (string, error) {
	shares, err := wantShares("", value)
	if err != nil {
		return "", err
	}
	n, err := strconv.ParseUint(shares, 10, 64)
	return strconv.FormatUint(weightOf(n), 10), err
}

// weightOf converts as runc 1.3.2, crun 1.23 and later do (github.com/opencontainers/cgroups pull request 20): a quadratic through 2 -> 1, 1024 -> 100 and 262144 -> 10000.
func weightOf(shares uint64) uint64 {
	switch {
	case shares <= minShares:
		return minWeight
	case shares >= maxShares:
		return maxWeight
	}
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612.0-7.0/34.0)))
}

// parseCPUMax checks "QUOTA PERIOD" or "max PERIOD" against the kernel's bounds: 1 ms at least for both, 1 s at most for the period.
func parseCPUMax(value string) (string, error) {
	bad := fmt.Errorf("%w: %q, want QUOTA PERIOD in microseconds, QUOTA at least 1000 or max, PERIOD from 1000 to 1000000", ErrValue, value)
	fields := strings.Split(value, " ")
	if len(fields) != 2 {
		return "", bad
	}
	period, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil || period < 1000 || period > 1000000 {
		return "", bad
	}
	quota := fields[0]
	if quota != "max" {
		n, err := strconv.ParseUint(quota, 10, 63)
		if err != nil || n < 1000 {
			return "", bad
		}
		quota = strconv.FormatUint(n, 10)
	}
	return quota + " " + strconv.FormatUint(period, 10), nil
}

// quotaOf returns the quota of a cpu.max text, math.MaxInt64 for none.
func quotaOf(text string) int64 {
	quota, _, _ := strings.Cut(text, " ")
	if n, err := strconv.ParseInt(quota, 10, 64); err == nil {
		return n
	}
	return math.MaxInt64
}

func readCFS(d Dir) (string, error) {
	quota, err := readTrimmed("cpu.cfs_quota_us")(d)
	if err != nil {
		return "", err
	}
	period, err := readTrimmed("cpu.cfs_period_us")(d)
	if strings.HasPrefix(quota, "-") {
		quota = "max"
	}
	return quota + " " + period, err
}

// setCFS writes two files of which the kernel checks the pair after each: quota/period may exceed no parent's and fall
// below no child's. Whichever file goes first, the pair in between has to pass too, so the orders are tried in turn:
// first the one whose pair in between is the smaller, then the other, then by way of no quota at all, which always
// passes and lasts for two writes.
func setCFS(d Dir, now, want string) error {
	quota, period, _ := strings.Cut(want, " ")
	oldQuota, oldPeriod, _ := strings.Cut(now, " ")
	if quota == "max" {
		quota = "-1"
	}
	if oldQuota == "max" {
		oldQuota = "-1"
	}
	writeQuota := func() error { return d.WriteFile("cpu.cfs_quota_us", quota) }
	writePeriod := func() error { return d.WriteFile("cpu.cfs_period_us", period) }
	if period == oldPeriod {
		return writeQuota()
	}
	if quota == oldQuota {
		return writePeriod()
	}
	q1, q2 := float64(quotaOf(now)), float64(quotaOf(want))
	p1, _ := strconv.ParseFloat(oldPeriod, 64)
	p2, _ := strconv.ParseFloat(period, 64)
	first, second := writeQuota, writePeriod
	undo := func() error { return d.WriteFile("cpu.cfs_quota_us", oldQuota) }
	if oldQuota == "-1" || quota != "-1" && q1/p2 < q2/p1 {
		first, second = writePeriod, writeQuota
		undo = func() error { return d.WriteFile("cpu.cfs_period_us", oldPeriod) }
	}
	attempt := func(first, second, undo func() error) error {
		if err := first(); err != nil {
			return err
		}
		if err := second(); err != nil {
			return errors.Join(err, undo())
		}
		return nil
	}
	err := attempt(first, second, undo)
	if err == nil || !isInvalid(err) {
		return err
	}
	if quota == "-1" {
		return attempt(writeQuota, writePeriod, func() error { return d.WriteFile("cpu.cfs_quota_us", oldQuota) })
	}
	if err := d.WriteFile("cpu.cfs_quota_us", "-1"); err != nil {
		return err
	}
	if err := attempt(writePeriod, writeQuota, func() error { return d.WriteFile("cpu.cfs_period_us", oldPeriod) }); err != nil {
		return errors.Join(err, d.WriteFile("cpu.cfs_quota_us", oldQuota))
	}
	return nil
}

// wantBytes rounds down to whole pages, as the kernel does.
func wantBytes(_, value string) (string, error) {
	if value == "max" {
		return value, nil
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return "", fmt.Errorf("%w: %q, want bytes or max", ErrValue, value)
	}
	n -= n % pageSize()
	if n >= unlimited-unlimited%pageSize() {
		return "max", nil
	}
	return strconv.FormatUint(n, 10), nil
}

// Memory and memory+swap of v1 are one control, "LIMIT MEMSW" or "LIMIT" on a kernel that does not count swap: the kernel
// keeps LIMIT <= MEMSW, so neither can be saved or written without the other.
func readLimits(d Dir) (string, error) {
	limit, err := readLimit(d, "memory.limit_in_bytes")
	if err != nil {
		return "", err
	}
	memsw, err := readLimit(d, "memory.memsw.limit_in_bytes")
	if errors.Is(err, fs.ErrNotExist) {
		return limit, nil
	}
	return limit + " " + memsw, err
}

func readLimit(d Dir, file string) (string, error) {
	text, err := readTrimmed(file)(d)
	if err != nil {
		return "", err
	}
	return wantBytes("", text)
}

// wantLimits keeps what swap a container may use: none if memory+swap equalled memory, as containerd sets it, else
// memory+swap stays, and is raised only as far as the kernel demands.
func wantLimits(now, value string) (string, error) {
	limit, err := wantBytes("", value)
	if err != nil {
		return "", err
	}
	oldLimit, memsw, ok := strings.Cut(now, " ")
	switch {
	case !ok:
		return limit, nil
	case oldLimit == memsw && memsw != "max", bytesOf(limit) > bytesOf(memsw):
		memsw = limit
	}
	return limit + " " + memsw, nil
}

func bytesOf(s string) uint64 {
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return n
	}
	return math.MaxUint64
}

func setLimits(d Dir, now, want string) error {
	limit, memsw, both := strings.Cut(want, " ")
	oldLimit, oldMemsw, had := strings.Cut(now, " ")
	write := func(file, old, value string) error {
		if value == old {
			return nil
		}
		if value == "max" {
			value = "-1"
		}
		return d.WriteFile(file, value)
	}
	writeLimit := func() error { return write("memory.limit_in_bytes", oldLimit, limit) }
	if !both || !had {
		return writeLimit()
	}
	if bytesOf(limit) <= bytesOf(oldMemsw) {
		if err := writeLimit(); err != nil {
			return err
		}
		return write("memory.memsw.limit_in_bytes", oldMemsw, memsw)
	}
	if err := write("memory.memsw.limit_in_bytes", oldMemsw, memsw); err != nil {
		return err
	}
	return writeLimit()
}

// readIOWeight reads "100" (v1) or "default 100" with lines for single devices after it (v2).
func readIOWeight(file string) func(Dir) (string, error) {
	return func(d Dir) (string, error) {
		text, err := d.ReadFile(file)
		if err != nil {
			return "", err
		}
		for line := range strings.SplitSeq(text, "\n") {
			fields := strings.Fields(line)
			if len(fields) == 1 || len(fields) == 2 && fields[0] == "default" {
				return fields[len(fields)-1], nil
			}
		}
		return "", fmt.Errorf("no default weight in %s: %q", file, text)
	}
}

// Files returns the kernel files that carry a knob, any one of which will do; none if the version has nothing for it.
func Files(version int, k policy.Knob) []string {
	var files []string
	for _, c := range controls(version, k) {
		files = append(files, c.file)
	}
	return files
}

// Controller returns the name of a knob's controller, as it stands in the options of a v1 mount or in cgroup.controllers of v2; ""
// for a knob that is no cgroup file.
func Controller(version int, k policy.Knob) string {
	switch c := controllerOf(k); {
	case k.OfProcess() || !slices.Contains(policy.Knobs(), k):
		return ""
	case c == "io" && version == 1:
		return "blkio"
	default:
		return c
	}
}
