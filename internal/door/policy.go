package door

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/policy"
)

// policyPoll is how often the policy file is looked at. A ConfigMap mount swaps symbolic links, which a watch on the
// file would not see.
const policyPoll = 2 * time.Second

// policyFile is where the policy comes from. One goroutine uses it.
type policyFile struct {
	path       string // "" for the built-in policy
	data       []byte // what was read last, taken or not
	generation int
}

// load reads and compiles the policy.
func (f *policyFile) load() (*policy.Policy, control.PolicyStatus, error) {
	p, source := v1alpha1.Default(), "built in"
	if f.path != "" {
		data, err := os.ReadFile(f.path)
		if err != nil {
			return nil, control.PolicyStatus{}, fmt.Errorf("read policy: %w", err)
		}
		f.data, source = data, f.path
		if p, err = v1alpha1.ParsePolicy(data); err != nil {
			return nil, control.PolicyStatus{}, fmt.Errorf("policy %s: %w", f.path, err)
		}
	}
	compiled, err := policy.Compile(p.Spec)
	if err != nil {
		return nil, control.PolicyStatus{}, fmt.Errorf("policy %s: %w", source, err)
	}
	f.generation++
	return compiled, control.PolicyStatus{Name: p.Metadata.Name, Source: source, Generation: f.generation, LoadedAt: time.Now()}, nil
}

// changed says whether the file holds something else than was read last. A file that is gone for a moment has not changed.
func (f *policyFile) changed() bool {
	data, err := os.ReadFile(f.path)
	return err == nil && !bytes.Equal(data, f.data)
}

// watchPolicy takes a changed policy, or keeps the old one and says why.
func (d *Door) watchPolicy(ctx context.Context, e *engine.Engine) error {
	if d.policy.path == "" {
		return nil
	}
	t := time.NewTicker(policyPoll)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		if !d.policy.changed() {
			continue
		}
		compiled, info, err := d.policy.load()
		if err != nil {
			d.log.Error("policy not taken; the old one stays", "err", err)
			e.PolicyError(err.Error())
			continue
		}
		d.log.Info("policy taken", "policy", info.Name, "generation", info.Generation)
		e.SetPolicy(compiled, info)
	}
}
