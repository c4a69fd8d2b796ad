package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/tideline-io/tideline/internal/control"
)

// Waits says how long Apply waits for what it started.
type Waits struct {
	Limit  time.Duration // for a door or a unit
	Every  time.Duration // between two looks
	Steady int           // looks in a row at which a unit has to be active
}

// DefaultWaits is fit for a node: a kubelet that can't use its configuration ends within a second or two.
func DefaultWaits() Waits { return Waits{Limit: time.Minute, Every: time.Second, Steady: 5} }

const (
	answerTime  = 5 * time.Second
	commandTime = 3 * time.Minute
)

// StepError says at which step a plan stopped. Everything before was done, nothing behind it.
type StepError struct {
	Plan Plan
	At   int // index of the step
	Err  error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("step %d of %d, %s: %v", e.At+1, len(e.Plan.Steps), e.Plan.Steps[e.At], e.Err)
}

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }

// Apply carries a plan out and stops at the first step that fails, with a *StepError.
func Apply(ctx context.Context, n Node, p Plan) error {
	tree, err := openTree(n.Root)
	if err != nil {
		return err
	}
	defer tree.Close()
	for i, s := range p.Steps {
		n.Say(fmt.Sprintf("[%d/%d] %s", i+1, len(p.Steps), s))
		if err := ctx.Err(); err != nil {
			return &StepError{p, i, err}
		}
		if err := n.apply(ctx, tree, s); err != nil {
			return &StepError{p, i, err}
		}
	}
	return nil
}

func (n Node) apply(ctx context.Context, tree *tree, s Step) error {
	switch s.Op {
	case Remember:
		return tree.write(StateFile, s.State.text(), 0o644)
	case Write:
		if err := tree.is(s.Path, s.Was); err != nil {
			return err
		}
		return tree.write(s.Path, s.Text, s.Mode)
	case Remove:
		if err := tree.is(s.Path, s.Was); err != nil {
			return err
		}
		return tree.remove(s.Path)
	case RemoveFolder:
		return tree.removeFolder(s.Path)
	case RemoveTree:
		return tree.removeTree(s.Path)
	case Forget:
		if err := tree.remove(StateFile); err != nil {
			return err
		}
		return tree.removeFolder(path.Dir(StateFile))
	case Run:
		_, err := n.run(ctx, s.Args)
		return err
	case WaitUnit:
		return n.waitUnit(ctx, s.Unit)
	case WaitDoor:
		return n.waitDoor(ctx, s)
	case CheckNRI:
		return n.checkNRI(ctx, s.Args)
	case Disable:
		return n.disable(ctx)
	case EndBypass:
		_, err := n.Door.Bypass(ctx, false)
		return err
	}
	return fmt.Errorf("unknown step %q", s.Op)
}

func (n Node) run(ctx context.Context, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	return n.Run(ctx, args)
}

// wait looks until look gives nil steady times in a row, and tells what it waits for when that changes.
func (n Node) wait(ctx context.Context, steady int, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, n.Wait.Limit)
	defer cancel()
	good, said := 0, ""
	last := errors.New("no answer")
	for {
		one, cancel := context.WithTimeout(ctx, answerTime)
		err := look(one)
		cancel()
		if err == nil {
			if good++; good >= steady {
				return nil
			}
		} else {
			good = 0
			if ctx.Err() == nil {
				last = err
			}
			if text := err.Error(); text != said && ctx.Err() == nil {
				said = text
				n.Say("      waiting: " + text)
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("not within %v: %w", n.Wait.Limit, last)
			}
			return ctx.Err()
		case <-time.After(n.Wait.Every):
		}
	}
}

func (n Node) waitUnit(ctx context.Context, unit string) error {
	return n.wait(ctx, n.Wait.Steady, func(ctx context.Context) error {
		out, err := n.Run(ctx, []string{"systemctl", "is-active", unit})
		switch state := strings.TrimSpace(out); {
		case state == "active":
			return nil
		case state == "" && err != nil: // too slow, say; a unit that is not active is named with its state
			return fmt.Errorf("systemctl does not tell how %s is: %w", unit, err)
		default:
			return fmt.Errorf("%s is %q: see journalctl -u %s", unit, state, unit)
		}
	})
}

func (n Node) waitDoor(ctx context.Context, s Step) error {
	var st control.Status
	err := n.wait(ctx, 1, func(ctx context.Context) (err error) {
		switch st, err = n.Door.Status(ctx); {
		case err != nil:
			return fmt.Errorf("%w: see journalctl -u %s", err, s.Door.parts().service())
		case st.Door != string(s.Door):
			return fmt.Errorf("the %s door answers, want %s", st.Door, s.Door)
		case s.QoS != "" && st.StartMode != s.QoS && st.ModeWhy == "":
			return fmt.Errorf("the door was started to %s, want %s", st.StartMode, s.QoS)
		case !st.Runtime.Connected:
			return fmt.Errorf("the door has no connection to the runtime: %s", cmp.Or(st.Runtime.Error, "it has not answered yet"))
		}
		return nil
	})
	if err == nil && s.QoS != "" && st.Mode != s.QoS {
		n.Say(strings.TrimSuffix(fmt.Sprintf("      the door is in mode %s: %s", st.Mode, st.ModeWhy), ": "))
	}
	return err
}

func (n Node) checkNRI(ctx context.Context, dump []string) error {
	out, err := n.run(ctx, dump)
	if err != nil {
		return err
	}
	if v := tomlValue(out, "plugins."+nriPlugin, "disable"); v != "false" {
		return fmt.Errorf("its effective configuration has disable = %s there: another file of it says so and comes later. It was not restarted", v)
	}
	return nil
}

func (n Node) disable(ctx context.Context) error {
	r, err := n.Door.Disable(ctx)
	if err != nil {
		return err
	}
	n.Say(fmt.Sprintf("      %d kernel values put back, the kubelet's resources sent again for %d containers", r.Restored, r.Updated))
	if len(r.Errors) > 0 {
		return fmt.Errorf("not every kernel value is back:\n  %s", strings.Join(r.Errors, "\n  "))
	}
	return nil
}
