// Package engine owns what a node knows: its pods and containers, what the kubelet asked for them, what was decided,
// and what stands in the kernel because of it. A door (the CRI proxy, the NRI plugin) asks it what to do with a call
// and carries the answer out on its protocol; the engine does the rest through package cgroup.
//
// One goroutine owns the state. Doors ask it with a deadline, readers take immutable views, and it does no I/O: files
// are written, and the runtime is asked, by the goroutine of the caller or by one of the engine's own, which Run waits
// for. Files are written under a gate that Disable passes once, so that nothing of ours is written after it.
//
//	e := engine.New(cfg)
//	go func() { errs <- e.Run(ctx) }()
//	plan, err := e.Create(ctx, creation) // err: no decision; the door passes the call on as the failure policy says
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
)

// DefaultDecisionBudget is what a hooked call waits for its decision.
const DefaultDecisionBudget = 100 * time.Millisecond

// Budgets of the hot path beside that.
const (
	writeBudget = 50 * time.Millisecond // what a call waits for reports and files to be written; they are finished in the background
	adoptLimit  = 10 * time.Second      // how long after its start a door waits for its first list of containers
	lateTimeout = 10 * time.Second      // what a write in the background may take, its runtime calls included
)

// ErrNoDecision says that no decision came in time, or that a fault of ours ended it. The door passes the call on
// unmodified or refuses it, as policy.OnError says.
var ErrNoDecision = errors.New("no decision")

// What a Runtime says of a container that nothing is to be done to.
var (
	ErrNotRunning = errors.New("container is not running")
	ErrNotFound   = errors.New("the runtime knows no such container")
)

// NoPIDError says that a container is made or runs, and that the runtime does not tell its first process but the name of
// its cgroup, as an OCI spec has it. The cgroup need not be there yet.
type NoPIDError struct{ Cgroup string }

func (e *NoPIDError) Error() string {
	return fmt.Sprintf("the runtime does not tell the first process in cgroup %.300q", e.Cgroup)
}

// ErrNoUpdates says that the runtime can't take an update from us now or ever.
var ErrNoUpdates = errors.New("the runtime takes no updates that it has not asked for")

// Runtime is the engine's own way to the runtime, apart from the relayed calls. Its errors are ErrNotFound for a
// container that is gone.
type Runtime interface {
	// PID tells the first process of a running container; ErrNotRunning for one that has none, a NoPIDError where the
	// runtime does not tell.
	PID(ctx context.Context, containerID string) (int, error)
	// Update puts container-level settings into the runtime's stored spec and, where the container runs, the kernel.
	// What the protocol can't carry is left out. ErrNoUpdates where that can't be done.
	Update(ctx context.Context, containerID string, settings []policy.Setting) error
	// List tells every sandbox and container, those that have ended included.
	List(ctx context.Context) (Listing, error)
	// Spec tells what the runtime's stored spec holds of a container, by knob, and what the kubelet asked for as far
	// as the runtime knows.
	Spec(ctx context.Context, containerID string) (Spec, error)
}

// Spec is what a runtime tells of one container.
type Spec struct {
	Resources policy.Resources       // the runtime's typed resources
	Values    map[policy.Knob]string // the stored spec, by knob, in the knob's format
	// CgroupParent of its pod as the kubelet names it, where the runtime tells: "" for not told.
	CgroupParent string
}

// Listing is the answer of one list call.
type Listing struct {
	Pods       map[string]policy.Pod // by sandbox ID
	Stopped    map[string]bool       // IDs of sandboxes that run no more
	Containers []Listed
}

// Listed is one container of a Listing.
type Listed struct {
	ID, SandboxID, Name string
	Attempt             uint32
	Birth               string // value of the annotation v1alpha1.AnnotationDecision
	Running             bool
	Exited              bool  // neither runs nor will run again; of interest only while a record tells of it
	Spec                *Spec // nil where the list does not tell: it is asked for where it is needed
}

// Config is what an engine is made of. All fields are needed unless said.
type Config struct {
	Cgroups      *cgroup.FS
	Runtime      Runtime
	StateDir     string // records of containers; made by Run when missing, the folder above it is not
	PlacementDir string // placements of pods; the same
	Node         policy.Node
	// Topology is the CPUs that pods of exclusive tiers are placed on. Without one no pod is placed.
	Topology placement.Topology
	// KubeletReserved is CPUs that the kubelet's configuration keeps for the host (reservedSystemCPUs).
	KubeletReserved cpuset.CPUSet
	Partitions      Partitions // nil: no container is put into a resctrl group
	Policy          *policy.Policy
	Info            control.PolicyStatus
	Mode            control.Mode
	Bypass          bool // start in bypass
	// DecisionBudget is what a call waits for its decision; 0 is DefaultDecisionBudget.
	DecisionBudget time.Duration
	// Carries says whether the door's protocol carries a container's knob; the engine writes the others to files. An I/O
	// priority has no file: where the protocol has none either, it is not decided.
	Carries func(policy.Knob) bool
	// Recheck has the files of a container that starts compared with all that was decided, since the runtime may have
	// lost what the protocol carried (NRI: an update between the creation of a task and its start is stored alone).
	Recheck bool
	Clock   func() time.Time
	Log     *slog.Logger
}

// Engine is the state of a node. Its methods may be called by several goroutines.
type Engine struct {
	cfg        Config
	records    records
	placements placements
	facts      atomic.Pointer[policy.Node] // the node at the moment: its pools change
	ops        chan *op
	policy     atomic.Pointer[loadedPolicy]
	bypass     atomic.Bool
	views      sync.Map     // container ID -> *View, of those whose message we changed
	viewed     atomic.Int64 // how many there are
	counts     counts
	classes    chan struct{} // wakes the worker that keeps the class cgroups
	adopt      chan struct{} // wakes the worker that lists the runtime's containers
	moves      chan struct{} // wakes the worker that has running containers follow the pools
	regroup    chan struct{} // wakes the worker that keeps the resctrl groups
	joins      chan struct{} // wakes it for containers that have started
	gate       sync.RWMutex  // held for reading while files are written
	reading    chan struct{} // has a place for who reads the runtime's containers
	made       time.Time
	adopted    chan struct{} // closed when the runtime's containers were read once
	closing    chan struct{} // closed when Run is to end: nothing new is begun in the background
	stopped    chan struct{} // closed when Run has ended: nobody performs a step any more

	mu       sync.Mutex
	troubles map[trouble]control.Degraded
	late     sync.WaitGroup // begun under mu, never once closing is closed
}

// trouble names something that does not work: what in general, and for which cgroup or container ("" for all).
type trouble struct{ what, subject string }

type loadedPolicy struct {
	policy *policy.Policy
	info   control.PolicyStatus
}

type counts struct {
	decisions, changed, refused, failedOpen, badInput, writes, writeFails, repairs atomic.Int64
}

// op is one step of the owner goroutine. The step looks and decides; what it returns commits and hands results to the
// caller, unless the caller has given up and taken the claim.
type op struct {
	step    func(*state) (commit func())
	claimed atomic.Bool
	done    chan error // nil: nobody waits
}

// New makes an engine. It does no I/O; call Run before any other method is to succeed.
func New(cfg Config) *Engine {
	cfg.DecisionBudget = cmp.Or(cfg.DecisionBudget, DefaultDecisionBudget)
	if !cfg.Carries(policy.IOPriority) {
		features := map[policy.Knob]policy.Feature{}
		maps.Copy(features, cfg.Node.Features)
		features[policy.IOPriority] = policy.Feature{Support: policy.Unsupported, Need: "the NRI door"}
		cfg.Node.Features = features
	}
	e := &Engine{
		cfg: cfg, records: records{dir: cfg.StateDir}, placements: placements{dir: cfg.PlacementDir}, ops: make(chan *op, 1024),
		classes: make(chan struct{}, 1), adopt: make(chan struct{}, 1), moves: make(chan struct{}, 1), regroup: make(chan struct{}, 1), joins: make(chan struct{}, 1), reading: make(chan struct{}, 1),
		made: time.Now(), adopted: make(chan struct{}), closing: make(chan struct{}), stopped: make(chan struct{}), troubles: map[trouble]control.Degraded{},
	}
	e.policy.Store(&loadedPolicy{cfg.Policy, cfg.Info})
	e.facts.Store(&cfg.Node)
	e.bypass.Store(cfg.Bypass)
	return e
}

// Run owns the state until ctx is done and every write in the background has ended. It is called once.
func (e *Engine) Run(ctx context.Context) error {
	s := newState()
	defer close(e.stopped)
	e.outcome("records", "", e.records.open())
	e.restore(s) // before the first call: the CPUs of pods that run are not to be given away again
	e.setGroups(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var workers sync.WaitGroup
		workers.Go(func() { e.classWorker(ctx) })
		workers.Go(func() { e.adoptWorker(ctx) })
		workers.Go(func() { e.poolWorker(ctx) })
		workers.Go(func() { e.groupWorker(ctx) })
		<-ctx.Done()
		e.mu.Lock()
		close(e.closing)
		e.mu.Unlock()
		workers.Wait()
		e.late.Wait() // they need the steps below
	}()
	for {
		select {
		case o := <-e.ops:
			switch err := e.perform(s, o); {
			case o.done != nil:
				o.done <- err
			case err != nil:
				e.Adopt()
			}
		case <-ended:
			return nil
		}
	}
}

// perform runs one step. A panic costs this step and nothing else.
func (e *Engine) perform(s *state, o *op) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: panic: %v", ErrNoDecision, r)
			e.outcome("engine", "", fmt.Errorf("a step panicked: %v", r))
			e.cfg.Log.Error("engine step panicked", "panic", r)
		}
	}()
	if o.claimed.Load() {
		return nil // the caller has given up
	}
	s.now = e.cfg.Clock()
	commit := o.step(s)
	if o.claimed.CompareAndSwap(false, true) && commit != nil {
		commit()
	}
	return nil
}

// do hands a step over and waits for it until ctx is done. When it answers an error nothing was committed and nothing
// will be, but for what a panicking commit has done.
func (e *Engine) do(ctx context.Context, step func(*state) (commit func())) error {
	o := &op{step: step, done: make(chan error, 1)}
	select {
	case e.ops <- o:
	case <-ctx.Done():
		return fmt.Errorf("%w: the engine is busy", ErrNoDecision)
	case <-e.stopped:
		return fmt.Errorf("%w: the engine has stopped", ErrNoDecision)
	}
	why := "in time"
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
	case <-e.stopped:
		why = "from an engine that has stopped"
	}
	if o.claimed.CompareAndSwap(false, true) {
		return fmt.Errorf("%w %s", ErrNoDecision, why)
	}
	return <-o.done // it is being committed
}

// lowerBudget is what a call waits for a value to be taken out of its way, or it would be refused: 0.5 s by default. It
// goes along with the decision's, since a slow machine is slow in both.
func (e *Engine) lowerBudget() time.Duration { return 5 * e.cfg.DecisionBudget }

// ask has a call decided on, within the decision budget.
func (e *Engine) ask(ctx context.Context, step func(*state) (commit func())) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.DecisionBudget)
	defer cancel()
	err := e.do(ctx, step)
	if err == nil {
		e.outcome("engine", "", nil)
		e.outcome("decisions", "", nil)
	}
	return err
}

// query runs a step for people and workers: it waits as long as ctx allows.
func (e *Engine) query(ctx context.Context, step func(*state)) error {
	return e.do(ctx, func(s *state) func() { return func() { step(s) } })
}

// tell hands over a step that reports what has happened, and then carries out what the step returns: writes to files,
// calls of the runtime. Both are done however long the engine takes; the caller waits for them as long as a call may. A
// report that is lost, to a panic or to more reports than a node has containers, makes the state be read from the
// runtime again.
func (e *Engine) tell(step func(*state) (then func(ctx context.Context))) {
	var then func(context.Context)
	o := &op{step: func(s *state) func() { return func() { then = step(s) } }, done: make(chan error, 1)}
	select {
	case e.ops <- o:
	default:
		e.Adopt()
		return
	}
	finish := func(err error) {
		if err != nil {
			e.Adopt()
		} else if then != nil {
			ctx, cancel := lateContext()
			defer cancel()
			then(ctx)
		}
	}
	t := time.NewTimer(writeBudget)
	defer t.Stop()
	select {
	case err := <-o.done: // nearly always, and nearly always nothing follows
		if err != nil || then != nil {
			e.background(func() { finish(err) })
		}
	case <-t.C:
		e.spawn(func() {
			select {
			case err := <-o.done:
				finish(err)
			case <-e.stopped:
			}
		})
	case <-e.stopped:
	}
}

// post is tell for a caller that waits for nothing. Every step that is handed over later finds this one done.
func (e *Engine) post(step func(*state) (then func(ctx context.Context))) {
	o := &op{step: func(s *state) func() {
		return func() {
			if then := step(s); then != nil {
				e.spawn(func() {
					ctx, cancel := lateContext()
					defer cancel()
					then(ctx)
				})
			}
		}
	}}
	select {
	case e.ops <- o:
	default:
		e.Adopt()
	}
}

// lateContext is for work that may go on after the call that needs it has returned: the call's context ends with it.
func lateContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), lateTimeout)
}

// background runs f after the call that needs it may have returned, and waits for it for the write budget, so that the
// kubelet sees finished work if it can.
func (e *Engine) background(f func()) {
	done := make(chan struct{})
	if !e.spawn(func() { defer close(done); f() }) {
		return
	}
	t := time.NewTimer(writeBudget)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// spawn runs f in a goroutine that Run waits for; false when Run is about to end.
func (e *Engine) spawn(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.closing:
		return false
	default:
	}
	e.late.Go(func() {
		defer func() {
			if r := recover(); r != nil {
				e.outcome("engine", "", fmt.Errorf("a write panicked: %v", r))
				e.cfg.Log.Error("write panicked", "panic", r)
			}
		}()
		f()
	})
	return true
}

// guarded runs a round of a worker, and keeps a fault in it from ending the worker. what is what it does, for the error.
func (e *Engine) guarded(what string, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: panic: %v", what, r)
			e.cfg.Log.Error("worker panicked", "doing", what, "panic", r)
		}
	}()
	return f()
}

// wake has a worker begin a round, now or after the one that it is in.
func wake(worker chan struct{}) {
	select {
	case worker <- struct{}{}:
	default:
	}
}

// whileEnforcing runs f, which writes files, unless decisions are not carried out. Disable waits for it.
func (e *Engine) whileEnforcing(f func()) {
	e.gate.RLock()
	defer e.gate.RUnlock()
	if e.Enforcing() {
		f()
	}
}

// SetPolicy puts another policy in force: for pods, classes and the CPUs of containers at once, for all else of containers
// with their next update.
func (e *Engine) SetPolicy(p *policy.Policy, info control.PolicyStatus) {
	e.policy.Store(&loadedPolicy{p, info})
	e.post(func(s *state) func(context.Context) {
		e.reassess(s)
		return e.keep
	})
	e.wakeGroups()
	e.Adopt()
}

// PolicyError notes why a newer policy was not taken; "" clears it.
func (e *Engine) PolicyError(why string) {
	l := *e.policy.Load()
	l.info.Error = why
	e.policy.Store(&l)
}

// OnError is the failure policy for a pod, told without the owner goroutine.
func (e *Engine) OnError(pod policy.Pod) v1alpha1.OnError { return e.policy.Load().policy.OnError(pod) }

// Tier is the tier of a pod, told without the owner goroutine.
func (e *Engine) Tier(pod policy.Pod) v1alpha1.Tier {
	t, _, _ := e.policy.Load().policy.Tier(pod)
	return t
}

// CgroupVersion is 1 or 2.
func (e *Engine) CgroupVersion() int { return e.cfg.Node.CgroupVersion }

// Enforcing says whether decisions are carried out.
func (e *Engine) Enforcing() bool { return e.cfg.Mode == control.ModeEnforce && !e.bypass.Load() }

// Bypassed says whether the door passes everything on.
func (e *Engine) Bypassed() bool { return e.bypass.Load() }

// SetBypass turns bypass on or off. What happened meanwhile is read from the runtime when it ends.
func (e *Engine) SetBypass(on bool) {
	if e.bypass.Swap(on) && !on {
		e.wakeGroups()
		e.Adopt()
	}
}

// FailedOpen counts a call that passed unmodified after a fault of ours, and says why in the status.
func (e *Engine) FailedOpen(op string, err error) {
	e.counts.failedOpen.Add(1)
	e.outcome("decisions", "", fmt.Errorf("a %s passed unmodified: %w", op, err))
}

// BadInput counts a message or a value that could not be read.
func (e *Engine) BadInput() { e.counts.badInput.Add(1) }

// Refused counts a refused creation.
func (e *Engine) Refused() { e.counts.refused.Add(1) }

// outcome notes that something does not work, or with a nil err that it works or is gone.
func (e *Engine) outcome(what, subject string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := trouble{what, subject}
	if err == nil {
		delete(e.troubles, t)
		return
	}
	d, ok := e.troubles[t]
	if !ok {
		d = control.Degraded{What: what, Since: time.Now()}
	}
	d.Why = err.Error()
	e.troubles[t] = d
}

// degraded tells what does not work, one entry a what: the oldest, and how many more there are.
func (e *Engine) degraded() []control.Degraded {
	e.mu.Lock()
	defer e.mu.Unlock()
	oldest, more := map[string]control.Degraded{}, map[string]int{}
	for t, d := range e.troubles {
		o, ok := oldest[t.what]
		if ok {
			more[t.what]++
		}
		if !ok || d.Since.Before(o.Since) {
			oldest[t.what] = d
		}
	}
	var out []control.Degraded
	for _, what := range slices.Sorted(maps.Keys(oldest)) {
		d := oldest[what]
		if n := more[what]; n > 0 {
			d.Why += fmt.Sprintf(" (and %d more)", n)
		}
		out = append(out, d)
	}
	return out
}

// Adopted says whether the runtime's containers were read since the start: before, a container that is not known may yet
// be one of ours.
func (e *Engine) Adopted() bool {
	select {
	case <-e.adopted:
		return true
	default:
		return false
	}
}

// AwaitAdopted waits for Adopted, for half a second at most: a restart must not show the kubelet what it never asked, nor
// let an update pass that the runtime would refuse. A
// runtime that can't be listed for longer than a start takes is not waited for.
func (e *Engine) AwaitAdopted(ctx context.Context) {
	if e.Adopted() || time.Since(e.made) > adoptLimit {
		return
	}
	t := time.NewTimer(e.lowerBudget())
	defer t.Stop()
	select {
	case <-e.adopted:
	case <-t.C:
	case <-ctx.Done():
	}
}

// View is what ContainerStatus needs of a container. It never changes.
type View struct {
	Asked    policy.Resources
	Settings []policy.Setting // what the runtime's answer shows of ours
}

// View tells what the kubelet asked for a container whose message we changed; nil for any other.
func (e *Engine) View(containerID string) *View {
	v, _ := e.views.Load(containerID)
	view, _ := v.(*View)
	return view
}

// HasViews says whether any container is to be shown to the kubelet other than the runtime shows it.
func (e *Engine) HasViews() bool { return e.viewed.Load() > 0 }

// show publishes what the readers see of a container; the owner goroutine alone calls it.
func (e *Engine) show(c *container) {
	if c.id != "" && c.asked != nil && c.changed && len(c.decision.Settings) > 0 {
		e.publish(c.id, &View{Asked: *c.asked, Settings: c.decision.Settings})
		return
	}
	e.hide(c.id)
}

func (e *Engine) publish(id string, v *View) {
	if _, known := e.views.Swap(id, v); !known {
		e.viewed.Add(1)
	}
}

// hide makes a container pass as the runtime shows it; the owner goroutine alone calls it.
func (e *Engine) hide(id string) {
	if _, known := e.views.LoadAndDelete(id); known {
		e.viewed.Add(-1)
	}
}
