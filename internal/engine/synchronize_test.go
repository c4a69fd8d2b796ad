package engine_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/apply/nri"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/policy"
)

// stored is a listed container with what the runtime's spec holds of it.
func stored(p policy.Pod, name string, r policy.Resources, running bool) engine.Listing {
	spec := engine.Spec{Resources: r, Values: map[policy.Knob]string{}}
	for _, k := range policy.Knobs() {
		if v := r.Value(k); v != "" {
			spec.Values[k] = v
		}
	}
	return engine.Listing{
		Pods:       map[string]policy.Pod{"s" + p.UID: p},
		Containers: []engine.Listed{{ID: id(name), SandboxID: "s" + p.UID, Name: name, Running: running, Spec: &spec}},
	}
}

func (m *machine) synchronize(l engine.Listing) []engine.Offer {
	m.t.Helper()
	offers, err := m.e.Synchronize(m.t.Context(), l)
	if err != nil {
		m.t.Fatal(err)
	}
	return offers
}

// What was asked while no door looked shows in the runtime's spec: where it is neither ours nor what was asked before.
func TestSynchronizeUnseen(t *testing.T) {
	t.Parallel()
	const shares, quota = 1024, 200000
	ours := func(edit func(*policy.Resources)) policy.Resources { // of a service whose pool is all CPUs
		r := asks(shares, quota, 0)
		r.Unified = map[string]string{"cpu.max.burst": "200000"}
		if edit != nil {
			edit(&r)
		}
		return r
	}
	for _, tc := range []struct {
		name   string
		stored policy.Resources
		offers map[policy.Knob]string // nil for no offer
		asked  policy.Resources
	}{
		{"nothing", ours(nil), nil, asks(shares, quota, 0)},
		{"a larger quota", ours(func(r *policy.Resources) { r.CPUQuota = new(int64(300000)) }), map[policy.Knob]string{policy.CPUMaxBurst: "300000"}, asks(shares, 300000, 0)},
		{"a smaller quota", ours(func(r *policy.Resources) { r.CPUQuota = new(int64(100000)) }), map[policy.Knob]string{policy.CPUMaxBurst: "100000"}, asks(shares, 100000, 0)},
		{"another weight", ours(func(r *policy.Resources) { r.CPUShares = new(int64(2048)) }), map[policy.Knob]string{}, asks(2048, quota, 0)},
		{"our burst is lost", ours(func(r *policy.Resources) { r.Unified = nil }), map[policy.Knob]string{policy.CPUMaxBurst: "200000"}, asks(shares, quota, 0)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, cgrouptest.V2, nil)
			p := m.pod("a", v1alpha1.LS, "/burstable")
			m.run(p)
			_, at := m.make(p, "a", asks(shares, quota, 0))
			for range 2 { // the second finds that the first was carried out
				got := m.synchronize(stored(p, "a", tc.stored, true))
				if (len(got) > 0) != (tc.offers != nil) {
					t.Fatalf("offers %+v, want %v", got, tc.offers)
				}
				if c := m.container("a"); cmp.Diff(&tc.asked, c.Asked) != "" {
					t.Errorf("asked %+v, want %+v", c.Asked, tc.asked)
				}
				if tc.offers == nil {
					break
				}
				if d := cmp.Diff(tc.offers, values(got[0].Plan.Apply)); d != "" {
					t.Errorf("offers -want +got:\n%s", d)
				}
				m.carry(at, got[0].Plan.Apply)
				m.e.Updated(got[0].Plan, true)
				next := tc.asked
				next.Unified = map[string]string{"cpu.max.burst": values(m.container("a").Decision.Settings)[policy.CPUMaxBurst]}
				tc.stored, tc.offers = next, nil
			}
		})
	}
}

// Shares that reached the spec of a batch container while nobody looked would be sent with every update, and the kernel
// refuses them while cpu.idle is 1: it is as one that was there before us.
func TestSynchronizeWeighted(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
	m.run(p)
	_, at := m.make(p, "a", asks(2, 0, 0))
	m.want(at, "cpu.idle", "1")
	r := asks(2, 200000, 0)
	offers := m.synchronize(stored(p, "a", r, true))
	if len(offers) != 1 || values(offers[0].Plan.Apply)[policy.CPUIdle] != "0" {
		t.Fatalf("%+v", offers)
	}
	if got := m.file(at, "cpu.idle"); got != "0" {
		t.Errorf("cpu.idle is %s when the runtime sends the shares", got)
	}
	m.e.Updated(offers[0].Plan, true)
	if v := values(m.update("a", asks(2, 0, 0)).Apply); v[policy.CPUIdle] == "1" || v[policy.CPUWeight] == policy.Unset {
		t.Errorf("the next update brings %v", v)
	}
}

// An I/O priority that the runtime does not store is not there, and nothing but a creation brings it.
func TestSynchronizePriority(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, func(cfg *engine.Config) {
		cfg.Carries = func(k policy.Knob) bool { return nri.Carries(cfg.Node.CgroupVersion, k) }
	})
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.run(p)
	m.make(p, "a", asks(2, 0, 0))
	const lowest = "best-effort:7"
	r := policy.Resources{Unified: map[string]string{"cpu.idle": "1"}}
	for _, has := range []string{lowest, ""} {
		list := stored(p, "a", r, true)
		list.Containers[0].Spec.Values[policy.IOPriority] = has
		offers := m.synchronize(list)
		if (len(offers) > 0) != (has == "") {
			t.Errorf("stored %q: offers %+v", has, offers)
		}
		for _, o := range offers {
			if len(o.Plan.Apply) > 0 {
				t.Errorf("stored %q: asks the runtime for %+v", has, o.Plan.Apply)
			}
			m.e.Updated(o.Plan, true)
		}
		if got := values(m.container("a").Decision.Settings); got[policy.IOPriority] != has || got[policy.CPUIdle] != "1" {
			t.Errorf("stored %q: decided %v", has, got)
		}
	}
}

// What a start that nobody saw did not bring is written, and with Recheck what the runtime has lost too.
func TestSynchronizeFiles(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V1, func(c *engine.Config) { c.Recheck = true })
	p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
	m.run(p)
	_, at := m.make(p, "a", asks(2, 0, 0))
	m.want(at, "cpu.idle", "1")
	m.set(at, "cpu.idle", "0")
	m.set(at, "cpu.cfs_quota_us", "-1")
	r := policy.Resources{CPUQuota: new(int64(200000)), CPUPeriod: new(int64(100000)), MemoryLimit: new(int64(2 << 30))}
	if offers := m.synchronize(stored(p, "a", r, true)); len(offers) > 0 {
		t.Errorf("%+v", offers)
	}
	m.want(at, "cpu.idle", "1")
	m.want(at, "cpu.cfs_quota_us", "200000")
}

// What the list does not name is gone.
func TestSynchronizeDrops(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.run(p)
	m.make(p, "a", asks(2, 0, 0))
	m.synchronize(engine.Listing{})
	if all, err := m.e.Containers(t.Context()); err != nil || len(all) > 0 || m.e.HasViews() {
		t.Errorf("%+v, %v", all, err)
	}
}

// The record of a creation never takes the place of an update's.
func TestRecordOfCreation(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
	m.run(p)
	c := engine.Creation{SandboxID: "sa", Pod: p, Name: "a", Asked: asks(2, 0, 0)}
	plan, _ := m.make(p, "a", c.Asked)
	record := func() string {
		files, _ := filepath.Glob(filepath.Join(m.state, "*.json"))
		if len(files) != 1 {
			return ""
		}
		b, _ := os.ReadFile(files[0])
		return string(b)
	}
	m.e.Reported(c, plan)
	m.eventually("the record is there", func() bool { return record() != "" })
	m.e.Updated(m.update("a", asks(512, 0, 0)), true)
	updated := record()
	m.e.Reported(c, plan)
	m.never("the update's record is lost", func() bool { return record() != updated })
	m.e.Reported(engine.Creation{Pod: p, Name: "other"}, plan) // it was removed meanwhile
	m.never("a record of nothing", func() bool { return record() != updated })
}

// A container that is removed at once leaves no record.
func TestRecordOfNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
	m.run(p)
	for i := range uint32(50) {
		c := engine.Creation{SandboxID: "sa", Pod: p, Name: "a", Attempt: i, Asked: asks(2, 0, 0)}
		plan, err := m.e.Create(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		m.e.Created(c, plan, id("a"))
		m.e.Reported(c, plan)
		m.e.Removed(id("a"))
	}
	m.eventually("no record to be left", func() bool {
		left, err := os.ReadDir(m.state)
		return err == nil && len(left) == 0
	})
}

// A runtime that takes no updates gets its files back, and the report says what it still stores.
func TestDisableWithoutUpdates(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
	m.run(p)
	_, at := m.make(p, "a", asks(2, 0, 0))
	m.rt.Fail(func(op, _ string) error {
		if op == "Update" {
			return engine.ErrNoUpdates
		}
		return nil
	})
	report, err := m.e.Disable(t.Context())
	if err != nil || len(report.Errors) != 1 || report.Updated != 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	for file, want := range map[string]string{"cpu.idle": "0", "cpu.max": "max 100000", "memory.max": "max"} {
		if got := m.file(at, file); got != want {
			t.Errorf("%s is %s, want %s", file, got, want)
		}
	}
	if n := m.status().Cgroup.Journal; n != 0 {
		t.Errorf("%d cgroups are journalled still", n)
	}
}
