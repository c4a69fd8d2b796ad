package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tideline-io/tideline/integration/vm/rdt"
)

// TestResctrl shows that the kernel believes what it is told.
func TestResctrl(t *testing.T) {
	needMachine(t)
	const script = `
mount -t resctrl resctrl /sys/fs/resctrl || exit 1
cd /sys/fs/resctrl
cat schemata info/L3/num_closids info/L3_MON/num_rmids mon_data/*/llc_occupancy
grep -m 1 -o -w cat_l3 /proc/cpuinfo
grep -H -r . info/MB | sort
mkdir g && echo 'L3:0=5' > g/schemata || cat info/last_cmd_status
dmesg | grep -c -E 'WARNING|ftrace bug'
`
	var out bytes.Buffer
	exit, err := Run(t.Context(), Config{
		Program: "/bin/sh", Args: []string{"-c", script}, CPUs: 4, NUMANodes: 2, Stdout: &out, Progress: t.Output(),
		Resctrl: &rdt.Options{
			L3:      &rdt.Cache{Bits: 11, CLOSIDs: 16, Shareable: 0x600},
			MB:      &rdt.Bandwidth{CLOSIDs: 8, Max: 100, Min: 10, Step: 10},
			Monitor: &rdt.Monitor{RMIDs: 16, Unit: 65536},
		},
	})
	const want = `MB:0=100;1=100
L3:0=7ff;1=7ff
16
16
65536
65536
cat_l3
info/MB/bandwidth_gran:10
info/MB/delay_linear:1
info/MB/min_bandwidth:10
info/MB/num_closids:8
info/MB/thread_throttle_mode:max
sh: write error: Invalid argument
The mask 5 has non-consecutive 1-bits
0
`
	if err != nil || exit != 1 || out.String() != want {
		t.Errorf("got %d, %v:\n%s\nwant 1:\n%s", exit, err, out.String(), want)
	}
}

func TestRemoveOthers(t *testing.T) {
	cache := t.TempDir()
	for _, d := range []string{"resctrl-a-1-x", "resctrl-a-2-x", "resctrl-a-2-y.part", "linux-image"} {
		if err := os.MkdirAll(filepath.Join(cache, d, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeOthers(cache, "resctrl-a-2-"); err != nil {
		t.Fatal(err)
	}
	got, err := filepath.Glob(cache + "/*")
	for i := range got {
		got[i] = filepath.Base(got[i])
	}
	if want := []string{"linux-image", "resctrl-a-2-x", "resctrl-a-2-y.part"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
