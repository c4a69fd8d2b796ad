package storm

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// storm is a node and what the test knows of it.
type storm struct {
	t   *testing.T
	ctx context.Context
	n   *node.Node

	online cpuset.CPUSet
	cores  []cpuset.CPUSet
	slow   time.Duration // how much slower than a host the machine is

	mu     sync.Mutex
	pods   []*pod
	counts map[string]int
	made   int

	rock         *pod // without a tier, from before the first placement to the end
	rockFirst    string
	fixed        map[string]string // cgroups that are nobody's to touch, and their first CPUs
	reserved     cpuset.CPUSet
	minShared    int
	policies     int
	static       bool // the kubelet has a static CPU manager
	bypassLeft   int  // steps until bypass ends; 0 outside of it
	calm         bool // nothing else happens meanwhile, so that what comes of a call is known beforehand
	steps        []string
	slowest      time.Duration
	slowestAfter string
}

func TestStorm(t *testing.T) {
	fmt.Printf("storm: door %s, seed %d, %d steps\n", door, seed, steps)
	limit := 15 * time.Minute
	if lab.Unified() {
		limit = 50 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s := newStorm(t, ctx)
	defer func() {
		if t.Failed() {
			t.Logf("storm: door %s, seed %d; all steps:\n%s", door, seed, strings.Join(s.steps, "\n"))
		}
	}()
	begin := time.Now()
	for i := range steps {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		s.step(i, rnd)
		s.check()
	}
	s.calmDown()
	var counts []string
	for _, k := range slices.Sorted(maps.Keys(s.counts)) {
		counts = append(counts, fmt.Sprintf("%s %d", k, s.counts[k]))
	}
	fmt.Printf("storm: %d steps in %v; the longest to be quiet was %v after %q; %s\n", steps, time.Since(begin).Round(time.Second), s.slowest.Round(time.Millisecond), s.slowestAfter, strings.Join(counts, ", "))
}

func newStorm(t *testing.T, ctx context.Context) *storm {
	t.Helper()
	s := &storm{t: t, ctx: ctx, counts: map[string]int{}, fixed: map[string]string{}, minShared: 1, slow: 1, calm: true}
	if lab.Unified() {
		s.slow = 12
	}
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err == nil {
		s.online, err = cpuset.Parse(strings.TrimSpace(string(b)))
	}
	if err != nil {
		t.Fatal(err)
	}
	seen := cpuset.New()
	for _, id := range s.online.List() {
		b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", id))
		if err != nil {
			t.Fatal(err)
		}
		core, err := cpuset.Parse(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		if !seen.Contains(id) {
			s.cores = append(s.cores, core)
			seen = seen.Union(core)
		}
	}
	if s.n, err = node.Start(ctx, lab.ForTest(t, "storm"), node.Options{Policy: s.policy(), Door: door}); err != nil {
		t.Fatal(err)
	}
	foreign := s.n.Lab.CgroupParent() + "/foreign"
	if err := lab.MakeCgroup(foreign); err != nil {
		t.Fatal(err)
	}
	s.fixed[foreign] = ""
	for _, c := range node.Classes {
		s.fixed[s.n.Kubelet.Class(c)] = ""
	}
	for at := range s.fixed {
		s.fixed[at] = node.Kernel(at, policy.CPUSetCPUs)
	}
	s.rock = newPod(rand.New(rand.NewPCG(0, 0)), 0, v1alpha1.None, 1)
	s.admit(s.rock)
	if err := s.sandbox(s.rock); err != nil {
		t.Fatal(err)
	}
	s.pods = append(s.pods, s.rock)
	if err := s.complete(s.rock, false); err != nil {
		t.Fatal(err)
	}
	s.rockFirst = s.rockCPUs()
	s.made = 1
	return s
}

func (s *storm) rockCPUs() string {
	return node.Kernel(s.rock.Cgroup+"/"+s.rock.list[0].ID, policy.CPUSetCPUs)
}

func (s *storm) bypassed() bool { return s.bypassLeft > 0 }

func (s *storm) policy() string {
	return fmt.Sprintf("%s\nmetadata: {name: storm-%d}\nspec:\n  reservedCPUs: %q\n  minSharedCPUs: %d\n",
		"apiVersion: tideline.io/v1alpha1\nkind: QoSPolicy", s.policies, s.reserved, s.minShared)
}

func (s *storm) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

func tick() <-chan time.Time { return time.After(100 * time.Millisecond) }

// rest is the CPUs of containers to which the kubelet has given none alone.
func (s *storm) rest() cpuset.CPUSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.online.Difference(s.given())
}

// picture takes a picture of the node.
func (s *storm) picture() (*picture, error) {
	told, err := s.n.Control.CPUs(s.ctx)
	if err != nil {
		return nil, err
	}
	containers, err := s.n.Control.Containers(s.ctx)
	if err != nil {
		return nil, err
	}
	p := &picture{online: s.online, cores: s.cores, reserved: s.reserved, minShared: s.minShared, short: told.Pools.Short, unplaced: map[string]string{}, kubelet: s.online.Difference(s.rest())}
	var bad error
	set := func(text string) cpuset.CPUSet {
		out, err := units.ParseCPUs(text)
		bad = cmp.Or(bad, err)
		return out
	}
	p.foreign, p.ls, p.be, p.system = set(told.Foreign), set(told.Pools.LS), set(told.Pools.BE), set(told.Pools.System)
	for _, o := range told.Pods {
		p.owners = append(p.owners, owner{uid: o.UID, name: o.Name, tier: o.Tier, cpus: set(o.CPUs), owned: set(o.Owned), mems: o.Mems})
	}
	for _, u := range told.Unplaced {
		p.unplaced[u.UID] = u.Why
	}
	decided := map[string]string{}
	for _, c := range containers {
		for _, x := range c.Decision.Settings {
			if x.Knob == policy.CPUSetCPUs {
				decided[c.ID] = x.Value
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.pods {
		p.pods = append(p.pods, podFacts{uid: string(x.Spec.UID), name: x.name, tier: x.tier, sizes: x.sizes, live: x.live, told: x.told})
		if x.live {
			p.still = append(p.still, still{x.Cgroup, s.fixed[s.n.Kubelet.Root()], node.Kernel(x.Cgroup, policy.CPUSetCPUs)})
		}
		for _, c := range x.running() {
			at := x.Cgroup + "/" + c.ID
			f := containerFacts{pod: string(x.Spec.UID), name: x.name + "/" + c.want.Name, tier: x.tier, asked: c.asked, exclusive: x.exclusive(c), decided: decided[c.ID], born: c.born}
			f.mems = node.Kernel(at, policy.CPUSetMems)
			kernel, process, err := holds(at)
			bad = cmp.Or(bad, err)
			f.kernel, f.allowed = set(kernel), set(process)
			p.containers = append(p.containers, f)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(s.fixed)) {
		p.still = append(p.still, still{at, s.fixed[at], node.Kernel(at, policy.CPUSetCPUs)})
	}
	return p, bad
}

// holds reads the CPUs that hold in a container's cgroup, and those of its first process.
func holds(at string) (cgroup, process string, err error) {
	file := "cpuset.cpus"
	if lab.Unified() {
		file = "cpuset.cpus.effective"
	}
	b, err := os.ReadFile(lab.CgroupFile("cpuset", at, file))
	if err != nil {
		return "", "", err
	}
	cgroup = strings.TrimSpace(string(b))
	if b, err = os.ReadFile(lab.CgroupFile("cpuset", at, "cgroup.procs")); err != nil {
		return "", "", err
	}
	first, _, _ := strings.Cut(string(b), "\n")
	if b, err = os.ReadFile(filepath.Join("/proc", first, "status")); err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return cgroup, strings.TrimSpace(v), nil
		}
	}
	return "", "", fmt.Errorf("process %s of %s tells no Cpus_allowed_list", first, at)
}

// check waits until the node is quiet, and ends the test where it does not become what it should be. While bypass is on
// nobody promises anything but that foreign cgroups stay as they are.
func (s *storm) check() {
	s.t.Helper()
	begin := time.Now()
	for {
		p, err := s.picture()
		var bad []string
		if err != nil {
			bad = []string{err.Error()}
		} else if s.bypassed() {
			bypassed := picture{still: p.still}
			bad = bypassed.stillFaults()
		} else {
			bad = p.faults()
		}
		took := time.Since(begin)
		if len(bad) == 0 {
			if took > s.slowest {
				s.slowest, s.slowestAfter = took, s.steps[max(len(s.steps)-1, 0)]
			}
			return
		}
		if took > 8*time.Second*s.slow || s.ctx.Err() != nil {
			shown := ""
			if p != nil {
				shown = p.table()
			}
			s.t.Fatalf("storm: door %s, seed %d: %v after step %d:\n%s\n\nthe last steps:\n%s\n\n%s", door, seed, took.Round(time.Second), len(s.steps)-1,
				strings.Join(bad, "\n"), strings.Join(s.steps[max(len(s.steps)-8, 0):], "\n"), shown)
		}
		time.Sleep(min(took/4, time.Second) + 10*time.Millisecond)
	}
}

// step does one thing.
func (s *storm) step(i int, rnd *rand.Rand) {
	s.t.Helper()
	s.steps = append(s.steps, fmt.Sprintf("%3d ...", i))
	what, err := s.act(rnd)
	line := fmt.Sprintf("%3d %s", i, what)
	if err != nil {
		line += ": " + err.Error()
	}
	s.steps[len(s.steps)-1] = line
	if testing.Verbose() {
		fmt.Println(line)
	}
	if err != nil && !refused(err) {
		s.t.Fatalf("storm: door %s, seed %d: step %s", door, seed, line)
	}
}

// calmDown ends the storm: without pods of ours everybody has what was there first, and so it is after disable.
func (s *storm) calmDown() {
	s.t.Helper()
	note := func(what string) { s.steps = append(s.steps, "end "+what) }
	if s.bypassed() {
		s.must(s.bypass(false))
		note("bypass off")
		s.check()
	}
	s.cli()
	rest := slices.DeleteFunc(slices.Clone(s.pods), func(p *pod) bool { return p == s.rock })
	for _, p := range rest {
		s.must(s.destroy(p, false))
	}
	if s.static { // the kubelet's manager is gone, too
		s.static = false
		s.must(s.reconcile(s.online))
	}
	note("all pods removed")
	s.check()
	s.eventually("the first CPUs are back", func() error {
		if got := s.rockCPUs(); got != s.rockFirst && (got != s.online.String() || s.rockFirst != "") { // CRI can't say "none" again
			return fmt.Errorf("the container that was there first has CPUs %q, and had %q", got, s.rockFirst)
		}
		return nil
	})
	s.eventually("the door forgets", func() error {
		all, err := s.n.Control.Containers(s.ctx)
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("it knows %d containers, and there is 1", len(all))
			for _, c := range all {
				err = fmt.Errorf("%w; %s/%s %.12s", err, c.Pod, c.Name, c.ID)
			}
		}
		return err
	})

	rnd := rand.New(rand.NewPCG(seed, 1<<32))
	for _, tier := range []v1alpha1.Tier{v1alpha1.LSR, v1alpha1.LS, v1alpha1.BE, v1alpha1.None} {
		_, err := s.create(rnd, s.invent(rnd, tier), false)
		if err != nil && !refused(err) {
			s.t.Fatal(err)
		}
	}
	note("some pods made")
	s.check()
	report, err := s.n.Control.Disable(s.ctx)
	note("disable")
	if err != nil || len(report.Errors) > 0 {
		s.t.Fatalf("disable: %+v, %v", report, err)
	}
	for _, p := range s.pods {
		for _, c := range p.running() {
			kernel, _, err := holds(p.Cgroup + "/" + c.ID)
			want := s.online
			if !c.asked.IsEmpty() {
				want = c.asked
			}
			if err != nil || kernel != want.String() {
				s.t.Errorf("after disable container %s/%s has CPUs %q, want %s: %v", p.name, c.want.Name, kernel, want, err)
			}
		}
	}
	for at, first := range s.fixed {
		if got := node.Kernel(at, policy.CPUSetCPUs); got != first {
			s.t.Errorf("after disable cgroup %s has CPUs %q, and had %q", at, got, first)
		}
	}
	st, err := s.n.Control.Status(s.ctx)
	if err != nil || st.Cgroup.Journal != 0 {
		s.t.Errorf("after disable %d cgroups are in the journal, %v", st.Cgroup.Journal, err)
	}
}

// cli compares what `tideline cpus` prints with what the door says.
func (s *storm) cli() {
	s.t.Helper()
	dir, err := own.Dir()
	s.must(err)
	told, err := s.n.Control.CPUs(s.ctx)
	s.must(err)
	out, err := exec.CommandContext(s.ctx, filepath.Join(dir, own.CLI), "cpus", "-o", "json", "--control", s.n.ControlSocket()).Output()
	if err != nil {
		s.t.Errorf("tideline cpus: %v: %s", err, out)
		return
	}
	var report struct {
		Pools control.CPUPools `json:"pools"`
		Pods  []struct {
			Name  string `json:"name"`
			CPUs  string `json:"cpus"`
			Owned string `json:"owned"`
		} `json:"pods"`
	}
	s.must(json.Unmarshal(out, &report))
	var got, want []string
	for _, p := range report.Pods {
		got = append(got, p.Name+" "+p.CPUs+" "+p.Owned)
	}
	for _, p := range told.Pods {
		want = append(want, p.Name+" "+p.CPUs+" "+p.Owned)
	}
	if !slices.Equal(got, want) || report.Pools.LS != told.Pools.LS || report.Pools.BE != told.Pools.BE {
		s.t.Errorf("tideline cpus says %q with pools %+v, the door %q with %+v", got, report.Pools, want, told.Pools)
	}
}

func (s *storm) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("storm: door %s, seed %d: %v", door, seed, err)
	}
}

func (s *storm) eventually(what string, f func() error) {
	s.t.Helper()
	var err error
	for end := time.Now().Add(8 * time.Second * s.slow); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	s.t.Fatalf("storm: door %s, seed %d: not in time: %s: %v", door, seed, what, err)
}

// back waits until the kubelet and the door reach the runtime again.
func (s *storm) back() error {
	if err := patiently(s.ctx, func() error {
		st, err := s.n.Control.Status(s.ctx)
		if err == nil && !st.Runtime.Connected {
			err = fmt.Errorf("the runtime is away: %s", st.Runtime.Error)
		}
		return err
	}); err != nil {
		return err
	}
	return patiently(s.ctx, func() error {
		_, err := s.n.Kubelet.CRI.Runtime.Version(s.ctx, &runtimeapi.VersionRequest{})
		return err
	})
}

// restart ends the door by a signal and starts it again. Who has no CPUs of its own has to ask anew.
func (s *storm) restart(sig syscall.Signal) error {
	if err := s.n.RestartProxy(s.ctx, sig); err != nil {
		return err
	}
	told, err := s.n.Control.CPUs(s.ctx)
	if err != nil {
		return err
	}
	for _, p := range s.pods {
		if !slices.ContainsFunc(told.Pods, func(o control.PodCPUs) bool { return o.UID == string(p.Spec.UID) }) {
			p.told = false
		}
	}
	return s.back()
}

func (s *storm) bypass(on bool) error {
	if _, err := s.n.Control.Bypass(s.ctx, on); err != nil {
		return err
	}
	if !on {
		s.bypassLeft = 0
	}
	return nil
}

// reload gives the door another policy.
func (s *storm) reload(reserved cpuset.CPUSet, minShared int) error {
	s.reserved, s.minShared = reserved, minShared
	s.policies++
	if err := s.n.SetPolicy(s.policy()); err != nil {
		return err
	}
	name := fmt.Sprintf("storm-%d", s.policies)
	return patiently(s.ctx, func() error {
		st, err := s.n.Control.Status(s.ctx)
		if err == nil && st.Policy.Name != name {
			err = fmt.Errorf("policy %s is in force: %s", st.Policy.Name, st.Policy.Error)
		}
		return err
	})
}

// reconcile is the kubelet's CPU manager telling the runtime the CPUs of every container without some of its own.
func (s *storm) reconcile(cpus cpuset.CPUSet) error {
	for _, p := range s.pods {
		for _, c := range p.running() {
			if p.alone(c) > 0 || same(c.asked, cpus) {
				continue
			}
			if err := s.n.Kubelet.Update(s.ctx, c.Container, policy.Resources{CPUSetCPUs: cpus.String()}); err != nil {
				return err
			}
			c.asked = cpus
		}
	}
	return nil
}
