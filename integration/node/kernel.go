package node

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/integration/ioprio"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/internal/policy"
)

// controllers of the files that hold knobs, on cgroup v1.
var controllers = map[string][]string{
	"cpu":    {"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.idle", "cpu.weight", "cpu.max", "cpu.max.burst"},
	"cpuset": {"cpuset.cpus", "cpuset.mems"},
	"memory": {"memory.limit_in_bytes", "memory.low", "memory.high", "memory.max"},
	"blkio":  {"blkio.bfq.weight", "blkio.throttle.write_bps_device", "io.bfq.weight", "io.weight", "io.max"},
}

// Files reads the files of one cgroup, those that there are, by name, and "ioprio" of its first process. A container may
// be named by its pod's cgroup and its ID with either cgroup driver.
func Files(cgroup string) map[string]string {
	cgroup = scope(cgroup)
	files := map[string]string{}
	for controller, names := range controllers {
		for _, n := range names {
			if b, err := os.ReadFile(lab.CgroupFile(controller, cgroup, n)); err == nil {
				files[n] = strings.TrimSpace(string(b))
			}
		}
	}
	if b, err := os.ReadFile(lab.CgroupFile("cpu", cgroup, "cgroup.procs")); err == nil {
		first, _, _ := strings.Cut(string(b), "\n")
		if pid, err := strconv.Atoi(first); err == nil {
			if v, err := ioprio.Of(pid); err == nil {
				files["ioprio"] = v
			}
		}
	}
	return files
}

// Write writes a file of one cgroup as somebody else would.
func Write(cgroup, name, value string) error {
	for controller, names := range controllers {
		if slices.Contains(names, name) {
			return os.WriteFile(lab.CgroupFile(controller, scope(cgroup), name), []byte(value), 0)
		}
	}
	return fmt.Errorf("no controller has a file %s", name)
}

// Kernel reads a knob of one cgroup, "" where this machine has none.
func Kernel(cgroup string, k policy.Knob) string {
	v, _ := InKernel(k, Files(cgroup))
	return v
}

// InKernel says what the kernel's files have of a knob, in the knob's format. It is written apart from
// internal/cgroup on purpose.
func InKernel(k policy.Knob, files map[string]string) (string, bool) {
	v1 := func(name string) (string, bool) { v, ok := files[name]; return v, ok }
	switch k {
	case policy.CPUWeight:
		if v, ok := v1("cpu.shares"); ok {
			return v, true
		}
	case policy.CPUMax:
		if q, ok := v1("cpu.cfs_quota_us"); ok {
			if q == "-1" {
				q = "max"
			}
			return q + " " + files["cpu.cfs_period_us"], true
		}
	case policy.CPUMaxBurst:
		if v, ok := v1("cpu.cfs_burst_us"); ok {
			return v, true
		}
	case policy.MemoryMax:
		if v, ok := v1("memory.limit_in_bytes"); ok {
			return v, true
		}
	case policy.IOWeight:
		for _, name := range []string{"blkio.bfq.weight", "io.bfq.weight", "io.weight"} {
			if v, ok := v1(name); ok {
				first, _, _ := strings.Cut(v, "\n")
				return strings.TrimPrefix(first, "default "), true
			}
		}
	}
	v, ok := files[string(k)]
	return v, ok
}

// Holds says whether what InKernel gives is what was decided. A cgroup with cpu.idle 1 has the least weight there is: v1
// shows shares of 3, v2 a weight of 0, or of 1 since 6.12.
func Holds(k policy.Knob, decided, kernel string) bool {
	if k == policy.CPUWeight && decided == policy.Unset {
		return kernel == "3" || kernel == "0" || kernel == "1"
	}
	return kernel == decided
}
