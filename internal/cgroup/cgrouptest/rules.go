package cgrouptest

import (
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"
)

// hierarchy is a mount with the files of a child cgroup and of the root.
type hierarchy struct {
	point, fstype, option string
	files                 map[string]string
	rootFiles             map[string]string
}

const (
	defaultShares = "1024\n"
	idleShares    = "3\n" // scale_load(WEIGHT_IDLEPRIO)
	noLimitV1     = math.MaxInt64
)

// Files that are all of the machine: nothing here narrows a parent.
const effectiveCPUs, effectiveMems = "cpuset.cpus.effective", "cpuset.mems.effective"

func hierarchies(layout Layout) []hierarchy {
	if layout == V2 {
		all := "cpuset cpu io memory hugetlb pids rdma misc\n"
		return []hierarchy{{
			point: "/sys/fs/cgroup", fstype: "cgroup2",
			files: map[string]string{
				"cgroup.controllers": all, "cgroup.subtree_control": all,
				"cpu.weight": "100\n", "cpu.max": "max 100000\n", "cpu.max.burst": "0\n", "cpu.idle": "0\n",
				"cgroup.threads": "",
				"cpuset.cpus":    "\n",
				"cpuset.mems":    "\n",
				effectiveCPUs:    "",
				effectiveMems:    "",
				"memory.low":     "0\n",
				"memory.high":    "max\n",
				"memory.max":     "max\n",
				"io.bfq.weight":  "default 100\n",
				"io.weight":      "default 100\n",
				"io.max":         "",
			},
			rootFiles: map[string]string{"cgroup.controllers": all, "cgroup.subtree_control": all, effectiveCPUs: "", effectiveMems: ""},
		}}
	}
	cpu := map[string]string{
		"cpu.shares": defaultShares, "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n",
		"cpu.cfs_burst_us": "0\n", "cpu.idle": "0\n",
	}
	limit := strconv.FormatInt(noLimitV1-noLimitV1%int64(os.Getpagesize()), 10) + "\n"
	memory := map[string]string{"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
	throttle := map[string]string{
		"blkio.throttle.read_bps_device": "", "blkio.throttle.write_bps_device": "",
		"blkio.throttle.read_iops_device": "", "blkio.throttle.write_iops_device": "",
	}
	blkio := map[string]string{"blkio.bfq.weight": "100\n"}
	for name, text := range throttle {
		blkio[name] = text
	}
	return []hierarchy{
		{"/sys/fs/cgroup/cpu", "cgroup", ",cpu", cpu, cpu},
		{"/sys/fs/cgroup/cpuset", "cgroup", ",cpuset", map[string]string{"tasks": "", "cpuset.cpus": "\n", "cpuset.mems": "\n"}, map[string]string{"cpuset.cpus": "0-3\n", "cpuset.mems": "0\n"}},
		{"/sys/fs/cgroup/memory", "cgroup", ",memory", memory, memory},
		{"/sys/fs/cgroup/blkio", "cgroup", ",blkio", blkio, throttle},
		{"/sys/fs/cgroup/unified", "cgroup2", "", map[string]string{"cgroup.controllers": "\n"}, map[string]string{"cgroup.controllers": "\n"}},
	}
}

// apply is a write to a file, by the kernel's rules. The errors are bare errno values.
func (k *Kernel) apply(h hierarchy, p, file, data string) error {
	if _, err := os.Stat(k.file(h, p, file)); err != nil {
		return unix.ENOENT
	}
	if data == "" {
		// The kernel's handler is not called.
		return nil
	}
	g := &writing{k: k, h: h, path: p}
	data = strings.TrimSpace(data)
	switch file {
	case "cpu.shares":
		return g.shares(data)
	case "cpu.weight":
		return g.weight(data)
	case "cpu.idle":
		return g.idle(data)
	case "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.max", "cpu.max.burst":
		return g.bandwidth(file, data)
	case "cpuset.cpus":
		return g.cpuset(file, data, g.k.cpus, g.k.cpus)
	case "cpuset.mems":
		return g.cpuset(file, data, g.k.nodes, maxNodes)
	case "memory.limit_in_bytes", "memory.memsw.limit_in_bytes":
		return g.limitV1(file, data)
	case "memory.low", "memory.high", "memory.max":
		n, err := bytes(data, "max", noLimitV1)
		if err != nil {
			return err
		}
		if n >= noLimitV1-noLimitV1%uint64(os.Getpagesize()) {
			return g.put(file, "max")
		}
		return g.put(file, strconv.FormatUint(n, 10))
	case "blkio.bfq.weight":
		return g.ioWeight(file, data, "", 1000, unix.ERANGE)
	case "io.bfq.weight":
		return g.ioWeight(file, data, "default ", 1000, unix.ERANGE)
	case "io.weight":
		return g.ioWeight(file, data, "default ", 10000, unix.EINVAL)
	case "io.max":
		return g.ioMax(data)
	}
	if strings.HasPrefix(file, "blkio.throttle.") {
		return g.throttle(file, data)
	}
	return unix.EACCES
}

type writing struct {
	k    *Kernel
	h    hierarchy
	path string
}

func (g *writing) get(file string) string {
	text, err := os.ReadFile(g.k.file(g.h, g.path, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (g *writing) put(file, text string) error {
	if text != "" || strings.HasPrefix(file, "cpuset.") {
		text += "\n"
	}
	return os.WriteFile(g.k.file(g.h, g.path, file), []byte(text), 0o644)
}

func (g *writing) at(p string) *writing { return &writing{g.k, g.h, p} }

func (g *writing) isIdle() bool { return g.get("cpu.idle") == "1" }

func (g *writing) shares(data string) error {
	n, err := strconv.ParseUint(data, 10, 64)
	if err != nil || g.isIdle() {
		return unix.EINVAL
	}
	return g.put("cpu.shares", strconv.FormatUint(min(max(n, 2), 262144), 10))
}

func (g *writing) weight(data string) error {
	n, err := strconv.ParseUint(data, 10, 64)
	switch {
	case err != nil:
		return unix.EINVAL
	case n < 1 || n > 10000:
		return unix.ERANGE
	case g.isIdle():
		return unix.EINVAL
	}
	return g.put("cpu.weight", data)
}

func (g *writing) idle(data string) error {
	if data != "0" && data != "1" {
		return unix.EINVAL
	}
	if data == g.get("cpu.idle") {
		return nil
	}
	file, byDefault, under := "cpu.weight", "100", g.k.IdleWeight
	if g.k.layout == V1 {
		file, byDefault, under = "cpu.shares", strings.TrimSpace(defaultShares), strings.TrimSpace(idleShares)
	}
	if data == "1" {
		byDefault = under
	}
	if err := g.put(file, byDefault); err != nil {
		return err
	}
	return g.put("cpu.idle", data)
}

const noQuota = math.MaxInt64

// cpu is the bandwidth of one cgroup.
type cpu struct{ quota, period, burst int64 }

func (c cpu) ratio() int64 {
	if c.quota == noQuota {
		return noQuota
	}
	return c.quota << 20 / c.period
}

func (g *writing) cpu() cpu {
	quota, period, burst := g.get("cpu.cfs_quota_us"), g.get("cpu.cfs_period_us"), g.get("cpu.cfs_burst_us")
	if g.k.layout == V2 {
		quota, period, _ = strings.Cut(g.get("cpu.max"), " ")
		burst = g.get("cpu.max.burst")
	}
	c := cpu{quota: noQuota, period: 100000}
	if n, err := strconv.ParseInt(quota, 10, 64); err == nil && n >= 0 {
		c.quota = n
	}
	if n, err := strconv.ParseInt(period, 10, 64); err == nil && n > 0 {
		c.period = n
	}
	c.burst, _ = strconv.ParseInt(burst, 10, 64)
	return c
}

func (g *writing) bandwidth(file, data string) error {
	c := g.cpu()
	switch file {
	case "cpu.max":
		quota, period, both := strings.Cut(data, " ")
		if both {
			n, err := strconv.ParseUint(strings.TrimSpace(period), 10, 63)
			if err != nil {
				return unix.EINVAL
			}
			c.period = int64(n)
		}
		if c.quota = noQuota; quota != "max" {
			n, err := strconv.ParseUint(quota, 10, 63)
			if err != nil {
				return unix.EINVAL
			}
			c.quota = int64(n)
		}
	case "cpu.cfs_quota_us":
		n, err := strconv.ParseInt(data, 10, 64)
		if err != nil {
			return unix.EINVAL
		}
		if c.quota = n; n < 0 {
			c.quota = noQuota
		}
	default:
		n, err := strconv.ParseUint(data, 10, 63)
		if err != nil {
			return unix.EINVAL
		}
		if file == "cpu.cfs_period_us" {
			c.period = int64(n)
		} else {
			c.burst = int64(n)
		}
	}
	if c.quota < 1000 || c.period < 1000 || c.period > 1000000 || c.quota != noQuota && c.burst > c.quota {
		return unix.EINVAL
	}
	if g.k.layout == V2 {
		quota := "max"
		if c.quota != noQuota {
			quota = strconv.FormatInt(c.quota, 10)
		}
		return g.putAll(map[string]string{"cpu.max": fmt.Sprintf("%s %d", quota, c.period), "cpu.max.burst": strconv.FormatInt(c.burst, 10)})
	}
	if !g.fits(c) {
		return unix.EINVAL
	}
	quota := int64(-1)
	if c.quota != noQuota {
		quota = c.quota
	}
	return g.putAll(map[string]string{
		"cpu.cfs_quota_us": strconv.FormatInt(quota, 10), "cpu.cfs_period_us": strconv.FormatInt(c.period, 10),
		"cpu.cfs_burst_us": strconv.FormatInt(c.burst, 10),
	})
}

// putAll skips files that this kernel lacks.
func (g *writing) putAll(texts map[string]string) error {
	for file, text := range texts {
		if _, err := os.Stat(g.k.file(g.h, g.path, file)); err != nil {
			continue
		}
		if err := g.put(file, text); err != nil {
			return err
		}
	}
	return nil
}

// fits is v1's rule: no cgroup may have a larger share of a CPU than the nearest cgroup above that has a quota.
func (g *writing) fits(c cpu) bool {
	above := int64(noQuota)
	for p := g.path; p != "/" && above == noQuota; {
		p = path.Dir(p)
		above = g.at(p).cpu().ratio()
	}
	ratio := c.ratio()
	if ratio != noQuota && ratio > above {
		return false
	}
	return g.childrenFit(min(ratio, above))
}

func (g *writing) childrenFit(above int64) bool {
	for _, child := range g.children() {
		ratio := child.cpu().ratio()
		if ratio != noQuota && ratio > above || !child.childrenFit(min(ratio, above)) {
			return false
		}
	}
	return true
}

func (g *writing) children() []*writing {
	entries, err := os.ReadDir(g.k.file(g.h, g.path, ""))
	if err != nil {
		return nil
	}
	var children []*writing
	for _, e := range entries {
		if e.IsDir() {
			children = append(children, g.at(path.Join(g.path, e.Name())))
		}
	}
	return children
}

// maxNodes is MAX_NUMNODES of common kernels.
const maxNodes = 1024

// cpuset writes a list of numbers of which count exist and limit can be named at all.
func (g *writing) cpuset(file, data string, count, limit int) error {
	for number := range strings.FieldsFuncSeq(data, func(c rune) bool { return c == ',' || c == '-' }) {
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return unix.EINVAL
		}
		if n >= uint64(limit) {
			return unix.ERANGE
		}
	}
	set, err := cpuset.Parse(data)
	if err != nil || !set.IsEmpty() && set.List()[set.Size()-1] >= count {
		return unix.EINVAL
	}
	if set.IsEmpty() && g.k.populated[g.path] && g.get(file) != "" {
		return unix.ENOSPC // validate_change in kernel/cgroup/cpuset.c
	}
	if g.k.layout == V1 {
		for _, child := range g.children() {
			if below, err := cpuset.Parse(child.get(file)); err == nil && !below.IsSubsetOf(set) {
				return unix.EBUSY
			}
		}
		if above, err := cpuset.Parse(g.at(path.Dir(g.path)).get(file)); err == nil && !set.IsSubsetOf(above) {
			return unix.EACCES
		}
	}
	return g.put(file, set.String())
}

// bytes reads a size in whole pages.
func bytes(data, none string, most uint64) (uint64, error) {
	page := uint64(os.Getpagesize())
	if data == none {
		return most - most%page, nil
	}
	n, err := strconv.ParseUint(data, 10, 64)
	if err != nil {
		return 0, unix.EINVAL
	}
	n = min(n, most)
	return n - n%page, nil
}

func (g *writing) limitV1(file, data string) error {
	n, err := bytes(data, "-1", noLimitV1)
	if err != nil {
		return err
	}
	limits := map[string]uint64{}
	for _, name := range []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"} {
		if limits[name], err = bytes(g.get(name), "", noLimitV1); err != nil {
			limits[name] = noLimitV1
		}
	}
	limits[file] = n
	if limits["memory.limit_in_bytes"] > limits["memory.memsw.limit_in_bytes"] {
		return unix.EINVAL
	}
	return g.put(file, strconv.FormatUint(n, 10))
}

func (g *writing) ioWeight(file, data, prefix string, most uint64, outside error) error {
	if prefix != "" {
		data = strings.TrimPrefix(data, prefix)
	}
	n, err := strconv.ParseUint(data, 10, 64)
	switch {
	case err != nil:
		return unix.EINVAL
	case n < 1 || n > most:
		return outside
	}
	return g.put(file, prefix+data)
}

func (g *writing) known(device string) error {
	major, minor, ok := strings.Cut(device, ":")
	_, err1 := strconv.ParseUint(major, 10, 32)
	_, err2 := strconv.ParseUint(minor, 10, 32)
	switch {
	case !ok || err1 != nil || err2 != nil:
		return unix.EINVAL
	case !slices.Contains(g.k.Devices, device):
		return unix.ENODEV
	}
	return nil
}

// replaceLine puts a device's line in the place of its old one; "" takes it away.
func (g *writing) replaceLine(file, device, line string) error {
	var lines []string
	for old := range strings.SplitSeq(g.get(file), "\n") {
		if old != "" && !strings.HasPrefix(old, device+" ") {
			lines = append(lines, old)
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return g.put(file, strings.Join(lines, "\n"))
}

func (g *writing) throttle(file, data string) error {
	device, value, ok := strings.Cut(data, " ")
	if err := g.known(device); err != nil {
		return err
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if !ok || err != nil {
		return unix.EINVAL
	}
	none := uint64(math.MaxUint64)
	if strings.Contains(file, "_iops_") {
		// The kernel cuts the upper half off.
		n, none = n&math.MaxUint32, math.MaxUint32
	}
	if n == 0 || n == none {
		return g.replaceLine(file, device, "")
	}
	return g.replaceLine(file, device, fmt.Sprintf("%s %d", device, n))
}

var ioKeys = []string{"rbps", "wbps", "riops", "wiops"}

func (g *writing) ioMax(data string) error {
	fields := strings.Fields(data)
	if len(fields) == 0 {
		return unix.EINVAL
	}
	device := fields[0]
	if err := g.known(device); err != nil {
		return err
	}
	values := map[string]string{}
	for line := range strings.SplitSeq(g.get("io.max"), "\n") {
		if rest, ok := strings.CutPrefix(line, device+" "); ok {
			for _, field := range strings.Fields(rest) {
				key, value, _ := strings.Cut(field, "=")
				values[key] = value
			}
		}
	}
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		switch {
		case value == "max":
			values[key] = value
			n = math.MaxUint64
		case err != nil:
			return unix.EINVAL
		case n == 0:
			return unix.ERANGE
		}
		if n == 1 || !slices.Contains(ioKeys, key) {
			return unix.EINVAL
		}
		values[key] = strconv.FormatUint(n, 10)
		if n == math.MaxUint64 || strings.HasSuffix(key, "iops") && n >= math.MaxUint32 {
			values[key] = "max"
		}
	}
	line, limited := device, false
	for _, key := range ioKeys {
		value := values[key]
		if value == "" {
			value = "max"
		}
		limited = limited || value != "max"
		line += " " + key + "=" + value
	}
	if !limited {
		line = ""
	}
	return g.replaceLine("io.max", device, line)
}
