package engine

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
)

// Key names one instance of a container. Instance n+1 can be announced before instance n is gone, so the container's
// name alone does not tell them apart.
type Key struct {
	PodUID  string `json:"podUID"`
	Name    string `json:"name"`
	Attempt uint32 `json:"attempt"`
}

func (k Key) String() string { return fmt.Sprintf("%s/%s/%d", k.PodUID, k.Name, k.Attempt) }

// state is what the owner goroutine owns.
type state struct {
	now        time.Time
	pods       map[string]*pod               // by UID
	sandboxes  map[string]string             // sandbox ID -> pod UID
	containers map[string]map[Key]*container // by pod UID; put and drop change it
	ids        map[string]Key                // container ID -> key
	ended      map[string]bool               // IDs of sandboxes whose processes were stopped
	cpus       cpus
	joining    map[Key]bool // containers whose resctrl group is to be looked at
}

func newState() *state {
	return &state{
		pods: map[string]*pod{}, sandboxes: map[string]string{}, containers: map[string]map[Key]*container{}, ids: map[string]Key{},
		ended: map[string]bool{}, cpus: cpus{placed: map[string]placement.Assignment{}, moving: map[Key]bool{}}, joining: map[Key]bool{},
	}
}

// pod is a pod that has a sandbox, or is about to get one.
type pod struct {
	facts    policy.Pod
	path     cgroup.Path // "" where pod-level values are left alone
	decision policy.Decision
	held     map[policy.Knob]string // what was decided last for each knob that may stand in the kernel because of us
	seq      uint64                 // counts the decisions
	turn     *turn
	resizes  uint64    // counts the kubelet's announcements of a write to the pod's cgroup
	resized  time.Time // when the last one came
	why      error     // why it has no CPUs of its own, though its tier should; facts.Placed has them if it does
	since    int64     // when it was first to be placed, in Unix nanoseconds
	told     bool      // a message of its own has told of it, and not a list alone
}

// turn keeps writes to one pod's cgroup in the order of their decisions: of two that come at once the older may be late.
type turn struct {
	mu     sync.Mutex
	last   uint64      // seq of the latest decision that was carried out
	failed atomic.Bool // it could not be written whole, so the next decision is written even where it is the same
}

func newPod(facts policy.Pod) *pod {
	return &pod{facts: facts, path: podPath(facts), held: map[policy.Knob]string{}, turn: &turn{}}
}

// container is one instance. What a pointer to it shows of fields other than path, err, cpus and filed never changes once it
// is in the state: an update makes a copy, so that there is something to go back to.
//
//	created      managed    asked and decided at creation, record and annotation written
//	started                 rest written to the files of path
//	updated                 asked and decided anew; before holds what to go back to when the runtime refuses
//	adopted      adopted    was there before us: asked is what the runtime's spec holds
//	missed       missed     a door failed open: asked is known, nothing of ours is in the runtime's spec
//	released     adopted    disable took our values back
//	removed                 record, view and journal dropped
type container struct {
	key       Key
	id        string
	sandboxID string
	state     policy.State
	asked     *policy.Resources // nil: unknown
	born      *policy.Resources // what was asked at its birth, where that is all we know
	decision  policy.Decision
	changed   bool // the runtime's stored spec holds values of ours
	// unweighted says that the stored spec holds no CPU shares, which every update would send again: the kernel refuses
	// them while cpu.idle is 1.
	unweighted bool
	// stored is the cpuset.cpus of ours in the runtime's stored spec; "" for none. The decision follows the pools by files.
	stored string
	cpus   string      // the cpuset.cpus that was seen to stand in the kernel; "" for not known, or for what stood there before us
	filed  bool        // a file of ours replaced its cpuset.cpus, so that the journal holds what stood there before
	path   cgroup.Path // once it was looked up
	err    string
	before *container // while an update is under way
}

// lastAsked is the best that is known of what was asked.
func (c *container) lastAsked() policy.Resources {
	switch {
	case c.asked != nil:
		return *c.asked
	case c.born != nil:
		return *c.born
	}
	return policy.Resources{}
}

func (s *state) get(k Key) *container { return s.containers[k.PodUID][k] }

// put makes c what is known of its key.
func (s *state) put(c *container) {
	of := s.containers[c.key.PodUID]
	if of == nil {
		of = map[Key]*container{}
		s.containers[c.key.PodUID] = of
	}
	of[c.key] = c
	if c.id != "" {
		s.ids[c.id] = c.key
	}
}

// all gives every container, in no order.
func (s *state) all() iter.Seq[*container] {
	return func(yield func(*container) bool) {
		for _, of := range s.containers {
			for _, c := range of {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// minID is the least part of a container's ID that names it, as people type it; fullID is what containerd and CRI-O give.
const minID, fullID = 8, 64

// byID finds a container by its ID, or by the beginning of one, as runtimes do.
func (s *state) byID(id string) *container {
	if k, ok := s.ids[id]; ok {
		if c := s.get(k); c != nil && c.id == id {
			return c
		}
		return nil // another one has its key: a runtime did not tell that it is another instance
	}
	if len(id) < minID || len(id) >= fullID {
		return nil
	}
	var found *container
	for full, k := range s.ids {
		if strings.HasPrefix(full, id) {
			if found != nil {
				return nil
			}
			found = s.get(k)
		}
	}
	return found
}

// podOf gives the pod of a container, or one that says no more than its UID.
func (s *state) podOf(c *container) *pod {
	if p := s.pods[c.key.PodUID]; p != nil {
		return p
	}
	return newPod(policy.Pod{UID: c.key.PodUID})
}

// facts gives the containers of a pod as the policy wants them; instances that are replaced count once, the newest. One
// of which nothing is known counts as one that asked for nothing: it has no quota of its own, say.
func (s *state) facts(uid string) []policy.Container {
	newest := map[string]*container{}
	for k, c := range s.containers[uid] {
		if newest[k.Name] == nil || newest[k.Name].key.Attempt < k.Attempt {
			newest[k.Name] = c
		}
	}
	out := make([]policy.Container, 0, len(newest))
	for _, name := range slices.Sorted(maps.Keys(newest)) {
		c := newest[name]
		out = append(out, policy.Container{Name: name, State: c.state, Asked: c.lastAsked()})
	}
	return out
}

// drop forgets a container.
func (s *state) drop(c *container) {
	if s.ids[c.id] == c.key {
		delete(s.ids, c.id)
	}
	if now := s.get(c.key); now != nil && now.id == c.id {
		of := s.containers[c.key.PodUID]
		if delete(of, c.key); len(of) == 0 {
			delete(s.containers, c.key.PodUID)
		}
	}
}

// dropSandbox forgets a sandbox, and gives its pod when that was its last one.
func (s *state) dropSandbox(id string) *pod {
	uid, ok := s.sandboxes[id]
	if !ok {
		return nil
	}
	delete(s.sandboxes, id)
	delete(s.ended, id)
	if s.hasSandbox(uid) {
		return nil
	}
	p := s.pods[uid]
	delete(s.pods, uid)
	return p
}

func (s *state) hasSandbox(uid string) bool {
	for _, other := range s.sandboxes {
		if other == uid {
			return true
		}
	}
	return false
}
