package storm

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

// A check that can't fail would be worth nothing: each of these changes to a picture without faults is one.
func TestFaults(t *testing.T) {
	set := func(ids ...int) cpuset.CPUSet { return cpuset.New(ids...) }
	// Four cores of two threads. CPU 7 is reserved; an LSE pod owns 0 and 1, of which it runs on 0, an LSR pod 2.
	right := func() *picture {
		p := &picture{
			online: set(0, 1, 2, 3, 4, 5, 6, 7), cores: []cpuset.CPUSet{set(0, 1), set(2, 3), set(4, 5), set(6, 7)}, reserved: set(7), minShared: 1,
			ls: set(3, 4, 5, 6), be: set(2, 3, 4, 5, 6), system: set(2, 3, 4, 5, 6, 7), unplaced: map[string]string{},
			owners: []owner{
				{uid: "e", name: "e", tier: v1alpha1.LSE, cpus: set(0), owned: set(0, 1)},
				{uid: "r", name: "r", tier: v1alpha1.LSR, cpus: set(2), owned: set(2)},
			},
			pods: []podFacts{
				{uid: "e", name: "e", tier: v1alpha1.LSE, sizes: []int{1}, live: true, told: true}, {uid: "r", name: "r", tier: v1alpha1.LSR, sizes: []int{1}, live: true, told: true},
				{uid: "l", name: "l", tier: v1alpha1.LS, live: true}, {uid: "b", name: "b", tier: v1alpha1.BE, live: true},
				{uid: "s", name: "s", tier: v1alpha1.SYSTEM, live: true}, {uid: "n", name: "n", live: true},
			},
			still: []still{{"/foreign", "0-7", "0-7"}},
		}
		for _, c := range []struct {
			pod  string
			tier v1alpha1.Tier
			cpus cpuset.CPUSet
		}{{"e", v1alpha1.LSE, set(0)}, {"r", v1alpha1.LSR, set(2)}, {"l", v1alpha1.LS, p.ls}, {"b", v1alpha1.BE, p.be}, {"s", v1alpha1.SYSTEM, p.system}, {"n", v1alpha1.None, p.ls}} {
			p.containers = append(p.containers, containerFacts{pod: c.pod, name: c.pod + "/app", tier: c.tier, kernel: c.cpus, allowed: c.cpus, decided: c.cpus.String(), born: "0", mems: "0"})
		}
		return p
	}
	if bad := right().faults(); len(bad) > 0 {
		t.Fatalf("the picture that is right has faults: %q", bad)
	}
	at := func(p *picture, pod string) *containerFacts {
		return &p.containers[slices.IndexFunc(p.containers, func(c containerFacts) bool { return c.pod == pod })]
	}
	runs := func(pod string, on cpuset.CPUSet) func(*picture) {
		return func(p *picture) {
			c := at(p, pod)
			c.kernel, c.allowed, c.decided = on, on, on.String()
		}
	}
	for _, tc := range []struct {
		name   string
		change func(*picture)
		want   string // a part of a fault
	}{
		{"LS on a core of LSE", runs("l", set(1, 3, 4, 5, 6)), "which LSE pod e owns"},
		{"batch on a core of LSE", runs("b", set(0, 3)), "which LSE pod e owns"},
		{"SYSTEM on a core of LSE", runs("s", set(1, 7)), "which LSE pod e owns"},
		{"no tier on a CPU of LSR", runs("n", set(2, 3)), "which LSR pod r owns"},
		{"LSR on a CPU of LSE", runs("r", set(0)), "which LSE pod e owns"},
		{"batch not on a CPU of LSR", runs("b", set(3, 4, 5, 6)), "want 2-6"},
		{"LSE on its idle sibling", runs("e", set(0, 1)), "want 0"},
		{"process elsewhere", func(p *picture) { at(p, "l").allowed = set(3) }, "the process of container l/app"},
		{"door shows another", func(p *picture) { at(p, "l").decided = "3" }, "the door shows CPUs 3"},
		{"memory moved", func(p *picture) { at(p, "e").mems = "1" }, "was made with"},
		{"asked is not cut", func(p *picture) { at(p, "l").asked = set(3, 4) }, "want 3-4"},
		{"two owners", func(p *picture) { p.owners[1].cpus, p.owners[1].owned = set(1), set(1) }, "two owners"},
		{"reserved CPU owned", func(p *picture) { p.owners[1].cpus, p.owners[1].owned = set(7), set(7) }, "offline, reserved or the kubelet's"},
		{"half a core", func(p *picture) { p.owners[0].owned = set(0) }, "the cores of its CPUs"},
		{"two threads of a core", func(p *picture) { p.owners[0].cpus = set(0, 1) }, "several threads"},
		{"too many CPUs", func(p *picture) { p.pods[1].sizes = []int{2} }, "want [2] of them"},
		{"owner has ended", func(p *picture) { p.pods[0].live = false }, "does not run any more"},
		{"owner is gone", func(p *picture) { p.pods = p.pods[1:] }, "is gone"},
		{"pool too small", func(p *picture) { p.ls = set(3) }, "pool LS is 3, want 3-6"},
		{"pool empty", func(p *picture) { p.be = set() }, "a pool is empty"},
		{"short without need", func(p *picture) { p.short = "x" }, "says that LS is short"},
		{"waits though there is room", func(p *picture) {
			p.pods = append(p.pods, podFacts{uid: "w", name: "w", tier: v1alpha1.LSE, sizes: []int{1}, live: true, told: true})
			p.unplaced["w"] = "no room"
		}, "which there are"},
		{"the kubelet's are not known", func(p *picture) { p.kubelet = set(6) }, "for the kubelet's"},
		{"foreign cgroup written", func(p *picture) { p.still[0].now = "1" }, "nobody's to touch"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := right()
			tc.change(p)
			if bad := p.faults(); !slices.ContainsFunc(bad, func(b string) bool { return strings.Contains(b, tc.want) }) {
				t.Errorf("got faults %q, want one with %q", bad, tc.want)
			}
		})
	}
}
