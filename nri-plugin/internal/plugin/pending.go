package plugin

import (
	"sync"

	"github.com/tideline-io/tideline/internal/engine"
)

// pending is the updates that wait for the hook that ends them, by container ID.
type pending struct {
	mu sync.Mutex
	of map[string]*engine.Plan
}

func newPending() pending { return pending{of: map[string]*engine.Plan{}} }

func (p *pending) put(id string, v *engine.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[id] = v
}

func (p *pending) take(id string) (v *engine.Plan, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok = p.of[id]
	delete(p.of, id)
	return v, ok
}

// drop takes v, and nothing that came after it.
func (p *pending) drop(id string, v *engine.Plan) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now, ok := p.of[id]; !ok || now != v {
		return false
	}
	delete(p.of, id)
	return true
}

// clear takes all.
func (p *pending) clear() map[string]*engine.Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.of
	p.of = map[string]*engine.Plan{}
	return all
}
