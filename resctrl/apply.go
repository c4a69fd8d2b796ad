package resctrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Apply does the steps of a plan. A step that fails does not keep the next ones from being tried; what failed is joined
// in the error. A group that was created and can't be set is removed again. Groups without the plan's prefix are refused.
// The tasks of a group that is removed fall to the root group.
func Apply(ctx context.Context, f *FS, p Planned) error {
	var errs []error
	for _, s := range p.Steps {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if p.Prefix == "" || !strings.HasPrefix(s.Group, p.Prefix) {
			errs = append(errs, fmt.Errorf("%s: not a group of ours (%s): %w", s, p.Prefix, ErrRefused))
			continue
		}
		if err := s.apply(ctx, f); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", s.Op, s.Group, err))
		}
	}
	return errors.Join(errs...)
}

func (s Step) apply(ctx context.Context, f *FS) error {
	if s.Op == StepCreate {
		g, err := f.Create(ctx, s.Group)
		if err != nil {
			return err
		}
		if err := g.set(s.Schemata); err != nil {
			return errors.Join(err, g.Remove())
		}
		return nil
	}
	g, err := f.Group(s.Group)
	if s.Op == StepRemove && errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	switch s.Op {
	case StepSet:
		return g.set(s.Schemata)
	case StepShare:
		return g.SetMode(Shareable)
	case StepRemove:
		return g.Remove()
	}
	return fmt.Errorf("no such step: %w", ErrRefused)
}

// set is SetSchemata of values that are rounded already.
func (g *Group) set(s Schemata) error {
	diffs, err := g.SetSchemata(s)
	if err != nil {
		return err
	}
	// A domain that went offline meanwhile is no failure: there is nothing to set.
	diffs = slices.DeleteFunc(diffs, func(d Difference) bool { return d.Missing })
	if len(diffs) > 0 {
		return fmt.Errorf("kernel shows another value: %s", diffs[0])
	}
	return nil
}
