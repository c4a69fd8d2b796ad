package plugin

import (
	"fmt"
	"maps"
	"sync"

	"github.com/containerd/nri/pkg/api"

	applynri "github.com/tideline-io/tideline/internal/apply/nri"
	"github.com/tideline-io/tideline/internal/engine"
	factsnri "github.com/tideline-io/tideline/internal/facts/nri"
	"github.com/tideline-io/tideline/internal/policy"
)

// store is what the runtime has told of its pods and containers, so that nobody has to ask it.
type store struct {
	mu         sync.Mutex
	pods       map[string]policy.Pod // by sandbox ID
	ended      map[string]bool       // IDs of sandboxes that run no more, as far as a hook told
	containers map[string]*known
}

// known is what was told of one container.
type known struct {
	sandboxID, name string
	attempt         uint32
	pid             int    // 0: it does not run, or the runtime does not tell, as CRI-O 1.34
	cgroup          string // its name, of a container that is made and has not ended
	running         bool   // the runtime says so
	ended           bool   // nor will it run again
	resources       policy.Resources
	ioPriority      string           // in the knob's format
	updates         []policy.Setting // that we have sent since
}

func newStore() *store {
	return &store{pods: map[string]policy.Pod{}, ended: map[string]bool{}, containers: map[string]*known{}}
}

// reset takes what a runtime tells of all it has. It does not tell which sandboxes have ended, so what a hook told of one
// that is still there holds: they do not run again.
func (s *store) reset(pods []*api.PodSandbox, containers []*api.Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.pods)
	clear(s.containers)
	for _, p := range pods {
		if p.GetId() != "" {
			s.pods[p.GetId()] = factsnri.Pod(p)
		}
	}
	maps.DeleteFunc(s.ended, func(id string, _ bool) bool { _, ok := s.pods[id]; return !ok })
	for _, c := range containers {
		s.put(c)
	}
}

func (s *store) pod(p *api.PodSandbox) policy.Pod {
	facts := factsnri.Pod(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.GetId() != "" {
		s.pods[p.GetId()] = facts
	}
	return facts
}

func (s *store) podGone(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, id)
	delete(s.ended, id)
}

func (s *store) podStopped(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.pods[id]; ok {
		s.ended[id] = true
	}
}

// container takes what is told of a container with a hook.
func (s *store) container(c *api.Container) *known {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(c)
}

func (s *store) put(c *api.Container) *known {
	k := &known{
		sandboxID: c.GetPodSandboxId(), name: c.GetName(), attempt: factsnri.Attempt(c), pid: int(c.GetPid()),
		resources: factsnri.Resources(c.GetLinux().GetResources(), c.GetLinux().GetOomScoreAdj()), ioPriority: applynri.IOPriority(c),
	}
	switch c.GetState() {
	case api.ContainerState_CONTAINER_STOPPED:
		k.end()
	case api.ContainerState_CONTAINER_RUNNING, api.ContainerState_CONTAINER_PAUSED:
		k.running, k.cgroup = true, c.GetLinux().GetCgroupsPath()
	case api.ContainerState_CONTAINER_CREATED:
		k.cgroup = c.GetLinux().GetCgroupsPath()
	}
	if c.GetId() != "" {
		s.containers[c.GetId()] = k
	}
	return k
}

// end is for one that does not run any more, nor will again.
func (k *known) end() { k.pid, k.cgroup, k.running, k.ended = 0, "", false, true }

// stopped notes that a container does not run any more.
func (s *store) stopped(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.containers[id]; k != nil {
		k.end()
	}
}

// over says whether a container has ended or is gone.
func (s *store) over(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.containers[id]
	return k == nil || k.ended
}

func (s *store) gone(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.containers, id)
}

func (s *store) pid(id string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch k := s.containers[id]; {
	case k == nil:
		return 0, fmt.Errorf("container %.64s: %w", id, engine.ErrNotFound)
	case k.pid == 0 && k.cgroup != "":
		return 0, fmt.Errorf("container %.64s: %w", id, &engine.NoPIDError{Cgroup: k.cgroup})
	case k.pid == 0:
		return 0, fmt.Errorf("container %.64s: %w", id, engine.ErrNotRunning)
	default:
		return k.pid, nil
	}
}

func (s *store) spec(id string) (engine.Spec, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.containers[id]
	if k == nil {
		return engine.Spec{}, fmt.Errorf("container %.64s: %w", id, engine.ErrNotFound)
	}
	return k.spec(s.pods[k.sandboxID]), nil
}

func (k *known) spec(pod policy.Pod) engine.Spec {
	values := map[policy.Knob]string{}
	for _, n := range policy.Knobs() {
		if v := k.resources.Value(n); v != "" {
			values[n] = v
		}
	}
	if k.ioPriority != "" {
		values[policy.IOPriority] = k.ioPriority
	}
	for _, u := range k.updates {
		values[u.Knob] = u.Value
	}
	return engine.Spec{Resources: k.resources, Values: values, CgroupParent: pod.CgroupParent}
}

// updated notes an update that no hook tells of.
func (s *store) updated(id string, settings []policy.Setting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.containers[id]; k != nil {
		k.updates = append(k.updates, settings...)
	}
}

func (s *store) list() engine.Listing {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := engine.Listing{Pods: make(map[string]policy.Pod, len(s.pods)), Containers: make([]engine.Listed, 0, len(s.containers))}
	for id, p := range s.pods {
		l.Pods[id] = p
	}
	l.Stopped = maps.Clone(s.ended)
	for id, k := range s.containers {
		spec := k.spec(s.pods[k.sandboxID])
		// No birth record: a runtime may be told to copy annotations of pods into containers, so anybody may have written
		// one. What is ours has a record.
		l.Containers = append(l.Containers, engine.Listed{ID: id, SandboxID: k.sandboxID, Name: k.name, Attempt: k.attempt, Running: k.pid != 0 || k.running, Exited: k.ended, Spec: &spec})
	}
	return l
}
