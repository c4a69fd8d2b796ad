package resctrltest

import (
	"fmt"
	"strings"
	"syscall"
)

// Table is what a kernel answers on a machine like the layout: of Intel, with or without cdp or mba_MBps, IntelL2 and
// AMD. It is nil of layouts whose like was not measured. All answers are those of Linux 6.12.117 and 6.1.192.
func Table(l Layout) []Section {
	switch l.Name {
	case Intel().Name:
		return intelTable()
	case IntelCDP().Name:
		return cdpTable()
	case IntelMBps().Name:
		return mbpsTable()
	case IntelL2().Name:
		return l2Table()
	case AMD().Name:
		return amdTable()
	}
	return nil
}

func made(path string) Row            { return Row{Op: OpMkdir, Path: path} }
func removed(path string) Row         { return Row{Op: OpRmdir, Path: path} }
func written(path, data string) Row   { return Row{Op: OpWrite, Path: path, Data: data} }
func renamed(path, to string) Row     { return Row{Op: OpRename, Path: path, Data: to} }
func reads(path, text string) Row     { return Row{Op: OpRead, Path: path, Want: Answer{Text: text}} }
func lists(path, names string) Row    { return Row{Op: OpList, Path: path, Want: Answer{Text: names}} }
func (r Row) then(path, t string) Row { r.After = append(r.After, File{path, t}); return r }
func (r Row) keep() Row               { r.Keep = true; return r }

// fails is the row with an errno and the text of last_cmd_status.
func (r Row) fails(e syscall.Errno, status string) Row {
	r.Want.Errno, r.Want.Status = e, status
	return r
}

// bad is EINVAL, by far the most common.
func (r Row) bad(status string) Row { return r.fails(syscall.EINVAL, status) }

// old is the answer of 6.1.
func (r Row) old(e syscall.Errno, status string) Row {
	r.Old = &Answer{Errno: e, Status: status}
	return r
}

const (
	intelFull   = "    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n"
	absentTask  = "4194305" // above the largest id that there can be
	noAbsent    = "No task 4194305"
	noAbsentNew = noAbsent + "\nError while processing task 4194305"
	occupancy   = "max_threshold_occupancy"
)

func intelTable() []Section {
	return []Section{
		{"tree", []Row{
			lists(".", "cpus cpus_list info/ mode mon_data/ mon_groups/ schemata size tasks"),
			lists("info", "L3/ L3_MON/ MB/ last_cmd_status"),
			lists("info/MB", "bandwidth_gran delay_linear min_bandwidth num_closids thread_throttle_mode"),
			lists("info/L3_MON", occupancy+" mon_features num_rmids"),
			lists("mon_data", "mon_L3_00/ mon_L3_01/"),
			lists("mon_data/mon_L3_00", "llc_occupancy mbm_local_bytes mbm_total_bytes"),
			lists("mon_groups", ""),
			reads("schemata", intelFull),
			reads("size", "    MB:0=100;1=100\n    L3:0=16777211;1=16777211\n"),
			reads("mode", "shareable\n"),
			reads("cpus", "f\n"),
			reads("cpus_list", "0-3\n"),
			reads("info/L3/bit_usage", "0=XXSSSSSSSSS;1=XXSSSSSSSSS\n"),
			reads("info/L3/cbm_mask", "7ff\n"),
			reads("info/L3/min_cbm_bits", "1\n"),
			reads("info/L3/num_closids", "16\n"),
			reads("info/L3/shareable_bits", "600\n"),
			reads("info/L3/sparse_masks", "0\n").old(syscall.ENOENT, ""),
			reads("info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"),
			reads("info/L3_MON/num_rmids", "16\n"),
			reads("info/MB/bandwidth_gran", "10\n"),
			reads("info/MB/delay_linear", "1\n"),
			reads("info/MB/min_bandwidth", "10\n"),
			reads("info/MB/num_closids", "8\n"),
			reads("info/MB/thread_throttle_mode", "max\n"),
			reads("mon_data/mon_L3_00/llc_occupancy", "{N}\n"),
			reads("mon_data/mon_L3_01/mbm_total_bytes", "{N}\n"),
			reads("nosuch", "").fails(syscall.ENOENT, ""),
			reads("g1/schemata", "").fails(syscall.ENOENT, ""),
		}},
		{"new group", []Row{
			made("g1"),
			lists("g1", "cpus cpus_list mode mon_data/ mon_groups/ schemata size tasks"),
			lists("g1/mon_data", "mon_L3_00/ mon_L3_01/"),
			reads("g1/cpus", "0\n"),
			reads("g1/cpus_list", "\n"),
			reads("g1/mode", "shareable\n"),
			reads("g1/schemata", intelFull),
			reads("g1/size", "    MB:0=100;1=100\n    L3:0=16777211;1=16777211\n"),
			reads("g1/tasks", ""),
			reads("g1/mon_data/mon_L3_00/llc_occupancy", "{N}\n"),
			made("g1/mon_groups/m1"),
			lists("g1/mon_groups/m1", "cpus cpus_list mon_data/ tasks"),
			lists("g1/mon_groups", "m1/"),
		}},
		{"masks", []Row{
			made("g1"),
			written("g1/schemata", "L3:0=3\n").then("g1/schemata", "    MB:0=100;1=100\n    L3:0=003;1=7ff\n"),
			written("g1/schemata", "L3:0=3").bad(""),
			written("g1/schemata", "L3:0=3\n\n").bad("Missing ':'"),
			written("g1/schemata", "L3:0=5\n").bad("The mask 5 has non-consecutive 1-bits"),
			written("g1/schemata", "L3:0=0\n").bad("Mask out of range"),
			written("g1/schemata", "L3:0=fff\n").bad("Mask out of range"),
			written("g1/schemata", "L3:0=7ff\n"),
			written("g1/schemata", "L3:0=0x3f\n").then("g1/schemata", "    MB:0=100;1=100\n    L3:0=03f;1=7ff\n"),
			written("g1/schemata", "L3:0=3F\n"),
			written("g1/schemata", "L3:0=zz\n").bad("Non-hex character in the mask zz"),
			written("g1/schemata", "L3:0=\n").bad("Non-hex character in the mask "),
			written("g1/schemata", "L3:0\n").bad("Missing '=' or non-numeric domain"),
			written("g1/schemata", "L3:\n").bad("Missing 'L3' value"),
			written("g1/schemata", "L3\n").bad("Missing ':'"),
			written("g1/schemata", "l3:0=3\n").bad("Unknown or unsupported resource name 'l3'"),
			written("g1/schemata", "L3:7=3\n").bad(""),
			written("g1/schemata", "L3:a=3\n").bad("Missing '=' or non-numeric domain"),
			written("g1/schemata", "L3:0=3;0=7\n").bad("Duplicate domain 0"),
			written("g1/schemata", "L3:0=3;1=c\n").then("g1/schemata", "    MB:0=100;1=100\n    L3:0=003;1=00c\n"),
			written("g1/schemata", "L3:0=3;1=c;\n"),
			written("g1/schemata", "L3: 0 = 3 ; 1 = c\n").bad("Missing '=' or non-numeric domain"),
			written("g1/schemata", " L3:0=3\n"),
			written("g1/schemata", "L3:0=3\nL3:1=3\n"),
			written("g1/schemata", "L3:0=3\nL3:0=1\n").bad("Duplicate domain 0"),
			written("g1/schemata", "L3CODE:0=3\n").bad("Unknown or unsupported resource name 'L3CODE'"),
			written("g1/schemata", "L2:0=3\n").bad("Unknown or unsupported resource name 'L2'"),
			written("g1/schemata", "XX:0=3\n").bad("Unknown or unsupported resource name 'XX'"),
			written("g1/schemata", strings.Repeat("X", 600)+":0=3\n").bad("Unknown or unsupported resource name '" + strings.Repeat("X", 473)),
			written("g1/schemata", "\n").bad("Missing ':'"),
			written("g1/schemata", "").bad(""),
			written("g1/schemata", "L3:0=600\n"),
			written("g1/schemata", "L3:0=700\n"),
			written("g1/schemata", "L3:0=00000000000000f\n"),
			written("g1/schemata", "L3:0=1ffffffff\n").bad("Mask out of range").then("g1/schemata", "    MB:0=100;1=100\n    L3:0=00f;1=003\n"),
			reads("g1/size", "    MB:0=100;1=100\n    L3:0=6100804;1=3050402\n"),
		}},
		{"MB", []Row{
			made("g1"),
			written("g1/schemata", "MB:0=50\n").then("g1/schemata", "    MB:0= 50;1=100\n    L3:0=7ff;1=7ff\n"),
			written("g1/schemata", "MB:0=55\n").then("g1/schemata", "    MB:0= 60;1=100\n    L3:0=7ff;1=7ff\n"),
			written("g1/schemata", "MB:0=51\n").then("g1/schemata", "    MB:0= 60;1=100\n    L3:0=7ff;1=7ff\n"),
			written("g1/schemata", "MB:0=9\n").bad("MB value 9 out of range [10,100]"),
			written("g1/schemata", "MB:0=0\n").bad("MB value 0 out of range [10,100]"),
			written("g1/schemata", "MB:0=10\n"),
			written("g1/schemata", "MB:0=100\n"),
			written("g1/schemata", "MB:0=101\n").bad("MB value 101 out of range [10,100]"),
			written("g1/schemata", "MB:0=abc\n").bad("Invalid MB value abc"),
			written("g1/schemata", "MB:0=5%\n").bad("Invalid MB value 5%"),
			written("g1/schemata", "MB:0=-10\n").bad("Invalid MB value -10"),
			written("g1/schemata", "MB:0=\n").bad("Invalid MB value "),
			written("g1/schemata", "MB:0=0x20\n").bad("Invalid MB value 0x20"),
			written("g1/schemata", "MB:0=4294967396\n").bad("Invalid MB value 4294967396"),
			written("g1/schemata", "MB:2=50\n").bad(""),
			written("g1/schemata", "MB:0=20;1=33\n").then("g1/schemata", "    MB:0= 20;1= 40\n    L3:0=7ff;1=7ff\n"),
		}},
		{"all or nothing", []Row{
			made("g1"),
			written("g1/schemata", "L3:0=1;1=1\nMB:0=40\n").then("g1/schemata", "    MB:0= 40;1=100\n    L3:0=001;1=001\n"),
			written("g1/schemata", "L3:0=f;1=f\nMB:0=4\n").bad("MB value 4 out of range [10,100]").then("g1/schemata", "    MB:0= 40;1=100\n    L3:0=001;1=001\n"),
			written("g1/schemata", "MB:0=70;1=70\nL3:0=5\n").bad("The mask 5 has non-consecutive 1-bits").then("g1/schemata", "    MB:0= 40;1=100\n    L3:0=001;1=001\n"),
			written("g1/schemata", "L3:0=3;1=5\n").bad("The mask 5 has non-consecutive 1-bits").then("g1/schemata", "    MB:0= 40;1=100\n    L3:0=001;1=001\n"),
		}},
		{"tasks", []Row{
			made("g1"),
			written("g1/tasks", "{A}\n").then("g1/tasks", "{A}\n"),
			written("g1/tasks", "{A}").then("g1/tasks", "{A}\n"),
			written("g1/tasks", absentTask+"\n").fails(syscall.ESRCH, noAbsentNew).old(syscall.ESRCH, noAbsent),
			written("g1/tasks", "-1\n").bad("Invalid pid -1").old(syscall.EINVAL, ""),
			written("g1/tasks", "abc\n").bad("Task list parsing error pid abc").old(syscall.EINVAL, ""),
			written("g1/tasks", "\n").old(syscall.EINVAL, ""),
			written("g1/tasks", "").old(syscall.EINVAL, ""),
			written("g1/tasks", "{A} {B}\n").bad("Task list parsing error pid {A} {B}").old(syscall.EINVAL, ""),
			written("g1/tasks", "99999999999\n").bad("Task list parsing error pid 99999999999").old(syscall.EINVAL, ""),
			written("g1/tasks", "{B},"+absentTask+"\n").fails(syscall.ESRCH, noAbsentNew).old(syscall.EINVAL, ""),
			written("g1/tasks", "{A},{B}\n").old(syscall.EINVAL, ""),
			written("g1/tasks", "{B}\n").then("g1/tasks", "{A}\n{B}\n"),
			written("tasks", "{A}\n").then("g1/tasks", "{B}\n").then("tasks", "{lines}{A}\n{lines}"),
			made("g2"),
			written("g2/tasks", "{B}\n").then("g1/tasks", "").then("g2/tasks", "{B}\n"),
			written("g2/tasks", "1\n"),
			written("g2/tasks", "2\n").then("g2/tasks", "1\n2\n{B}\n"),
			written("g2/tasks", "0\n"),
			removed("g2").then("tasks", "{lines}{B}\n{lines}"),
			written("g1/tasks", strings.Repeat("1,", 2048)+"1").fails(syscall.E2BIG, ""),
			reads("g2/tasks", "").fails(syscall.ENOENT, ""),
			written("g2/tasks", "{A}\n").fails(syscall.ENOENT, ""),
		}},
		{"cpus", []Row{
			made("g1"),
			written("g1/cpus_list", "1\n").then("g1/cpus", "2\n").then("cpus_list", "0,2-3\n"),
			written("g1/cpus_list", "1,3\n").then("g1/cpus_list", "1,3\n").then("cpus_list", "0,2\n"),
			written("g1/cpus_list", "0-9\n").fails(syscall.ERANGE, "Bad CPU list/mask"),
			written("g1/cpus_list", "64\n").fails(syscall.ERANGE, "Bad CPU list/mask"),
			written("g1/cpus_list", "x\n").bad("Bad CPU list/mask"),
			written("g1/cpus", "f\n").then("g1/cpus_list", "0-3\n").then("cpus_list", "\n"),
			written("g1/cpus", "10\n").fails(syscall.EOVERFLOW, "Bad CPU list/mask").then("g1/cpus", "f\n"),
			written("g1/cpus", "0,00000001\n").fails(syscall.EOVERFLOW, "Bad CPU list/mask").then("g1/cpus", "f\n"),
			written("g1/cpus", "\n").then("g1/cpus", "0\n"),
			written("g1/cpus_list", "0-3:1/2\n").then("g1/cpus_list", "0,2\n"),
			written("g1/cpus_list", "1,,\n").then("g1/cpus_list", "1\n"),
			written("g1/cpus", "2\n").then("cpus_list", "0,2-3\n"),
			written("g1/cpus_list", "\n").then("cpus", "f\n"),
			written("g1/cpus_list", "2-3\n").then("g1/cpus", "c\n").then("cpus_list", "0-1\n"),
			written("cpus_list", "0-3\n").then("g1/cpus_list", "\n"),
			written("cpus_list", "0-1\n").bad("Can't drop CPUs from default group").then("cpus_list", "0-3\n"),
			written("g1/cpus_list", "2\n"),
			made("g2"),
			written("g2/cpus_list", "2\n").then("g1/cpus_list", "\n").then("cpus_list", "0-1,3\n"),
			removed("g2").then("cpus_list", "0-3\n"),
		}},
		{"mode", []Row{
			made("g1"), made("g2"),
			written("g1/mode", "foo\n").bad("Unknown or unsupported mode"),
			written("g1/mode", "exclusive\n").bad("Schemata overlaps"),
			written("mode", "exclusive\n").bad("Schemata overlaps"),
			written("schemata", "L3:0=7f0;1=7f0\n"),
			written("g1/schemata", "L3:0=f;1=f\n"),
			written("g1/mode", "exclusive\n").bad("Schemata overlaps"),
			written("g2/schemata", "L3:0=7f0;1=7f0\n"),
			written("g1/mode", "exclusive\n").then("g1/mode", "exclusive\n").then("info/L3/bit_usage", "0=XXSSSSSEEEE;1=XXSSSSSEEEE\n"),
			written("g1/mode", "exclusive\n"),
			written("g2/schemata", "L3:0=1f0\n"),
			written("g2/schemata", "L3:0=1ff\n").bad("Overlaps with exclusive group"),
			written("schemata", "L3:0=7ff\n").bad("Overlaps with exclusive group"),
			written("g1/schemata", "L3:0=1f;1=f\n").bad("Overlaps with other group"),
			written("g1/schemata", "L3:0=7;1=f\n"),
			made("g3").then("g3/schemata", "    MB:0=100;1=100\n    L3:0=7f8;1=7f0\n"),
			reads("info/L3/bit_usage", "0=XXSSSSSSEEE;1=XXSSSSSEEEE\n"),
			written("g2/mode", "exclusive\n").bad("Schemata overlaps"),
			written("g2/schemata", "L3:0=1f0;1=1f0\nMB:0=50;1=50\n"),
			written("g2/mode", "exclusive\n").bad("Schemata overlaps"),
			written("schemata", "L3:0=600;1=600\n"),
			written("g2/mode", "exclusive\n").bad("Schemata overlaps"),
			removed("g3"),
			written("g2/schemata", "L3:0=e0;1=e0\n"),
			written("g2/mode", "exclusive\n"),
			written("schemata", "L3:0=700;1=700\n"),
			written("g2/schemata", "L3:0=600;1=600\n").bad("Overlaps with other group"),
			made("g4").then("g4/schemata", "    MB:0=100;1=100\n    L3:0=018;1=010\n"),
			written("g1/mode", "shareable\n"),
			written("g1/mode", "pseudo-locksetup\n").bad("Pseudo-locking not supported").then("g1/mode", "shareable\n"),
			written("g1/mode", "pseudo-locked\n").bad("Unknown or unsupported mode"),
			written("g1/mode", "shareable\n"),
			written("g1/mode", "shareable").bad(""),
			written("g1/mode", "\n").bad("Unknown or unsupported mode"),
		}},
		{"directories", []Row{
			made("g1"), made("g2"),
			made("g1").fails(syscall.EEXIST, ""),
			made("info").fails(syscall.EEXIST, ""),
			made("mon_groups").fails(syscall.EEXIST, ""),
			made("mon_data").fails(syscall.EEXIST, ""),
			made("tasks").fails(syscall.EEXIST, ""),
			made("g1/sub").fails(syscall.EPERM, ""),
			made("g1/mon_data/x").fails(syscall.EPERM, ""),
			made("info/x").fails(syscall.EPERM, ""),
			made("a\nb").bad(""),
			made("nosuch/mon_groups/x").fails(syscall.ENOENT, ""),
			made("g1/mon_groups/x"),
			made("mon_groups/m1"),
			made("mon_groups/m1/x").fails(syscall.EPERM, ""),
			removed("info").fails(syscall.EPERM, ""),
			removed("mon_groups").fails(syscall.EPERM, ""),
			removed("g1/mon_groups").fails(syscall.EPERM, ""),
			removed("g1/mon_data").fails(syscall.EPERM, ""),
			removed("g1/tasks").fails(syscall.ENOTDIR, ""),
			removed("nosuch").fails(syscall.ENOENT, ""),
			written("info/L3/cbm_mask", "3ff\n").fails(syscall.EACCES, ""),
			written("mon_data/mon_L3_00/llc_occupancy", "1\n").fails(syscall.EACCES, ""),
			written("nosuch", "1\n").fails(syscall.ENOENT, ""),
			written("g1", "1\n").fails(syscall.EISDIR, ""),
			reads("g1", "").fails(syscall.EISDIR, ""),
			lists("g1/tasks", "").fails(syscall.ENOTDIR, ""),
			reads("g1/tasks/x", "").fails(syscall.ENOTDIR, ""),
		}},
		{"rename", []Row{
			made("g1"), made("g2"), made("g1/mon_groups/x"), made("mon_groups/m1"),
			renamed("g1", "g1new").fails(syscall.EPERM, "Source must be a MON group").old(syscall.EPERM, ""),
			renamed("g1/mon_groups/x", "g2/mon_groups/x").old(syscall.EPERM, ""),
			renamed("g2/mon_groups/x", "g2/mon_groups/y").old(syscall.ENOENT, ""),
			renamed("mon_groups/m1", "g1/mon_groups/m1").old(syscall.EPERM, ""),
			renamed("g1/tasks", "g1/tasks2").fails(syscall.EPERM, "Source and destination must be directories").old(syscall.EPERM, ""),
			renamed("info", "info2").fails(syscall.ENOENT, "").old(syscall.EPERM, ""),
			renamed("nosuch", "g3").fails(syscall.ENOENT, ""),
			renamed("g2", "g2"),
			renamed("g2", "g2/mon_groups/z").bad(""),
		}},
		{"no CLOSID", intelCLOSIDs()},
		{"status", []Row{
			made("g1"), made("g2"), made("g3"), made("g4"), made("g5"), made("g6"), made("g7"),
			made("g8").fails(syscall.ENOSPC, "Out of CLOSIDs"),
			written("g1/cpus_list", "x\n").bad("Out of CLOSIDs\nBad CPU list/mask").keep(),
			written("g1/cpus_list", "1\n").fails(0, "Out of CLOSIDs\nBad CPU list/mask").keep(),
			removed("g7").fails(0, "Out of CLOSIDs\nBad CPU list/mask").keep(),
			written("g1/schemata", "L3:0=3").bad("Out of CLOSIDs\nBad CPU list/mask").keep(),
			written("g1/schemata", "L3:0=3\n").keep(),
		}},
		{"monitoring", []Row{
			made("g1"), made("g1/mon_groups/m1"), made("g1/mon_groups/m2"), made("g2"),
			reads("g1/mon_groups/m1/mon_data/mon_L3_01/mbm_local_bytes", "{N}\n"),
			written("g1/mon_groups/m1/tasks", "{A}\n").
				bad("Can't move task to different control group\nError while processing task {A}").
				old(syscall.EINVAL, "Can't move task to different control group"),
			written("g1/tasks", "{A}\n"),
			written("g1/mon_groups/m1/tasks", "{A}\n").then("g1/tasks", "{A}\n").then("g1/mon_groups/m1/tasks", "{A}\n"),
			written("g1/mon_groups/m2/tasks", "{A}\n").then("g1/mon_groups/m1/tasks", "").then("g1/mon_groups/m2/tasks", "{A}\n"),
			written("g1/tasks", "{A}\n").then("g1/mon_groups/m2/tasks", "").then("g1/tasks", "{A}\n"),
			written("g1/mon_groups/m1/tasks", "{A}\n"),
			written("g2/tasks", "{A}\n").then("g1/tasks", "").then("g1/mon_groups/m1/tasks", "").then("g2/tasks", "{A}\n"),
			written("g1/mon_groups/m1/cpus_list", "1\n").bad("Can only add CPUs to mongroup that belong to parent"),
			written("g1/cpus_list", "0-1\n"),
			written("g1/mon_groups/m1/cpus_list", "1\n").then("g1/cpus_list", "0-1\n"),
			written("g1/mon_groups/m1/cpus_list", "1,2\n").bad("Can only add CPUs to mongroup that belong to parent").then("g1/mon_groups/m1/cpus_list", "1\n"),
			written("g2/tasks", "{A}\n"),
			written("g1/tasks", "{B}\n"),
			written("g1/mon_groups/m2/tasks", "{B}\n"),
			removed("g1/mon_groups/m2").then("g1/tasks", "{B}\n"),
			removed("g1").then("tasks", "{lines}{B}\n{lines}").then("cpus_list", "0-3\n"),
		}},
		{"no RMID", intelRMIDs()},
		{"threshold", []Row{
			written("info/L3_MON/"+occupancy, "65536\n").then("info/L3_MON/"+occupancy, "65536\n"),
			written("info/L3_MON/"+occupancy, "65537\n").then("info/L3_MON/"+occupancy, "65536\n"),
			written("info/L3_MON/"+occupancy, "99999999999\n").fails(syscall.ERANGE, ""),
			written("info/L3_MON/"+occupancy, "x\n").bad(""),
			written("info/L3_MON/"+occupancy, " 65536\n").bad(""),
			written("info/L3_MON/"+occupancy, "0\n").then("info/L3_MON/"+occupancy, "0\n"),
			written("info/L3_MON/"+occupancy, "4194304\n").then("info/L3_MON/"+occupancy, "4194304\n"),
		}},
	}
}

// intelCLOSIDs: MB has 8, so 7 groups can be made, not the 15 of L3.
func intelCLOSIDs() []Row {
	rows := someGroups("c%d", 7)
	return append(rows,
		made("c7").fails(syscall.ENOSPC, "Out of CLOSIDs"),
		removed("c0"),
		made("c7"),
		made("c8").fails(syscall.ENOSPC, "Out of CLOSIDs"),
	)
}

// intelRMIDs: 16 less the root's; control groups take one too.
func intelRMIDs() []Row {
	rows := someGroups("mon_groups/r%d", 14)
	again := made("g2")
	again.Retry = busy
	return append(rows,
		made("g1"),
		made("mon_groups/r14").fails(syscall.ENOSPC, "Out of RMIDs"),
		made("g2").fails(syscall.ENOSPC, "Out of RMIDs"),
		removed("mon_groups/r0"),
		made("g2").fails(syscall.EBUSY, "Out of RMIDs"),
		again,
		made("g3").fails(syscall.ENOSPC, "Out of RMIDs"),
	)
}

func someGroups(format string, n int) []Row {
	var rows []Row
	for i := range n {
		rows = append(rows, made(fmt.Sprintf(format, i)))
	}
	return rows
}

func cdpTable() []Section {
	return []Section{
		{"tree", []Row{
			lists("info", "L3CODE/ L3DATA/ L3_MON/ MB/ last_cmd_status"),
			reads("info/L3CODE/num_closids", "8\n"),
			reads("info/L3DATA/num_closids", "8\n"),
			reads("info/L3DATA/shareable_bits", "600\n"),
			reads("info/L3CODE/bit_usage", "0=XXSSSSSSSSS;1=XXSSSSSSSSS\n"),
			reads("schemata", "    MB:0=100;1=100\nL3DATA:0=7ff;1=7ff\nL3CODE:0=7ff;1=7ff\n"),
			reads("size", "    MB:0=100;1=100\nL3DATA:0=16777211;1=16777211\nL3CODE:0=16777211;1=16777211\n"),
		}},
		{"halves", []Row{
			made("g1"),
			written("g1/schemata", "L3:0=3\n").bad("Unknown or unsupported resource name 'L3'"),
			written("g1/schemata", "L3CODE:0=3\nL3DATA:0=c;1=c\n").
				then("g1/schemata", "    MB:0=100;1=100\nL3DATA:0=00c;1=00c\nL3CODE:0=003;1=7ff\n"),
			written("schemata", "L3CODE:0=7f0;1=7f0\nL3DATA:0=7f0;1=7f0\n"),
			written("g1/mode", "exclusive\n").bad("Schemata overlaps"),
			written("g1/schemata", "L3CODE:0=3;1=3\nL3DATA:0=3;1=3\n"),
			written("g1/mode", "exclusive\n"),
		}},
		{"no CLOSID", append(someGroups("c%d", 7), made("c7").fails(syscall.ENOSPC, "Out of CLOSIDs"))},
	}
}

func mbpsTable() []Section {
	return []Section{
		{"MB/s", []Row{
			reads("info/MB/bandwidth_gran", "10\n"),
			reads("info/MB/min_bandwidth", "10\n"),
			reads("schemata", "    MB:0=4294967295;1=4294967295\n    L3:0=7ff;1=7ff\n"),
			made("g1"),
			written("g1/schemata", "MB:0=1000;1=2000\n").then("g1/schemata", "    MB:0=1000;1=2000\n    L3:0=7ff;1=7ff\n"),
			written("g1/schemata", "MB:0=5\n"),
			written("g1/schemata", "MB:0=0\n"),
			written("g1/schemata", "MB:0=4294967295\n"),
			written("g1/schemata", "MB:0=4294967296\n").bad("Invalid MB value 4294967296"),
			written("g1/schemata", "MB:0=x\n").bad("Invalid MB value x").then("g1/schemata", "    MB:0=4294967295;1=2000\n    L3:0=7ff;1=7ff\n"),
		}},
	}
}

func l2Table() []Section {
	const full = "    MB:0=  100;1=  100\n    L2:0=000ff;1=000ff;2=000ff;3=000ff\n    L3:0=fffff;1=fffff\n"
	return []Section{
		{"tree", []Row{
			lists(".", "cpus cpus_list info/ mode schemata size tasks"),
			lists("info", "L2/ L3/ MB/ last_cmd_status"),
			reads("info/L2/num_closids", "4\n"),
			reads("info/L2/cbm_mask", "ff\n"),
			reads("info/L2/shareable_bits", "0\n"),
			reads("info/L2/sparse_masks", "1\n").old(syscall.ENOENT, ""),
			reads("info/L2/bit_usage", "0=SSSSSSSS;1=SSSSSSSS;2=SSSSSSSS;3=SSSSSSSS\n"),
			reads("info/L3/shareable_bits", "c0000\n"),
			reads("schemata", full),
			reads("size", "    MB:0=100;1=100\n    L2:0=4194304;1=4194304;2=4194304;3=4194304\n    L3:0=16777200;1=16777200\n"),
		}},
		{"L2 and L3", []Row{
			made("g1").then("g1/schemata", full),
			lists("g1", "cpus cpus_list mode schemata size tasks"),
			written("g1/schemata", "L2:0=3;1=c\nL3:0=3\n").
				then("g1/schemata", "    MB:0=  100;1=  100\n    L2:0=00003;1=0000c;2=000ff;3=000ff\n    L3:0=00003;1=fffff\n").
				then("g1/size", "    MB:0=100;1=100\n    L2:0=1048576;1=1048576;2=4194304;3=4194304\n    L3:0=1677720;1=16777200\n"),
			written("g1/schemata", "L3:0=5\n"),
			written("g1/schemata", "L3:0=0\n").bad("Mask out of range"),
			written("g1/schemata", "L2:0=1ff\n").bad("Mask out of range"),
			written("g1/schemata", "MB:0=51\n").
				then("g1/schemata", "    MB:0=   60;1=  100\n    L2:0=00003;1=0000c;2=000ff;3=000ff\n    L3:0=00005;1=fffff\n"),
			made("g1/mon_groups/x").fails(syscall.ENOENT, ""),
			made("g1/sub").fails(syscall.EPERM, ""),
		}},
		{"first run", []Row{
			made("g1"),
			written("schemata", "L2:0=1;1=1;2=1;3=1\nL3:0=1;1=1\n"),
			written("g1/schemata", "L2:0=8;1=8;2=8;3=8\nL3:0=10;1=10\n"),
			written("g1/mode", "exclusive\n"),
			made("g2").then("g2/schemata", "    MB:0=  100;1=  100\n    L2:0=00007;1=00007;2=00007;3=00007\n    L3:0=0000f;1=0000f\n"),
		}},
		{"no CLOSID", append(someGroups("c%d", 3), made("c3").fails(syscall.ENOSPC, "Out of CLOSIDs"))},
	}
}

func amdTable() []Section {
	return []Section{
		{"tree", []Row{
			lists("info", "L3/ L3_MON/ MB/ SMBA/ last_cmd_status"),
			lists("info/MB", "bandwidth_gran delay_linear min_bandwidth num_closids"),
			reads("info/L3/min_cbm_bits", "0\n"),
			reads("info/L3/sparse_masks", "1\n").old(syscall.ENOENT, ""),
			reads("info/MB/delay_linear", "0\n"),
			reads("info/SMBA/num_closids", "16\n"),
			reads("schemata", "  SMBA:0=2048;1=2048;2=2048;3=2048\n    MB:0=2048;1=2048;2=2048;3=2048\n    L3:0=ffff;1=ffff;2=ffff;3=ffff\n"),
		}},
		{"units", []Row{
			made("g1"),
			written("g1/schemata", "L3:0=5\n"),
			written("g1/schemata", "L3:0=0\n"),
			written("g1/schemata", "L3:0=ffff\n"),
			written("g1/schemata", "L3:0=10000\n").bad("Mask out of range"),
			written("g1/schemata", "MB:0=1\n"),
			written("g1/schemata", "MB:0=0\n"),
			written("g1/schemata", "MB:0=2048\n"),
			written("g1/schemata", "MB:0=2049\n").bad("MB value 2049 out of range [0,2048]"),
			written("g1/schemata", "MB:0=17\n"),
			written("g1/schemata", "SMBA:0=100\n").
				then("g1/schemata", "  SMBA:0= 100;1=2048;2=2048;3=2048\n    MB:0=  17;1=2048;2=2048;3=2048\n    L3:0=ffff;1=ffff;2=ffff;3=ffff\n").
				then("g1/size", "  SMBA:0=100;1=2048;2=2048;3=2048\n    MB:0=17;1=2048;2=2048;3=2048\n    L3:0=16777216;1=16777216;2=16777216;3=16777216\n"),
		}},
		{"first run", []Row{
			made("g1"),
			written("schemata", "L3:0=1;1=1;2=1;3=1\n"),
			written("g1/schemata", "L3:0=10;1=10;2=10;3=10\n"),
			written("g1/mode", "exclusive\n"),
			made("g2").then("g2/schemata", "  SMBA:0=2048;1=2048;2=2048;3=2048\n    MB:0=2048;1=2048;2=2048;3=2048\n    L3:0=000f;1=000f;2=000f;3=000f\n"),
		}},
	}
}
