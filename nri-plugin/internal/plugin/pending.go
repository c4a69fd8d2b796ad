package plugin

import (
	"sync"

	"github.com/tideline-io/tideline/internal/engine"
)

// creation is a container that was decided on and is not made yet.
type creation struct {
	c    engine.Creation
	plan engine.Plan
}

// pending is what waits for the hook that ends it, by container ID.
type pending[T comparable] struct {
	mu sync.Mutex
	of map[string]T
}

func newPending[T comparable]() pending[T] { return pending[T]{of: map[string]T{}} }

func (p *pending[T]) put(id string, v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[id] = v
}

func (p *pending[T]) take(id string) (v T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok = p.of[id]
	delete(p.of, id)
	return v, ok
}

// drop takes v, and nothing that came after it.
func (p *pending[T]) drop(id string, v T) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now, ok := p.of[id]; !ok || now != v {
		return false
	}
	delete(p.of, id)
	return true
}

// clear takes all.
func (p *pending[T]) clear() map[string]T {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.of
	p.of = map[string]T{}
	return all
}
