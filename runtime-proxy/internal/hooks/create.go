package hooks

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	applycri "github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/engine"
	factscri "github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/runtime-proxy/internal/relay"
	"github.com/tideline-io/tideline/runtime-proxy/internal/wire"
)

// creation is one CreateContainer call. Its callbacks run at the same time only where request has overrun the relay's
// time, and then the message has passed without it.
type creation struct {
	h *Hooks

	mu    sync.Mutex
	c     engine.Creation
	plan  *engine.Plan // what the engine has answered
	sent  bool         // and it is in the message
	asked bool         // the engine was asked, and is to hear the end
	back  bool         // request has returned
}

func (h *Hooks) createContainer() *relay.Call {
	k := &creation{h: h}
	return &relay.Call{Request: k.request, Response: k.response, InlineResponse: true, Done: k.done}
}

var (
	errNoIdentity = errors.New("the request does not say which container of which pod it is about")
	errLate       = errors.New("the call passed before the decision was there")
)

func (k *creation) request(ctx context.Context, msg []byte) ([]byte, *relay.Status) {
	h := k.h
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.back = true
	}()
	create, err := wire.ReadCreate(msg)
	if err != nil {
		h.badInput("CreateContainerRequest", err)
		return msg, nil
	}
	req := create.Request
	cfg := req.GetConfig()
	c := engine.Creation{
		SandboxID: req.GetPodSandboxId(), Pod: factscri.Pod(req.GetSandboxConfig()), Name: cfg.GetMetadata().GetName(),
		Attempt: cfg.GetMetadata().GetAttempt(), Asked: factscri.Resources(cfg.GetLinux().GetResources()),
	}
	if req.GetSandboxConfig() == nil { // optional in CRI; the kubelet always sends it
		facts, ok := h.engine.PodFacts(ctx, c.SandboxID)
		if !ok {
			h.engine.Adopt() // by then its sandbox may be known
			return msg, nil
		}
		c.Pod = facts
	}
	if c.Pod.UID == "" || c.Name == "" {
		h.engine.BadInput()
		if h.engine.Tier(c.Pod) == v1alpha1.None {
			return msg, nil
		}
		return msg, h.failed("CreateContainer", c.Pod, errNoIdentity)
	}
	k.mu.Lock()
	k.c, k.asked = c, true
	k.mu.Unlock()
	plan, err := h.engine.Create(ctx, c)
	if err != nil {
		return msg, h.failed("CreateContainer", c.Pod, err)
	}
	k.mu.Lock()
	k.plan = &plan
	k.mu.Unlock()
	if r := plan.Decision.Refusal; r != nil && h.engine.Enforcing() {
		h.engine.Refused()
		return msg, refusal(r.Key, r.Message)
	}
	if !plan.Changes() {
		return msg, nil
	}
	out, err := k.change(create, plan)
	if err == nil && ctx.Err() != nil { // the relay has passed the message on without us
		err = errLate
	}
	if err != nil {
		k.miss(err)
		return msg, h.failed("CreateContainer", c.Pod, err)
	}
	k.mu.Lock()
	k.sent = true
	k.mu.Unlock()
	return out, nil
}

// change puts the plan into the message.
func (k *creation) change(create *wire.Create, plan engine.Plan) ([]byte, error) {
	cfg := create.Request.Config
	if len(plan.Apply) > 0 {
		if cfg.Linux == nil {
			cfg.Linux = &runtimeapi.LinuxContainerConfig{}
		}
		if cfg.Linux.Resources == nil {
			cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{}
		}
		if _, err := applycri.Apply(plan.Apply, k.h.engine.CgroupVersion(), cfg.Linux.Resources); err != nil {
			return nil, err
		}
	}
	return create.Write(v1alpha1.AnnotationDecision, plan.Birth)
}

// miss tells the engine that its plan did not reach the runtime.
func (k *creation) miss(why error) {
	k.mu.Lock()
	c := k.c
	k.mu.Unlock()
	k.h.engine.Missed(c.Key(), why.Error())
}

// settle says, once, whether the engine is to hear the end.
func (k *creation) settle() (c engine.Creation, asked, back bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	asked, k.asked = k.asked, false
	return k.c, asked, k.back
}

func (k *creation) response(_ context.Context, msg []byte) ([]byte, *relay.Status) {
	var res runtimeapi.CreateContainerResponse
	if !k.h.decode(msg, &res) || res.GetContainerId() == "" {
		return msg, nil // done tells the engine that the end is not known
	}
	c, asked, back := k.settle()
	switch {
	case !asked:
		return msg, nil
	case !back:
		k.miss(errLate)
	}
	k.h.engine.Created(c, k.applied(), res.GetContainerId())
	return msg, nil
}

// applied is the plan that is in the message.
func (k *creation) applied() engine.Plan {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.sent {
		return engine.Plan{}
	}
	return *k.plan
}

func (k *creation) done(code int) {
	c, asked, _ := k.settle()
	k.mu.Lock()
	plan := k.plan
	k.mu.Unlock()
	if plan != nil {
		k.h.engine.Reported(c, *plan)
	}
	if !asked {
		return
	}
	k.h.engine.CreateFailed(c.Key())
	switch code {
	case relay.StatusUnseen, int(codes.OK), int(codes.Canceled), int(codes.DeadlineExceeded), int(codes.Unavailable):
		k.h.engine.Adopt() // whether it was made is not known
	}
}
