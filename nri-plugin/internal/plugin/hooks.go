package plugin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/tideline-io/tideline/api/v1alpha1"
	applynri "github.com/tideline-io/tideline/internal/apply/nri"
	"github.com/tideline-io/tideline/internal/engine"
	factsnri "github.com/tideline-io/tideline/internal/facts/nri"
	"github.com/tideline-io/tideline/internal/policy"
)

// hooks are the methods that a runtime calls, one at a time and while the whole node waits. An error ends the call that
// the hook belongs to, so two give one alone, for a tier that wants certainty: CreateContainer and UpdatePodSandbox.
type hooks Plugin

// Configure learns who calls. It subscribes to what there are methods for.
func (h *hooks) Configure(ctx context.Context, _, runtime, version string) (api.EventMask, error) {
	if err := ctx.Err(); err != nil {
		return 0, err // the attempt was given up
	}
	(*Plugin)(h).configured(runtime, version)
	return 0, nil
}

// Synchronize gets all pods and containers after each registration.
func (h *hooks) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	defer h.guard("Synchronize")
	h.store.reset(pods, containers)
	for _, plan := range h.updates.clear() { // nobody will tell how they ended; what is stored tells as much
		h.engine.Updated(*plan, true)
	}
	defer (*Plugin)(h).synchronized()
	if h.engine.Bypassed() {
		return nil, nil
	}
	offers, err := h.offers(ctx, h.store.list())
	if err != nil {
		h.engine.FailedOpen("Synchronize", err)
		h.engine.Adopt()
		return nil, nil
	}
	var updates []*api.ContainerUpdate
	offers = slices.DeleteFunc(offers, func(o engine.Offer) bool {
		u, _, err := applynri.Update((*Plugin)(h).carried(o.Plan.Apply), h.version, o.ID, nil)
		if err != nil {
			h.engine.FailedOpen("Synchronize", err)
			h.engine.Updated(o.Plan, false)
			return true
		}
		if u != nil {
			u.IgnoreFailure = true // of one that ends meanwhile
			updates = append(updates, u)
		}
		h.store.updated(o.ID, o.Plan.Apply)
		return false
	})
	h.cfg.Log.Info("synchronized", "pods", len(pods), "containers", len(containers), "updates", len(updates))
	h.after(h.limits.settle, func() {
		for _, o := range offers {
			h.engine.Updated(o.Plan, true)
		}
	})
	return updates, nil
}

// offers asks the engine, and gives up in time for the answer to reach the runtime: one that gets none drops us, and the
// next connection would end the same way.
func (h *hooks) offers(ctx context.Context, list engine.Listing) ([]engine.Offer, error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)*3/4)
		defer cancel()
	}
	type answer struct {
		offers []engine.Offer
		err    error
	}
	done := make(chan answer, 1)
	if !h.begin(func() {
		offers, err := h.engine.Synchronize(ctx, list)
		done <- answer{offers, err}
	}) {
		return nil, errEnding
	}
	select {
	case a := <-done:
		return a.offers, a.err
	case <-ctx.Done():
		h.begin(func() {
			for _, o := range (<-done).offers {
				h.engine.Updated(o.Plan, false)
			}
		})
		return nil, errLate
	}
}

// begin runs f, and Run waits for it; false when Run is about to end.
func (h *hooks) begin(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.ended:
		return false
	default:
	}
	h.late.Go(func() {
		defer h.guard("background")
		f()
	})
	return true
}

// after runs f later, unless the plugin ends before.
func (h *hooks) after(d time.Duration, f func()) {
	h.begin(func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			f()
		case <-h.ended:
		}
	})
}

// within bounds what a hook waits for its decision.
func (h *hooks) within(ctx context.Context) (context.Context, context.CancelFunc) {
	d := h.cfg.Budget
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)/2)
	}
	return context.WithTimeout(ctx, d)
}

// guard makes a fault of ours cost the hook and not the process: the call passes unmodified.
func (h *hooks) guard(op string) {
	if r := recover(); r != nil {
		h.panicked(op, r)
	}
}

func (h *hooks) panicked(op string, r any) {
	h.engine.FailedOpen(op, fmt.Errorf("%w: %v", errPanic, r))
	h.cfg.Log.Error("hook panicked", "op", op, "panic", r, "stack", string(debug.Stack()))
}

// RunPodSandbox writes what the pod's own cgroup gets. It never refuses: a runtime of old leaves a broken sandbox behind.
func (h *hooks) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	defer h.guard("RunPodSandbox")
	facts := h.store.pod(pod)
	if facts.UID == "" || h.engine.Bypassed() {
		return nil
	}
	h.engine.PodStarting(ctx, facts)
	h.engine.PodStarted(facts, pod.GetId())
	return nil
}

// UpdatePodSandbox comes before the kubelet writes the pod's cgroup. The hook that follows in containerd,
// PostUpdatePodSandbox, comes before that too, and CRI-O 1.34 has none, so this one serves for both ends.
// An error is what the kubelet takes for a resize that can't be.
func (h *hooks) UpdatePodSandbox(ctx context.Context, pod *api.PodSandbox, _, r *api.LinuxResources) error {
	defer h.guard("UpdatePodSandbox")
	if h.engine.Bypassed() {
		return nil
	}
	ctx, cancel := h.within(ctx)
	defer cancel()
	if refused := h.engine.PodResizing(ctx, pod.GetId(), factsnri.Update(r)); refused != nil {
		h.engine.Refused()
		return refusal(refused.Key, refused.Message)
	}
	h.engine.PodResized(pod.GetId())
	return nil
}

// StopPodSandbox comes when a pod has ended: its CPUs are free, though its sandbox may stay for long.
func (h *hooks) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	defer h.guard("StopPodSandbox")
	h.store.podStopped(pod.GetId())
	if !h.engine.Bypassed() {
		h.engine.PodStopped(pod.GetId())
	}
	return nil
}

// RemovePodSandbox drops what was kept of a pod.
func (h *hooks) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	defer h.guard("RemovePodSandbox")
	h.store.podGone(pod.GetId())
	if !h.engine.Bypassed() {
		h.engine.PodRemoved(pod.GetId())
	}
	return nil
}

var (
	errNoIdentity = errors.New("the runtime does not say which container of which pod it is about")
	errLate       = errors.New("the runtime did not wait for the decision")
	errEnding     = errors.New("the plugin ends")
	errPanic      = errors.New("panic")
)

// CreateContainer decides on a container.
func (h *hooks) CreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (adj *api.ContainerAdjustment, _ []*api.ContainerUpdate, err error) {
	var facts policy.Pod
	defer func() {
		if r := recover(); r != nil {
			h.panicked("CreateContainer", r)
			adj, err = nil, h.failed("CreateContainer", facts, errPanic)
		}
		if err != nil {
			h.store.gone(ctr.GetId()) // it is not made, and not every runtime says so
		}
	}()
	facts = h.store.pod(pod)
	k := h.store.container(ctr)
	if h.engine.Bypassed() {
		return nil, nil, nil
	}
	c := engine.Creation{SandboxID: pod.GetId(), Pod: facts, Name: k.name, Attempt: k.attempt, Asked: k.resources}
	if facts.UID == "" || c.Name == "" { // made by hand, with ctr say
		if h.engine.Tier(facts) == v1alpha1.None {
			return nil, nil, nil
		}
		h.engine.BadInput()
		return nil, nil, h.failed("CreateContainer", facts, errNoIdentity)
	}
	within, cancel := h.within(ctx)
	defer cancel()
	plan, err := h.engine.Create(within, c)
	if r := plan.Decision.Refusal; err == nil && r != nil && h.engine.Enforcing() {
		h.engine.Refused()
		return nil, nil, refusal(r.Key, r.Message)
	}
	if err == nil && plan.Changes() {
		if adj, _, err = applynri.Adjust((*Plugin)(h).carried(plan.Apply), h.version, ctr); err == nil && ctx.Err() != nil {
			err = errLate
		}
		if err != nil {
			h.engine.Missed(c.Key(), err.Error())
		}
	}
	if err != nil {
		if err = h.failed("CreateContainer", facts, err); err != nil {
			h.engine.CreateFailed(c.Key())
		} else {
			h.engine.Created(c, engine.Plan{}, ctr.GetId())
		}
		return nil, nil, err
	}
	h.engine.Created(c, plan, ctr.GetId())
	h.engine.Recorded(c, plan)
	h.engine.Logged(c, plan)
	if plan.Birth != "" {
		adj = applynri.Annotate(adj, v1alpha1.AnnotationDecision, plan.Birth)
	}
	return adj, nil, nil
}

// PostCreateContainer comes when the container is made.
func (h *hooks) PostCreateContainer(_ context.Context, _ *api.PodSandbox, ctr *api.Container) error {
	defer h.guard("PostCreateContainer")
	h.store.container(ctr)
	return nil
}

// StartContainer comes when the container has its cgroup and its first process, which does not run yet: what NRI can't
// carry is written to its files now.
func (h *hooks) StartContainer(_ context.Context, _ *api.PodSandbox, ctr *api.Container) error {
	defer h.guard("StartContainer")
	h.store.container(ctr)
	if !h.engine.Bypassed() {
		h.engine.Started(ctr.GetId())
	}
	return nil
}

// UpdateContainer decides anew with what the kubelet asks.
func (h *hooks) UpdateContainer(ctx context.Context, _ *api.PodSandbox, ctr *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	defer h.guard("UpdateContainer")
	id := ctr.GetId()
	h.store.container(ctr)
	if plan, ok := h.updates.take(id); ok { // the one before was not made, or we would know
		h.engine.Updated(*plan, false)
	}
	if h.engine.Bypassed() {
		return nil, nil
	}
	asks := factsnri.Update(r)
	within, cancel := h.within(ctx)
	defer cancel()
	plan, err := h.engine.Update(within, id, asks)
	if err != nil { // a running container is never refused an update: the kubelet would repeat it for ever
		h.engine.FailedOpen("UpdateContainer", err)
		within, cancel := h.within(ctx)
		defer cancel()
		plan.Apply = h.engine.Fallback(within, id, asks)
	}
	u, _, err := applynri.Update((*Plugin)(h).carried(plan.Apply), h.version, id, r)
	if err == nil && ctx.Err() != nil {
		err = errLate
	}
	if err != nil {
		h.engine.FailedOpen("UpdateContainer", err)
		h.engine.Updated(plan, false)
		return nil, nil
	}
	h.updates.put(id, &plan)
	h.after(h.limits.update, func() {
		if h.updates.drop(id, &plan) {
			h.engine.Updated(plan, false)
		}
	})
	if u == nil {
		return nil, nil
	}
	return []*api.ContainerUpdate{u}, nil
}

// PostUpdateContainer comes when the update is made.
func (h *hooks) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, ctr *api.Container) error {
	defer h.guard("PostUpdateContainer")
	h.store.container(ctr)
	if plan, ok := h.updates.take(ctr.GetId()); ok {
		h.engine.Updated(*plan, true)
	}
	return nil
}

// StopContainer comes when a container has ended.
func (h *hooks) StopContainer(_ context.Context, _ *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	h.store.stopped(ctr.GetId())
	return nil, nil
}

// RemoveContainer comes when a container is gone, or could not be made.
func (h *hooks) RemoveContainer(_ context.Context, _ *api.PodSandbox, ctr *api.Container) error {
	defer h.guard("RemoveContainer")
	h.store.gone(ctr.GetId())
	h.updates.take(ctr.GetId())
	if !h.engine.Bypassed() {
		h.engine.Removed(ctr.GetId())
	}
	return nil
}

// failed says what becomes of a creation that got no decision: the failure policy of its tier.
func (h *hooks) failed(op string, pod policy.Pod, err error) error {
	if h.engine.Enforcing() && h.engine.OnError(pod) == v1alpha1.Refuse {
		h.engine.Refused()
		return refusal(v1alpha1.LabelQoS, fmt.Sprintf("the tier wants certainty (onError: refuse), and there is %v", err))
	}
	h.engine.FailedOpen(op, err)
	h.cfg.Log.Warn("call passes unmodified", "op", op, "pod", pod.Namespace+"/"+pod.Name, "err", err)
	return nil
}

func refusal(key, why string) error { return fmt.Errorf("tideline: %s: %s", key, why) }
