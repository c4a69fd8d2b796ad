// Command readback reads what the kernel has for containers that it knows by ID alone: it looks for each ID in
// /proc/*/cgroup and prints the files of that cgroup and of its parent as JSON, in the names of the files. It shares no
// code with Tideline, so that it can't share a mistake either.
//
//	readback ID…
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/integration/ioprio"
)

// files to read, by cgroup v1 controller.
var files = map[string][]string{
	"cpu":    {"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.idle", "cpu.weight", "cpu.max", "cpu.max.burst"},
	"cpuset": {"cpuset.cpus", "cpuset.mems"},
	"memory": {"memory.limit_in_bytes", "memory.low", "memory.high", "memory.max"},
	"blkio": {"blkio.bfq.weight", "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device", "blkio.throttle.read_iops_device",
		"blkio.throttle.write_iops_device", "io.weight", "io.bfq.weight", "io.max"},
}

type container struct {
	Files map[string]string `json:"files"` // of the container's cgroup, and oom_score_adj and ioprio of its first process
	Pod   map[string]string `json:"pod"`   // of the cgroup above it
}

func main() {
	out := map[string]container{}
	for _, id := range os.Args[1:] {
		c, err := read(id)
		if err != nil {
			fmt.Fprintln(os.Stderr, "readback:", err)
			os.Exit(1)
		}
		out[id] = c
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", " ")
	if err := enc.Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, "readback:", err)
		os.Exit(1)
	}
}

func read(id string) (container, error) {
	procs, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return container{}, err
	}
	for _, proc := range procs {
		b, err := os.ReadFile(proc)
		// CRI-O's monitor of a container has a cgroup beside it.
		if err != nil || !strings.Contains(strings.ReplaceAll(string(b), "crio-conmon-"+id, ""), id) {
			continue
		}
		c := container{Files: map[string]string{}, Pod: map[string]string{}}
		for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
			f := strings.SplitN(line, ":", 3)
			if len(f) != 3 || !strings.Contains(f[2], id) {
				continue
			}
			for _, controller := range strings.Split(f[1], ",") {
				root := filepath.Join("/sys/fs/cgroup", controller)
				names := files[controller]
				if controller == "" {
					if root = "/sys/fs/cgroup"; exists(root + "/unified") {
						continue // the v2 hierarchy beside v1 ones has none of these files
					}
					for _, n := range files {
						names = append(names, n...)
					}
				}
				dir := filepath.Join(root, f[2])
				for _, n := range names {
					take(c.Files, dir, n)
					take(c.Pod, filepath.Dir(dir), n)
				}
			}
		}
		take(c.Files, filepath.Dir(proc), "oom_score_adj")
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(proc)))
		if err != nil {
			return container{}, err
		}
		if c.Files["ioprio"], err = ioprio.Of(pid); err != nil {
			return container{}, err
		}
		return c, nil
	}
	return container{}, fmt.Errorf("no process runs in a cgroup of container %s", id)
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func take(into map[string]string, dir, name string) {
	if b, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
		into[name] = strings.TrimSpace(string(b))
	}
}
