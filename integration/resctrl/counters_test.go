package resctrl

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

// RMIDs whose counters have no value on the machine of TestCounters.
var unavailable, failing = []int{1, 7}, []int{2, 6}

// counted is mounted so that groups show their RMIDs.
func counted() resctrltest.Layout {
	return with(resctrltest.Intel(), resctrl.MountOptions{Debug: true})
}

// TestCounters compares what is read of groups whose own counters, or those of whose monitoring groups, have no value.
func TestCounters(t *testing.T) {
	needHost(t)
	o := hardware(counted())
	o.Monitor.Unavailable, o.Monitor.Failing = unavailable, failing
	var kernel []row
	dir := boot(t, machine{hardware: o, cpus: 4, nodes: 2, threads: 1, run: "TestGuestCounters"})
	if err := json.Unmarshal([]byte(read(t, filepath.Join(dir, tableFile))), &kernel); err != nil {
		t.Fatal(err)
	}
	k := resctrltest.New(counted())
	fake, err := counterRows(k, func(group string, rmid int) {
		text := ""
		switch {
		case slices.Contains(unavailable, rmid):
			text = "Unavailable"
		case slices.Contains(failing, rmid):
			text = "Error"
		default:
			return
		}
		for _, domain := range []int{0, 1} {
			for _, event := range counted().Monitor.Events {
				k.SetCounter(group, domain, event, text)
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	text, different := compare(fake, kernel, true)
	t.Logf("counters: %d of %d rows differ\n%s", different, len(fake), text)
	if different > 0 {
		t.Errorf("%d rows differ", different)
	}
}

func TestGuestCounters(t *testing.T) {
	needGuest(t)
	mounted(t, counted().Options.String(), func() {
		rows, err := counterRows(resctrl.OS(root), func(string, int) {})
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(rows)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(results, tableFile), b, 0o644); err != nil {
			t.Fatal(err)
		}
	})
}

// counterRows makes groups, whose RMIDs are 1, 2, 3 and so on, and reads all counters after each. It calls made for a group
// that is new.
func counterRows(f resctrl.Files, made func(group string, rmid int)) ([]row, error) {
	var rows []row
	var groups []string
	look := func(when string) {
		for _, g := range groups {
			for _, event := range counted().Monitor.Events {
				name := g + "/mon_data/mon_L3_01/" + event
				text, err := f.ReadFile(name)
				if err != nil {
					text = errnoName(err)
				}
				// Bandwidth grows.
				if event != "llc_occupancy" && strings.Trim(text, "0123456789") == "\n" {
					text = "a number"
				}
				rows = append(rows, row{fmt.Sprintf("%s: %s of %s", when, event, g), fmt.Sprintf("%q", text)})
			}
		}
	}
	for _, g := range []string{"g1", "g1/mon_groups/m1", "g1/mon_groups/m2", "g2", "g2/mon_groups/m1", "g3", "g3/mon_groups/m1", "g3/mon_groups/m2"} {
		if err := f.Mkdir(g); err != nil {
			return rows, fmt.Errorf("mkdir %s: %w", g, err)
		}
		text, err := f.ReadFile(g + "/mon_hw_id")
		if err != nil {
			return rows, fmt.Errorf("read the RMID of %s: %w", g, err)
		}
		rmid, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return rows, err
		}
		rows = append(rows, row{"RMID of " + g, fmt.Sprint(rmid)})
		made(g, rmid)
		groups = append(groups, g)
		look("with " + g)
	}
	if err := f.Rmdir("g1/mon_groups/m2"); err != nil {
		return rows, fmt.Errorf("rmdir: %w", err)
	}
	look("without g1/mon_groups/m2")
	return rows, nil
}
