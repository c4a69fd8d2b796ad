// Package enginetest is a fake of the runtime behind an engine, for tests. It keeps what a runtime stores of its
// containers and lets a test make it fail; it writes no files.
//
//	rt := enginetest.New()
//	rt.Add(enginetest.Container{ID: id, SandboxID: "s1", Name: "app", PID: 7, Running: true})
//	e := engine.New(engine.Config{Runtime: rt, …})
package enginetest

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/policy"
)

// Container is a container of the fake.
type Container struct {
	ID, SandboxID, Name string
	Attempt             uint32
	Birth               string
	PID                 int
	Running, Exited     bool
	Resources           policy.Resources // what the runtime tells was asked
}

// Update is an update that the engine sent.
type Update struct {
	ID       string
	Settings []policy.Setting
}

// Runtime is the fake. It is safe for several goroutines.
type Runtime struct {
	mu         sync.Mutex
	fail       func(op, id string) error
	pods       map[string]policy.Pod
	stopped    map[string]bool
	containers map[string]Container
	updates    []Update
}

var _ engine.Runtime = (*Runtime)(nil)

// New makes a runtime without containers.
func New() *Runtime {
	return &Runtime{pods: map[string]policy.Pod{}, stopped: map[string]bool{}, containers: map[string]Container{}}
}

// Fail makes calls end with what f answers for them; op is "PID", "Update", "List" or "Spec".
func (r *Runtime) Fail(f func(op, id string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = f
}

// AddPod makes a sandbox.
func (r *Runtime) AddPod(sandboxID string, p policy.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods[sandboxID] = p
}

// StopPod ends a sandbox, which stays in the list.
func (r *Runtime) StopPod(sandboxID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped[sandboxID] = true
}

// RemovePod takes a sandbox away.
func (r *Runtime) RemovePod(sandboxID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, sandboxID)
	delete(r.stopped, sandboxID)
}

// Add makes a container, or replaces the one with that ID.
func (r *Runtime) Add(c Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers[c.ID] = c
}

// Remove takes a container away.
func (r *Runtime) Remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.containers, id)
}

// Updates are the updates so far.
func (r *Runtime) Updates() []Update {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.updates)
}

func (r *Runtime) get(op, id string) (Container, error) {
	r.mu.Lock()
	fail := r.fail
	c, ok := r.containers[id]
	r.mu.Unlock()
	if fail != nil {
		if err := fail(op, id); err != nil {
			return c, err
		}
	}
	if !ok {
		return c, engine.ErrNotFound
	}
	return c, nil
}

// PID implements engine.Runtime.
func (r *Runtime) PID(_ context.Context, id string) (int, error) {
	c, err := r.get("PID", id)
	if err == nil && !c.Running {
		err = engine.ErrNotRunning
	}
	return c.PID, err
}

// Update implements engine.Runtime.
func (r *Runtime) Update(_ context.Context, id string, settings []policy.Setting) error {
	_, err := r.get("Update", id)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.updates = append(r.updates, Update{id, slices.Clone(settings)})
	}
	return err
}

// List implements engine.Runtime.
func (r *Runtime) List(context.Context) (engine.Listing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		if err := r.fail("List", ""); err != nil {
			return engine.Listing{}, err
		}
	}
	l := engine.Listing{Pods: map[string]policy.Pod{}, Stopped: maps.Clone(r.stopped)}
	for id, p := range r.pods {
		p.CgroupParent, p.KubeQoS, p.Resources = "", "", policy.Resources{} // which lists do not tell
		l.Pods[id] = p
	}
	for _, c := range r.containers {
		l.Containers = append(l.Containers, engine.Listed{ID: c.ID, SandboxID: c.SandboxID, Name: c.Name, Attempt: c.Attempt, Birth: c.Birth, Running: c.Running, Exited: c.Exited})
	}
	return l, nil
}

// Spec implements engine.Runtime.
func (r *Runtime) Spec(_ context.Context, id string) (engine.Spec, error) {
	c, err := r.get("Spec", id)
	return engine.Spec{Resources: c.Resources}, err
}
