// Package resctrl controls and watches caches and memory bandwidth through the resctrl file system of Linux: Intel RDT,
// AMD QoS, and whatever else the kernel offers there. It imports nothing but the standard library and golang.org/x/sys.
//
// # The file system
//
// The kernel keeps groups of threads. Each group has a schemata, which says which ways of each cache its threads may fill
// and how much memory bandwidth they may use. All threads begin in the root group, and a child begins in the group of its
// parent. What the CPU can do is in info/. So the first thing is to find the mount, and to read that:
//
//	mount, err := resctrl.Locate("/")
//	if errors.Is(err, resctrl.ErrNotMounted) {
//		err = resctrl.Mount(resctrl.MountOptions{})
//	}
//	fs := resctrl.Open(resctrl.OS(mount.Point))
//	info, err := fs.Info()
//
// An FS reads and writes through Files. OS is the real one, FromFS a copy of a tree (a bug report), and
// resctrltest.Kernel a kernel in process, which all examples here use.
//
// # Groups
//
// Create makes a group; SetSchemata narrows it; AddTasks moves threads into it; Remove sends them back to the root group.
// See the example of [FS]. Masks are hexadecimal in text and a [Mask] in Go. Domains are the instances of a resource, with
// ids that have gaps: take them from Info or from a group's Schemata, never count them.
//
// The kernel rounds bandwidth up, so SetSchemata reads back and returns the [Difference] of what was wanted and what came.
// A running program makes threads while it is being moved: [MoveThreads] looks again until none is outside.
//
// A group can be made exclusive, so that nobody else may fill its ways. As the root group has all ways at first, the kernel
// refuses that until the root group is narrowed; [Group.SetExclusive] does both.
//
// # Errors
//
// The kernel answers with an errno, and with a line of text in info/last_cmd_status. [Error] has both; errors.Is finds the
// errno and what it means here, errors.As the text:
//
//	ENOSPC  mkdir   ErrNoCLOSID   as many control groups as there can be: remove one
//	                ErrNoRMID     as many groups as can be monitored: remove one
//	                ErrNoWays     exclusive groups leave no ways for a new group
//	EBUSY   mkdir   ErrRMIDBusy   freed RMIDs are not clean yet: Create waits up to 5 s, then try later
//	EINVAL  write   ErrOverlap    somebody else has some of the ways
//	                              any other: Error.Status says what is wrong with the text; if it is "", the domain is offline
//	ESRCH   write                 the thread has ended: in a TasksError beside those that moved
//	ENOENT, ENODEV  ErrGone       somebody removed the group
//	                ErrNotMounted somebody unmounted resctrl
//	EROFS           ErrReadOnly   it is mounted read-only here
//
// Nothing is half done silently: a write of settings is taken whole or not at all (but see [Group.SetSchemata]), and a list
// of tasks that is moved in part says which.
//
// # Counters
//
// Where the CPU can monitor, [Group.Counters] reads cache occupancy and memory traffic of a group in each domain, and
// [Rates] compares two readings. A counter may have no value: the hardware can be busy (Unavailable), or may have fewer
// counters than there are groups (Unassigned). Such counters have a state in place of a value, and are never taken for 0.
// Monitoring groups ([Group.CreateMonGroup]) count parts of a group apart.
//
// # Planning
//
// CLOSIDs are few, often 8 or 4, and percentages have to become ways. [Plan] turns classes of work into groups: pure, with
// a reason for each value that is not exactly what was asked for. [Apply] does what it says, and touches no group of others.
//
// # What it does not do
//
// It keeps no state, starts no goroutine, logs nothing, and removes nothing that it was not told to remove. Pseudo-locking
// and the assignment of counters can be read but not set.
package resctrl
