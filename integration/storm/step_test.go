package storm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/policy"
)

// move is one kind of thing that happens, for a pod or for the node.
type move struct {
	weight int
	name   string
	pods   func(*pod) bool // of which it takes one; nil: it takes none
	do     func(rnd *rand.Rand, p *pod) error
}

var tiers = []v1alpha1.Tier{
	v1alpha1.LSE, v1alpha1.LSE, v1alpha1.LSR, v1alpha1.LSR, v1alpha1.LSR, v1alpha1.LS, v1alpha1.LS, v1alpha1.BE, v1alpha1.BE, v1alpha1.SYSTEM, v1alpha1.None, v1alpha1.None,
}

// most is how many CPUs a pod may ask for: one more than can be, on a small machine.
func (s *storm) most() int { return min(s.online.Size(), 4) }

func (s *storm) maxPods() int {
	if lab := s.online.Size(); lab > 4 {
		return 9 // it is emulated
	}
	return 11
}

// ofPods are the moves of single pods, which may come at the same time.
func (s *storm) ofPods() []move {
	mine := func(p *pod) bool { return p != s.rock }
	runs := func(p *pod) bool { return p.live && len(p.running()) > 0 && mine(p) }
	loose := func(p *pod) bool { return runs(p) && len(p.shared()) > 0 }
	all := []move{
		{10, "complete", func(p *pod) bool { return p.live && !p.whole() }, func(rnd *rand.Rand, p *pod) error { return s.completed(p, rnd.IntN(4) == 0) }},
		{6, "make a container anew", loose, s.renew},
		{3, "stop a container", loose, func(rnd *rand.Rand, p *pod) error {
			c := pick(rnd, p.shared())
			if err := s.n.Kubelet.StopContainer(s.ctx, c.Container); err != nil {
				return err
			}
			c.Container, c.running, c.asked = nil, false, cpuset.New() // what is left of it goes with the pod
			return nil
		}},
		{8, "update", runs, s.update},
		{8, "set a cpuset", runs, s.pin},
		{14, "resize", func(p *pod) bool { // the kubelet resizes none to which its CPU manager gave CPUs
			return p.tier.Exclusive() && runs(p) && p.size > 0 && p.whole() && len(p.shared()) == len(p.list)
		}, s.resized},
		{7, "stop the sandbox", func(p *pod) bool { return p.live && mine(p) }, func(_ *rand.Rand, p *pod) error { return s.end(p) }},
		{5, "make the sandbox anew", mine, func(rnd *rand.Rand, p *pod) error {
			if p.live {
				if err := s.end(p); err != nil {
					return err
				}
			}
			if err := s.again(p, rnd.IntN(2) == 0); err != nil {
				return err
			}
			return s.completed(p, false)
		}},
		{12, "remove", mine, func(rnd *rand.Rand, p *pod) error { return s.destroy(p, rnd.IntN(5) == 0) }},
	}
	if s.bypassed() { // what is asked then nobody is told of
		all = slices.DeleteFunc(all, func(m move) bool { return m.name == "update" || m.name == "set a cpuset" || m.name == "resize" })
	}
	return all
}

// act does one thing and says what.
func (s *storm) act(rnd *rand.Rand) (what string, err error) {
	if s.bypassed() {
		if s.bypassLeft--; s.bypassLeft == 0 {
			return "bypass off", s.bypass(false)
		}
	}
	moves := s.ofPods()
	for i := range moves {
		m := &moves[i]
		if !slices.ContainsFunc(s.pods, m.pods) {
			m.weight = 0
		}
	}
	if len(s.pods) < s.maxPods() {
		moves = append(moves, move{34, "create", nil, func(rnd *rand.Rand, _ *pod) error {
			p := s.invent(rnd, pick(rnd, tiers))
			said, err := s.create(rnd, p, rnd.IntN(6) == 0)
			what = said
			return err
		}})
	}
	moves = append(moves,
		move{3, "SIGKILL of the door", nil, func(*rand.Rand, *pod) error { return s.restart(syscall.SIGKILL) }},
		move{2, "SIGTERM of the door", nil, func(*rand.Rand, *pod) error { return s.restart(syscall.SIGTERM) }},
	)
	if !s.bypassed() {
		moves = append(moves,
			move{2, "restart of containerd", nil, func(rnd *rand.Rand, _ *pod) error {
				if err := s.n.Containerd.Restart(s.ctx, pick(rnd, []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM})); err != nil {
					return err
				}
				return s.back()
			}},
			move{1, "bypass on", nil, func(rnd *rand.Rand, _ *pod) error {
				s.bypassLeft = 2 + rnd.IntN(4)
				return s.bypass(true)
			}},
			move{5, "policy", nil, func(rnd *rand.Rand, _ *pod) error {
				reserved := cpuset.New()
				for range rnd.IntN(1 + min(3, s.online.Size()-1)) {
					reserved = reserved.Union(cpuset.New(pick(rnd, s.online.List())))
				}
				keep := 1 + rnd.IntN(min(4, s.online.Size()))
				what = fmt.Sprintf("policy: reserved %q, LS keeps %d", reserved, keep)
				return s.reload(reserved, keep)
			}},
			move{3, "exclusive CPUs of the kubelet", nil, func(rnd *rand.Rand, _ *pod) error {
				said, err := s.exclusive(rnd)
				what = said
				return err
			}},
			move{6, "several at once", nil, func(rnd *rand.Rand, _ *pod) error {
				said, err := s.several(rnd, false)
				what = said
				return err
			}},
			move{5, "the door killed meanwhile", nil, func(rnd *rand.Rand, _ *pod) error {
				said, err := s.several(rnd, true)
				what = said
				return err
			}},
		)
	}
	m := choose(rnd, moves)
	what = m.name
	var p *pod
	if m.pods != nil {
		p = pick(rnd, slices.DeleteFunc(slices.Clone(s.pods), func(p *pod) bool { return !m.pods(p) }))
		what += " " + p.name
	}
	err = m.do(rnd, p)
	s.tally(m.name, err)
	return what, err
}

func (s *storm) tally(name string, err error) {
	s.count(strings.SplitN(name, ":", 2)[0])
	if refused(err) {
		s.count("refused")
	}
}

func choose(rnd *rand.Rand, moves []move) move {
	sum := 0
	for _, m := range moves {
		sum += m.weight
	}
	at := rnd.IntN(sum)
	for _, m := range moves {
		if at -= m.weight; at < 0 {
			return m
		}
	}
	return moves[0]
}

func pick[T any](rnd *rand.Rand, from []T) T { return from[rnd.IntN(len(from))] }

// invent makes a pod up.
func (s *storm) invent(rnd *rand.Rand, tier v1alpha1.Tier) *pod {
	p := newPod(rnd, s.made, tier, s.most())
	s.made++
	return p
}

// create makes a pod, all of it or a part.
func (s *storm) create(rnd *rand.Rand, p *pod, part bool) (string, error) {
	s.mu.Lock()
	s.admit(p)
	s.pods = append(s.pods, p)
	s.mu.Unlock()
	what := "create " + p.name
	if p.sizes != nil {
		what += fmt.Sprintf(" of %d CPUs", p.size)
	}
	if err := s.sandbox(p); err != nil {
		return what, s.breaks(p, err)
	}
	if part && rnd.IntN(2) == 0 {
		return what + ", its sandbox alone", nil
	}
	return what, s.completed(p, part)
}

// breaks notes that what there is of a pod is not known any more.
func (s *storm) breaks(p *pod, err error) error {
	if err != nil && !refused(err) {
		p.broken = true
	}
	return err
}

// completed makes what is missing of a pod, and checks that it is refused where it has to be, and only there.
func (s *storm) completed(p *pod, part bool) error {
	judged := s.calm && !s.bypassed() && !s.static && p.tier.Exclusive() && p.strict && len(p.shared()) == len(p.running())
	owns, fits := false, false
	if judged {
		now, err := s.picture()
		if err != nil {
			return err
		}
		owns = now.owner(string(p.Spec.UID)) != nil
		fits = p.size > 0 && now.fits(p.tier, p.size)
	}
	err := s.complete(p, part)
	switch {
	case err != nil && !refused(err):
		return s.breaks(p, err)
	case !judged:
		return err
	case err == nil && !owns && !fits:
		return errors.New("it was made, though there is no room for it")
	case err != nil && (owns || fits):
		return fmt.Errorf("it was refused, though there is room for it (it had CPUs of its own: %t): %s", owns, strings.ReplaceAll(err.Error(), "tideline: ", "tideline "))
	}
	return err
}

// renew makes a container anew, before or after the one before is removed.
func (s *storm) renew(rnd *rand.Rand, p *pod) error {
	c := pick(rnd, p.shared())
	old := c.Container
	if err := s.n.Kubelet.StopContainer(s.ctx, old); err != nil {
		return s.breaks(p, err)
	}
	c.Container, c.running, c.asked = nil, false, cpuset.New()
	remove := func() error { return s.n.Kubelet.RemoveContainer(s.ctx, p.Pod, old) }
	make := func() error { return s.completed(p, false) }
	order := []func() error{remove, make}
	if rnd.IntN(2) == 0 {
		slices.Reverse(order)
	}
	var bad error
	for _, do := range order {
		if err := do(); err != nil && bad == nil {
			bad = s.breaks(p, err)
		}
	}
	return bad
}

// update asks for the same or another quota of a container that shares its CPUs.
func (s *storm) update(rnd *rand.Rand, p *pod) error {
	c := pick(rnd, p.running())
	if p.tier == v1alpha1.LS {
		for i := range p.Spec.Spec.Containers {
			x := &p.Spec.Spec.Containers[i]
			if _, ok := x.Resources.Limits[corev1.ResourceCPU]; ok && x.Name == c.want.Name {
				x.Resources.Limits[corev1.ResourceCPU] = resource.MustParse(fmt.Sprintf("%dm", 100*(1+rnd.IntN(10))))
			}
		}
		for _, x := range kube.Containers(p.Spec, s.n.Kubelet.Options) {
			if x.Name == c.want.Name {
				c.want = x
			}
		}
		if err := s.n.Kubelet.ResizePod(s.ctx, p.Pod); err != nil {
			// The kubelet grows a pod before its containers and shrinks it after them; where that goes wrong it does the other.
			if err := s.n.Kubelet.Update(s.ctx, c.Container, c.want.Asked); err != nil {
				return s.breaks(p, err)
			}
			return s.breaks(p, s.n.Kubelet.ResizePod(s.ctx, p.Pod))
		}
	}
	return s.breaks(p, s.n.Kubelet.Update(s.ctx, c.Container, c.want.Asked))
}

// pin has the kubelet ask for CPUs of a container, as its CPU manager does.
func (s *storm) pin(rnd *rand.Rand, p *pod) error {
	c := pick(rnd, p.running())
	asks := s.online
	switch {
	case p.exclusive(c):
		asks = c.asked
	case p.alone(c) > 0:
		return nil // a door takes a set of that size for the manager's gift, which is given when the container is made
	case s.static:
		asks = s.rest()
	case rnd.IntN(2) == 0:
		asks = cpuset.New()
		for range 1 + rnd.IntN(s.online.Size()) {
			asks = asks.Union(cpuset.New(pick(rnd, s.online.List())))
		}
	}
	if err := s.n.Kubelet.Update(s.ctx, c.Container, policy.Resources{CPUSetCPUs: asks.String()}); err != nil {
		return s.breaks(p, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.asked = asks
	return nil
}

// resized gives a pod more or fewer CPUs, and checks that it is refused where it has to be, and only there.
func (s *storm) resized(rnd *rand.Rand, p *pod) error {
	by := 1 + rnd.IntN(2)
	first := p.list[0].want
	if rnd.IntN(2) == 0 && len(p.Spec.Spec.InitContainers) == 0 && p.size > by && milli(first.Asked) > int64(by)*1000 {
		by = -by
	}
	judged, fits := false, false
	if s.calm && !s.static && p.strict {
		now, err := s.picture()
		if err != nil {
			return err
		}
		judged = now.owner(string(p.Spec.UID)) != nil
		fits = by < 0 || now.fits(p.tier, by)
	}
	before := p.size
	err := s.resize(p, by)
	said := fmt.Sprintf("from %d by %+d", before, by)
	switch {
	case err != nil && !refused(err):
		return s.breaks(p, fmt.Errorf("%s: %w", said, err))
	case err != nil && judged && fits:
		return fmt.Errorf("%s: it was refused, though there is room for it: %s", said, strings.ReplaceAll(err.Error(), "tideline: ", "tideline "))
	case err == nil && judged && !fits:
		return fmt.Errorf("%s: it was done, though there is no room for it", said)
	case err == nil && !p.strict:
		p.sizes = []int{before, p.size} // it keeps what it has where there is no room
	}
	return err
}

// exclusive makes a pod to which the kubelet gives CPUs, or removes it; all others get what is left.
func (s *storm) exclusive(rnd *rand.Rand) (string, error) {
	for _, p := range s.pods {
		if strings.HasSuffix(p.name, "-static") && rnd.IntN(2) == 0 {
			if err := s.destroy(p, false); err != nil {
				return "remove " + p.name, err
			}
			return "remove " + p.name, s.reconcile(s.rest())
		}
	}
	n := 1 + rnd.IntN(max(1, s.online.Size()/4))
	if s.rest().Size() <= n {
		return "exclusive CPUs of the kubelet, of which there are no more", nil
	}
	s.static = true
	p := newStatic(s.made, n)
	s.made++
	s.admit(p)
	s.pods = append(s.pods, p)
	err := s.sandbox(p)
	if err == nil {
		err = s.complete(p, false)
	}
	what := fmt.Sprintf("create %s, to which the kubelet gives CPUs %s", p.name, p.list[0].asked)
	if err != nil {
		return what, err
	}
	return what, s.reconcile(s.rest())
}

// several moves pods at the same time, and may kill the door amid that. What comes of each is not known beforehand.
func (s *storm) several(rnd *rand.Rand, kill bool) (string, error) {
	s.calm = false
	defer func() { s.calm = true }()
	var said []string
	var errs []error
	var mu sync.Mutex
	var wg sync.WaitGroup
	note := func(what string, err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case refused(err):
			what += " (refused)"
			s.count("refused")
		case err != nil && kill:
			what += " (" + err.Error() + ")"
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
		said = append(said, what)
	}
	busy := map[*pod]bool{s.rock: true}
	var jobs []func()
	n := 2 + rnd.IntN(3)
	if !kill {
		n++
	}
	for range n {
		each := rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))
		free := func(f func(*pod) bool) func(*pod) bool { return func(p *pod) bool { return !busy[p] && f(p) } }
		moves := s.ofPods()
		for i := range moves {
			moves[i].pods = free(moves[i].pods)
			if !slices.ContainsFunc(s.pods, moves[i].pods) {
				moves[i].weight = 0
			}
		}
		moves = append(moves, move{20, "create", nil, nil})
		m := choose(rnd, moves)
		if m.pods == nil {
			p := s.invent(each, pick(rnd, tiers))
			jobs = append(jobs, func() {
				what, err := s.create(each, p, false)
				note(what, err)
			})
			continue
		}
		p := pick(rnd, slices.DeleteFunc(slices.Clone(s.pods), func(p *pod) bool { return !m.pods(p) }))
		busy[p] = true
		jobs = append(jobs, func() { note(m.name+" "+p.name, s.breaks(p, m.do(each, p))) })
	}
	for _, job := range jobs {
		wg.Go(job)
	}
	if kill {
		time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond * max(s.slow/4, 1))
		err := s.n.StopProxy(s.ctx, syscall.SIGKILL)
		if err == nil && rnd.IntN(2) == 0 {
			time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
		}
		if err == nil {
			err = s.n.StartProxy(s.ctx)
		}
		errs = append(errs, err)
	}
	wg.Wait()
	slices.Sort(said)
	what := "at once: " + strings.Join(said, "; ")
	if kill {
		what = "door killed during: " + strings.Join(said, "; ")
		errs = append(errs, s.back(), s.after())
	}
	return what, errors.Join(errs...)
}

// after cleans up when the door was killed amid calls. The kubelet gives up pods whose calls have failed.
func (s *storm) after() error {
	told, err := s.n.Control.CPUs(s.ctx)
	if err != nil {
		return err
	}
	for _, p := range slices.Clone(s.pods) {
		if p.broken {
			if err := s.destroy(p, true); err != nil {
				return err
			}
			continue
		}
		owns := false
		for _, o := range told.Pods {
			owns = owns || o.UID == string(p.Spec.UID)
		}
		if !owns {
			p.told = false
		}
		if door == node.NRI { // its calls went on without us
			p.sizes = nil
		}
	}
	return nil
}
