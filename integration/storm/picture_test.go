package storm

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

// A picture is who has which CPUs at one moment: as the door says, as the test knows, and as the kernel has it. It shares
// no code with the door.
type picture struct {
	online cpuset.CPUSet
	cores  []cpuset.CPUSet // each one's threads

	// What the policy says.
	reserved  cpuset.CPUSet
	minShared int

	// What the door says.
	foreign        cpuset.CPUSet
	ls, be, system cpuset.CPUSet
	short          string
	owners         []owner
	unplaced       map[string]string // why, by pod UID

	kubelet    cpuset.CPUSet // given away by its CPU manager, as the test knows
	pods       []podFacts
	containers []containerFacts
	still      []still
}

// owner is a pod with CPUs of its own.
type owner struct {
	uid, name   string
	tier        v1alpha1.Tier
	cpus, owned cpuset.CPUSet
	mems        string
}

// podFacts is what the test knows of a pod.
type podFacts struct {
	uid, name string
	tier      v1alpha1.Tier
	sizes     []int // how many CPUs it may own: several where a resize was refused; none where the test can't know
	live      bool  // a sandbox runs
	told      bool  // the door has heard from the kubelet itself how many CPUs it asks for
}

// containerFacts is a running container.
type containerFacts struct {
	pod, name string // the pod's UID, and both names for people
	tier      v1alpha1.Tier
	asked     cpuset.CPUSet // by the kubelet; empty for nothing
	exclusive bool          // they are the kubelet's to give: its static CPU manager's
	decided   string        // as the door shows it; "" for nothing
	kernel    cpuset.CPUSet // what holds in its cgroup
	allowed   cpuset.CPUSet // what its first process may use
	mems      string        // in its cgroup
	born      string        // memory nodes that it was made with
}

// still is a cgroup that nobody may touch.
type still struct{ at, first, now string }

func (p *picture) owner(uid string) *owner {
	for i := range p.owners {
		if p.owners[i].uid == uid {
			return &p.owners[i]
		}
	}
	return nil
}

// base is the CPUs that the door may deal out.
func (p *picture) base() cpuset.CPUSet { return p.online.Difference(p.reserved).Difference(p.foreign) }

func (p *picture) owned(tiers ...v1alpha1.Tier) (all cpuset.CPUSet) {
	for _, o := range p.owners {
		if slices.Contains(tiers, o.tier) {
			all = all.Union(o.owned)
		}
	}
	return all
}

// fits says whether a pod can get so many CPUs more.
func (p *picture) fits(tier v1alpha1.Tier, cpus int) bool {
	left := p.base().Difference(p.owned(v1alpha1.LSE, v1alpha1.LSR))
	if tier == v1alpha1.LSR {
		return cpus <= left.Size() && left.Size()-cpus >= p.minShared
	}
	whole, takes := 0, 0
	for _, c := range p.cores {
		if c.IsSubsetOf(left) {
			whole++
			takes = c.Size()
		}
	}
	return cpus <= whole && left.Size()-cpus*takes >= p.minShared
}

// wants is where a container belongs. loose says that what the kubelet asks leaves it none of its pool's CPUs: then it
// stays where it is asked to, whoever owns them.
func (p *picture) wants(c *containerFacts) (set cpuset.CPUSet, loose bool) {
	if c.exclusive {
		return c.asked, true
	}
	o := p.owner(c.pod)
	if o != nil {
		return o.cpus, false
	}
	pool := p.ls
	switch c.tier {
	case v1alpha1.BE:
		pool = p.be
	case v1alpha1.SYSTEM, v1alpha1.None:
		if c.tier == v1alpha1.SYSTEM {
			pool = p.system
		}
		if len(p.owners) == 0 {
			pool = p.online
		}
	}
	if c.asked.IsEmpty() {
		return pool, false
	}
	if both := c.asked.Intersection(pool); !both.IsEmpty() {
		return both, false
	}
	return c.asked, true
}

// faults is all that is wrong with a picture.
func (p *picture) faults() (bad []string) {
	say := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }

	var taken cpuset.CPUSet
	for _, o := range p.owners {
		if both := taken.Intersection(o.owned); !both.IsEmpty() {
			say("CPUs %s have two owners, one is %s", both, o.name)
		}
		taken = taken.Union(o.owned)
		if out := o.owned.Difference(p.base()); !out.IsEmpty() {
			say("pod %s owns CPUs %s, which are offline, reserved or the kubelet's", o.name, out)
		}
		switch {
		case o.tier == v1alpha1.LSR && !same(o.owned, o.cpus):
			say("LSR pod %s runs on %s and owns %s", o.name, o.cpus, o.owned)
		case o.tier == v1alpha1.LSE:
			of := cpuset.New()
			for _, c := range p.cores {
				if n := c.Intersection(o.cpus).Size(); n > 0 {
					of = of.Union(c)
					if n > 1 {
						say("LSE pod %s runs on several threads of core %s", o.name, c)
					}
				}
			}
			if !same(of, o.owned) {
				say("LSE pod %s owns %s, the cores of its CPUs %s are %s", o.name, o.owned, o.cpus, of)
			}
		}
	}
	pools := map[string][2]cpuset.CPUSet{}
	if left := p.base().Difference(taken); left.IsEmpty() {
		if p.short == "" {
			say("no CPU is left to LS, and the door does not say that it is short")
		}
	} else {
		lse := p.owned(v1alpha1.LSE)
		pools["LS"] = [2]cpuset.CPUSet{p.ls, left}
		pools["BE"] = [2]cpuset.CPUSet{p.be, p.base().Difference(lse)}
		pools["SYSTEM"] = [2]cpuset.CPUSet{p.system, p.online.Difference(p.foreign).Difference(lse)}
		if p.short != "" {
			say("the door says that LS is short, and it has %s: %s", left, p.short)
		}
	}
	for _, name := range []string{"LS", "BE", "SYSTEM"} {
		if is, ok := pools[name]; ok && !same(is[0], is[1]) {
			say("pool %s is %s, want %s", name, is[0], is[1])
		}
	}
	if p.ls.IsEmpty() || p.be.IsEmpty() || p.system.IsEmpty() {
		say("a pool is empty: LS %s, BE %s, SYSTEM %s", p.ls, p.be, p.system)
	}

	for _, x := range p.pods {
		o := p.owner(x.uid)
		why, waits := p.unplaced[x.uid]
		switch {
		case o == nil && waits && x.live && x.told && len(x.sizes) == 1 && p.fits(x.tier, x.sizes[0]):
			say("pod %s waits for %d CPUs, which there are: %s", x.name, x.sizes[0], why)
		case o == nil:
		case o.tier != x.tier:
			say("pod %s owns CPUs as %s", x.name, o.tier)
		case !x.live:
			say("pod %s owns CPUs %s, and does not run any more", x.name, o.owned)
		case len(x.sizes) > 0 && !slices.Contains(x.sizes, o.cpus.Size()):
			say("pod %s has CPUs %s, want %v of them", x.name, o.cpus, x.sizes)
		}
	}
	for _, o := range p.owners {
		if !slices.ContainsFunc(p.pods, func(x podFacts) bool { return x.uid == o.uid }) {
			say("pod %s owns CPUs %s, and is gone", o.uid, o.owned)
		}
	}

	for i := range p.containers {
		c := &p.containers[i]
		want, loose := p.wants(c)
		if !same(c.kernel, want) {
			say("container %s (%s) has CPUs %s in the kernel, want %s", c.name, tierName(c.tier), c.kernel, want)
		}
		if !same(c.allowed, c.kernel) {
			say("the process of container %s may use CPUs %s, its cgroup has %s", c.name, c.allowed, c.kernel)
		}
		if c.decided != "" && c.decided != c.kernel.String() {
			say("the door shows CPUs %s of container %s, the kernel has %s", c.decided, c.name, c.kernel)
		}
		if c.born != "" && c.mems != c.born {
			say("container %s has memory nodes %q, it was made with %q", c.name, c.mems, c.born)
		}
		if loose {
			continue
		}
		for _, o := range p.owners {
			shares := o.tier == v1alpha1.LSR && (c.tier == v1alpha1.BE || c.tier == v1alpha1.SYSTEM)
			if both := c.kernel.Intersection(o.owned); o.uid != c.pod && !shares && !both.IsEmpty() {
				say("container %s (%s) runs on CPUs %s, which %s pod %s owns", c.name, tierName(c.tier), both, o.tier, o.name)
			}
		}
	}
	if !same(p.foreign, p.kubelet) {
		say("the door takes CPUs %q for the kubelet's, want %q", p.foreign, p.kubelet)
	}
	return append(bad, p.stillFaults()...)
}

// stillFaults is what is wrong with cgroups that are nobody's to touch.
func (p *picture) stillFaults() (bad []string) {
	for _, s := range p.still {
		if s.now != s.first {
			bad = append(bad, fmt.Sprintf("cgroup %s, which is nobody's to touch, has CPUs %q, and had %q", s.at, s.now, s.first))
		}
	}
	return bad
}

func tierName(t v1alpha1.Tier) string {
	if t == v1alpha1.None {
		return "no tier"
	}
	return string(t)
}

// table shows a picture.
func (p *picture) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "online %s, reserved %q, foreign %q, LS keeps %d; pools: LS %s, BE %s, SYSTEM %s %s\n", p.online, p.reserved, p.foreign, p.minShared, p.ls, p.be, p.system, p.short)
	for _, x := range p.pods {
		state := "has none of its own"
		if o := p.owner(x.uid); o != nil {
			state = fmt.Sprintf("runs on %s, owns %s, memory %q", o.cpus, o.owned, o.mems)
		} else if why, ok := p.unplaced[x.uid]; ok {
			state = "is not placed: " + why
		}
		fmt.Fprintf(&b, "pod %-14s %-8s sizes %v live %-5t told %-5t %s\n", x.name, tierName(x.tier), x.sizes, x.live, x.told, state)
	}
	fmt.Fprintf(&b, "%-22s %-8s %-10s %-10s %-10s %-10s %-10s\n", "container", "tier", "asked", "door", "kernel", "process", "want")
	for i := range p.containers {
		c := &p.containers[i]
		want, loose := p.wants(c)
		note := ""
		if c.exclusive {
			note = "the kubelet's"
		} else if loose {
			note = "as asked"
		}
		fmt.Fprintf(&b, "%-22s %-8s %-10s %-10s %-10s %-10s %-10s %s\n", c.name, tierName(c.tier), c.asked, c.decided, c.kernel, c.allowed, want, note)
	}
	return b.String()
}

// same compares sets; the zero value is one that is empty.
func same(a, b cpuset.CPUSet) bool { return a.Size() == b.Size() && a.IsSubsetOf(b) }
