package hostfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/policy"
)

// reader collects problems, so that reading goes on.
type reader struct {
	source
	problems []string
}

func (r *reader) problem(name string, err error) {
	what := err.Error()
	if errors.Is(err, fs.ErrNotExist) {
		what = "not there"
	}
	r.problems = append(r.problems, name+": "+what)
}

// trimmed returns a file's text, "" and a problem if it can't be had.
func (r *reader) trimmed(name string) string {
	text, err := r.text(name)
	if err != nil {
		r.problem(name, err)
	}
	return strings.TrimSpace(text)
}

// optional is trimmed for a file that many machines lack.
func (r *reader) optional(name string) (string, bool) {
	text, err := r.text(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.problem(name, err)
		}
		return "", false
	}
	return strings.TrimSpace(text), true
}

// number reads a whole number of a file, -1 if there is none.
func (r *reader) number(name string) int {
	text, ok := r.optional(name)
	if !ok {
		return -1
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < -1 {
		r.problem(name, fmt.Errorf("no number: %.40q", text))
		return -1
	}
	return int(n)
}

// list reads a list of at most that many numbers.
func (r *reader) list(name string, most int) (cpuset.CPUSet, bool) {
	text, err := r.text(name)
	if err != nil {
		r.problem(name, err)
		return cpuset.New(), false
	}
	set, err := parseList(strings.TrimSpace(text), most)
	if err != nil {
		r.problem(name, err)
		return cpuset.New(), false
	}
	return set, true
}

// Bounds above what any kernel is built for. A snapshot is not trusted: "0-4000000000" alone would fill the memory,
// and so would a full list in each of a thousand files.
const (
	maxCPUs    = 8192
	maxNodes   = 1024
	maxThreads = 64 // of a core
	maxCaches  = 16 // of a CPU
)

// parseList reads "0-3,8".
func parseList(text string, most int) (cpuset.CPUSet, error) {
	if _, err := leastOf(text, most); err != nil {
		return cpuset.New(), err
	}
	set, err := cpuset.Parse(text)
	if err != nil {
		return cpuset.New(), badList(text, most)
	}
	return set, nil
}

// leastOf reads a list for its least number, -1 if it is empty, and makes no set.
func leastOf(text string, most int) (int, error) {
	if text == "" {
		return -1, nil
	}
	least, count := maxCPUs, 0
	for part := range strings.SplitSeq(text, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 32)
		b, err2 := strconv.ParseUint(last, 10, 32)
		if err1 != nil || err2 != nil || a > b || b >= maxCPUs {
			return -1, badList(text, most)
		}
		if count += int(b-a) + 1; count > most {
			return -1, badList(text, most)
		}
		least = min(least, int(a))
	}
	return least, nil
}

func badList(text string, most int) error {
	return fmt.Errorf("no list of at most %d numbers below %d: %.40q", most, maxCPUs, text)
}

func readFacts(src source) Facts {
	r := &reader{source: src}
	f := Facts{PageSizeBytes: r.pageSize()}
	f.Node.PageSize = f.PageSizeBytes
	f.Kernel = r.trimmed("proc/sys/kernel/osrelease")
	if text := r.trimmed("proc/meminfo"); text != "" {
		var err error
		if f.MemTotalBytes, err = memTotal(text); err != nil {
			r.problem("proc/meminfo", err)
		}
	}
	_, f.PSI = r.optional("proc/pressure/cpu")
	mountinfo := r.trimmed("proc/self/mountinfo")
	mounts := cgroup.ParseMountinfo(mountinfo)
	f.Resctrl = findResctrl(mountinfo)
	f.Node.Online, _ = r.list("sys/devices/system/cpu/online", maxCPUs)
	f.Present, _ = r.list("sys/devices/system/cpu/present", maxCPUs)
	f.Isolated, _ = r.list("sys/devices/system/cpu/isolated", maxCPUs)
	f.NUMANodes = r.numa()
	f.CPUs = r.cpus(f.Node.Online, f.NUMANodes)
	var disks []disk
	f.Node.Devices, disks = r.devices()
	f.Node.CgroupVersion, f.CgroupDriver, f.Node.Features = r.cgroupFacts(mounts, f.Kernel, disks)
	f.Node.Features[policy.Resctrl] = r.resctrl(f.Resctrl != nil)
	f.Problems = r.problems
	return f
}

// resctrl says whether there is resctrl. The kernel names the file system where the CPU has what it needs.
func (r *reader) resctrl(mounted bool) policy.Feature {
	names, known := r.optional("proc/filesystems")
	switch {
	case mounted:
		return policy.Feature{Support: policy.Supported}
	case !known:
		return policy.Feature{}
	case slices.Contains(strings.Fields(names), "resctrl"):
		return policy.Feature{Support: policy.Unsupported, Need: "resctrl to be mounted: tideline resctrl --mount"}
	}
	return policy.Feature{Support: policy.Unsupported, Need: "a CPU with cache or memory bandwidth allocation, and a kernel with resctrl"}
}

// memTotal reads "MemTotal:       24576 kB" and, of a node, "Node 0 MemTotal:       24576 kB".
func memTotal(text string) (int64, error) {
	for line := range strings.SplitSeq(text, "\n") {
		_, value, ok := strings.Cut(line, "MemTotal:")
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 52)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("bad line %.80q", line)
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("no MemTotal")
}

func (r *reader) numa() []NUMANode {
	const dir = "sys/devices/system/node"
	online, ok := r.list(dir+"/online", maxNodes)
	if !ok {
		return nil
	}
	var nodes []NUMANode
	left := maxCPUs // a CPU is in one node only
	for _, id := range online.List() {
		n := NUMANode{ID: id}
		at := fmt.Sprintf("%s/node%d/", dir, id)
		n.CPUs, _ = r.list(at+"cpulist", left)
		left -= n.CPUs.Size()
		if text := r.trimmed(at + "meminfo"); text != "" {
			var err error
			if n.MemTotalBytes, err = memTotal(text); err != nil {
				r.problem(at+"meminfo", err)
			}
		}
		if text := r.trimmed(at + "distance"); text != "" {
			var err error
			if n.Distances, err = distances(text, online.Size()); err != nil {
				r.problem(at+"distance", err)
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// distances reads "10 21 17", a number for each online node.
func distances(text string, nodes int) ([]int, error) {
	fields := strings.Fields(text)
	if len(fields) != nodes {
		return nil, fmt.Errorf("%d distances for %d online nodes", len(fields), nodes)
	}
	list := make([]int, nodes)
	for i, field := range fields {
		d, err := strconv.ParseUint(field, 10, 8)
		if err != nil {
			return nil, fmt.Errorf("no distance: %.40q", field)
		}
		list[i] = int(d)
	}
	return list, nil
}

func (r *reader) cpus(online cpuset.CPUSet, nodes []NUMANode) []CPU {
	nodeOf := map[int]int{}
	for _, n := range nodes {
		for _, id := range n.CPUs.List() {
			nodeOf[id] = n.ID
		}
	}
	var cpus []CPU
	for _, id := range online.List() {
		at := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", id)
		c := CPU{
			ID:       id,
			Package:  r.number(at + "topology/physical_package_id"),
			Die:      r.number(at + "topology/die_id"),
			Core:     r.number(at + "topology/core_id"),
			NUMANode: -1,
		}
		c.L2, c.L3 = r.caches(at + "cache")
		c.Siblings, _ = r.list(at+"topology/thread_siblings_list", maxThreads)
		if node, ok := nodeOf[id]; ok {
			c.NUMANode = node
		}
		cpus = append(cpus, c)
	}
	r.efficient(cpus)
	return cpus
}

// caches finds the caches that several cores may share. Many virtual machines show none.
func (r *reader) caches(dir string) (l2, l3 Cache) {
	l2, l3 = Cache{ID: -1, First: -1}, Cache{ID: -1, First: -1}
	for i := range maxCaches {
		at := fmt.Sprintf("%s/index%d/", dir, i)
		level, ok := r.optional(at + "level")
		if !ok {
			break
		}
		switch level {
		case "2":
			l2 = r.cache(at)
		case "3":
			l3 = r.cache(at)
		}
	}
	return l2, l3
}

// cache reads the list of sharers only where there is no id (kernels before 4.10, many arm64 machines): it is long.
func (r *reader) cache(at string) Cache {
	c := Cache{ID: r.number(at + "id"), First: -1}
	if c.ID >= 0 {
		return c
	}
	if text, ok := r.optional(at + "shared_cpu_list"); ok {
		var err error
		if c.First, err = leastOf(text, maxCPUs); err != nil {
			r.problem(at+"shared_cpu_list", err)
		}
	}
	return c
}

// efficient marks the smaller cores. On Intel each kind of core has a PMU of its own that lists its CPUs, the big ones
// cpu_core; elsewhere the kernel gives each CPU a capacity, and the biggest 1024.
func (r *reader) efficient(cpus []CPU) {
	small, hybrid := cpuset.New(), false
	for _, name := range []string{"sys/devices/cpu_atom/cpus", "sys/devices/cpu_lowpower/cpus"} {
		text, ok := r.optional(name)
		if !ok {
			continue
		}
		hybrid = true
		set, err := parseList(text, maxCPUs)
		if err != nil {
			r.problem(name, err)
		}
		small = small.Union(set)
	}
	capacities, biggest := make([]int, len(cpus)), 0
	for i := range cpus {
		if hybrid {
			cpus[i].Efficient = small.Contains(cpus[i].ID)
			continue
		}
		capacities[i] = r.number(fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpu_capacity", cpus[i].ID))
		biggest = max(biggest, capacities[i])
	}
	// Cores of one kind differ by a few percent where some may clock higher.
	for i, c := range capacities {
		if c > 0 && c < biggest/4*3 {
			cpus[i].Efficient = true
		}
	}
}

// disk is a device with its I/O scheduler.
type disk struct {
	policy.Device
	scheduler string
}

func (r *reader) devices() ([]policy.Device, []disk) {
	names, err := r.names("sys/block")
	if err != nil {
		// A machine without a disk has no such directory in its snapshot, so that is no problem.
		if !errors.Is(err, fs.ErrNotExist) {
			r.problem("sys/block", err)
		}
		return nil, nil
	}
	var devices []policy.Device
	var disks []disk
	for _, name := range names {
		// Memory and files in disguise, and drives of removable media: no place for a service's data.
		if hasAnyPrefix(name, "loop", "ram", "zram", "fd", "sr") {
			continue
		}
		at := "sys/block/" + name + "/"
		// Kernels make unused nbd and the like with size 0.
		if size, ok := r.optional(at + "size"); ok && size == "0" {
			continue
		}
		d := policy.Device{Name: name, Number: r.trimmed(at + "dev")}
		if !isDevice(d.Number) {
			if d.Number != "" {
				r.problem(at+"dev", fmt.Errorf("no device number: %.40q", d.Number))
			}
			continue
		}
		rotational, _ := r.optional(at + "queue/rotational")
		d.Rotational = rotational == "1"
		scheduler, _ := r.optional(at + "queue/scheduler")
		devices = append(devices, d)
		disks = append(disks, disk{d, selected(scheduler)})
	}
	return devices, disks
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

func isDevice(s string) bool {
	major, minor, ok := strings.Cut(s, ":")
	_, err1 := strconv.ParseUint(major, 10, 12)
	_, err2 := strconv.ParseUint(minor, 10, 20)
	return ok && err1 == nil && err2 == nil
}

// selected reads "none [mq-deadline] kyber bfq".
func selected(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	name, _, ok := strings.Cut(rest, "]")
	if !ok {
		return ""
	}
	return name
}

func (r *reader) cgroupFacts(mounts []cgroup.Mount, kernel string, disks []disk) (version int, driver string, features map[policy.Knob]policy.Feature) {
	features = map[policy.Knob]policy.Feature{
		policy.OOMScoreAdj: {Support: policy.Supported},
		policy.IOPriority:  {Support: policy.Supported, Inert: inertPriority(disks)},
	}
	seen := map[string]cgroupFiles{}
	for _, k := range policy.Knobs() {
		mount, v := hierarchyOf(mounts, k)
		controller := cgroup.Controller(v, k)
		if k.OfProcess() {
			continue
		}
		if v == 0 {
			if len(mounts) > 0 {
				features[k] = policy.Feature{Support: policy.Unsupported, Need: "controller " + controller + " in a mounted hierarchy"}
			}
			continue
		}
		if version == 0 || v < version {
			version = v
		}
		files, ok := seen[controller]
		if !ok {
			var err error
			if files, err = r.cgroups(mount, controller, v); err != nil {
				r.problem(mount, err)
			}
			// Where no child shows the controller's files, the root says whether there is a controller at all.
			if v == 2 && files.child == nil {
				text, ok := r.optional(path.Join(mount, "cgroup.controllers"))
				files.noController = ok && !slices.Contains(strings.Fields(text), controller)
			}
			seen[controller] = files
		}
		if files.noController {
			features[k] = policy.Feature{Support: policy.Unsupported, Need: "controller " + controller + ", which cgroup.controllers lacks"}
			continue
		}
		for _, name := range files.kubepods {
			driver = map[string]string{"kubepods": "cgroupfs", "kubepods.slice": "systemd"}[name]
		}
		if f := feature(v, k, files, kernel); f.Support != policy.SupportUnset {
			features[k] = f
		}
	}
	if version == 0 {
		r.problem("proc/self/mountinfo", fmt.Errorf("no cgroup hierarchy with a controller of ours"))
	}
	if f, ok := features[policy.IOWeight]; ok && f.Support == policy.Supported {
		f.Inert = r.inertWeight(mounts, disks)
		features[policy.IOWeight] = f
	}
	return version, driver, features
}

// feature decides from a child's files, else from the root's (which has only some of them, so it can't deny), else from
// the kernel's release, which can only deny: a new kernel may be built without the feature.
func feature(version int, k policy.Knob, files cgroupFiles, kernel string) policy.Feature {
	no := policy.Feature{Support: policy.Unsupported, Need: cgroup.Need(version, k)}
	want := cgroup.Files(version, k)
	has := func(names []string) bool {
		return slices.ContainsFunc(want, func(file string) bool { return slices.Contains(names, file) })
	}
	switch {
	case len(want) == 0:
		return no
	case has(files.child) || has(files.root):
		return policy.Feature{Support: policy.Supported}
	case files.child != nil:
		return no
	case k == policy.CPUMaxBurst && olderThan(kernel, 5, 14), k == policy.CPUIdle && olderThan(kernel, 5, 15):
		return no
	}
	return policy.Feature{}
}

// olderThan compares a release such as "6.1.0-57-amd64". One that it can't read is not older.
func olderThan(release string, major, minor int) bool {
	parts := strings.FieldsFunc(release, func(c rune) bool { return c < '0' || c > '9' })
	if len(parts) < 2 || release[0] < '0' || release[0] > '9' {
		return false
	}
	a, err1 := strconv.Atoi(parts[0])
	b, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (a < major || a == major && b < minor)
}

// inertPriority says why an I/O priority has no effect, or "": of the schedulers of the kernel two read it.
func inertPriority(disks []disk) string {
	if slices.ContainsFunc(disks, func(d disk) bool { return d.scheduler == "bfq" || d.scheduler == "mq-deadline" }) {
		return ""
	}
	return "no disk uses bfq or mq-deadline"
}

// inertWeight says why an I/O weight has no effect, or "". Bfq has to be the scheduler of a disk; or iocost has to be enabled for one, which only v2 can.
func (r *reader) inertWeight(mounts []cgroup.Mount, disks []disk) string {
	for _, d := range disks {
		if d.scheduler == "bfq" {
			return ""
		}
	}
	mount, version := hierarchyOf(mounts, policy.IOWeight)
	if version == 1 {
		return "no disk uses bfq"
	}
	// 254:0 enable=1 ctrl=auto rpct=0.00 rlat=250000 …
	qos, _ := r.optional(path.Join(mount, "io.cost.qos"))
	for line := range strings.SplitSeq(qos, "\n") {
		if slices.Contains(strings.Fields(line), "enable=1") {
			return ""
		}
	}
	return "no disk uses bfq or iocost"
}
