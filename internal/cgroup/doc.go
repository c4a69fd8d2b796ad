// Package cgroup is the only writer of cgroup files in Tideline. It owns path safety, the order in which the kernel
// accepts values, read-back, and a journal of every value it overwrites, so that all of it can be undone. It speaks
// cgroup v2 and v1 (hybrid included), and path names of the cgroupfs and the systemd driver.
//
//	f, err := cgroup.Open(cgroup.Config{Root: "/", StateDir: "/run/tideline/journal"})
//	p, err := f.Container(pid, containerID)
//	changes, err := f.WriteAll(p, decision.Settings)
//	err = f.Undo(p)
//
// It never creates or removes a cgroup or a file, never moves a process, never follows a symbolic link or leaves a
// hierarchy's mount, and never decides a value. It refuses every cgroup that is not the kubelet's, and
// CPU weight and idle of anything but a container: what the kubelet and the scheduler read back is theirs.
//
// In a container with a cgroup namespace of its own it works where all of the host's hierarchy is mounted there: paths are
// turned into those that the host has.
//
// It does not talk to systemd: on a node with the systemd driver a daemon-reload may reset files of a slice, until the
// caller writes them again.
//
// # Files
//
//	knob            cgroup v2                            cgroup v1
//	cpuset.cpus     cpuset.cpus                          cpuset.cpus
//	cpuset.mems     cpuset.mems                          cpuset.mems
//	cpu.weight      cpu.weight (shares converted)        cpu.shares
//	cpu.max         cpu.max                              cpu.cfs_quota_us, cpu.cfs_period_us
//	cpu.max.burst   cpu.max.burst                        cpu.cfs_burst_us
//	cpu.idle        cpu.idle                             cpu.idle
//	memory.low      memory.low                           none
//	memory.high     memory.high                          none
//	memory.max      memory.max                           memory.limit_in_bytes, memory.memsw.limit_in_bytes
//	io.weight       io.bfq.weight and io.weight          blkio.bfq.weight
//	io.max          io.max                               blkio.throttle.{read,write}_{bps,iops}_device
//
// A new cpuset.mems moves the pages of the cgroup's tasks on v2 (on v1 only if cpuset.memory_migrate is set), and the
// write lasts that long.
//
// oom_score_adj and ioprio are no cgroup files and are refused. The weight of io.weight (1 to 1000) goes unchanged into both v2 files:
// io.weight takes up to 10000 and has the same default, 100, so ratios and the meaning of the default stay the same.
//
// The module github.com/containerd/cgroups/v3 is not used: its mode detection looks at /sys/fs/cgroup only and keeps the
// answer in a package variable, and its writers know neither cpu.idle nor cpu.max.burst.
package cgroup
