// Package hooks is what the proxy does with the CRI calls that it must see: it decodes them, asks the engine, and puts
// the answer into the message. Every method that is not in For passes as bytes. A message that does not decode, or that
// nothing is to be changed in, passes as the bytes that came.
//
//	h := hooks.New(eng, log)
//	srv := relay.New(relay.Config{Dial: dial, Hook: h.For})
package hooks

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	applycri "github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/engine"
	factscri "github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/runtime-proxy/internal/relay"
)

// Hooks answers the relay. Its methods may be called by several goroutines.
type Hooks struct {
	engine *engine.Engine
	log    *slog.Logger
}

// New makes the hooks of a proxy.
func New(e *engine.Engine, log *slog.Logger) *Hooks { return &Hooks{engine: e, log: log} }

// Methods of the CRI runtime service that are hooked.
const (
	service            = "/runtime.v1.RuntimeService/"
	runPodSandbox      = service + "RunPodSandbox"
	stopPodSandbox     = service + "StopPodSandbox"
	removePodSandbox   = service + "RemovePodSandbox"
	podSandboxStatus   = service + "PodSandboxStatus"
	updatePodSandbox   = service + "UpdatePodSandboxResources"
	createContainer    = service + "CreateContainer"
	startContainer     = service + "StartContainer"
	removeContainer    = service + "RemoveContainer"
	updateContainer    = service + "UpdateContainerResources"
	containerStatus    = service + "ContainerStatus"
	getContainerEvents = service + "GetContainerEvents"
)

// For gives the callbacks of one call, nil for a method that passes as it is and for every method while bypass is on.
func (h *Hooks) For(method string) *relay.Call {
	if h.engine.Bypassed() {
		return nil
	}
	switch method {
	case createContainer:
		return h.createContainer()
	case startContainer:
		return whenOK(h.engine.Started)
	case updateContainer:
		return h.updateContainer()
	case containerStatus:
		return h.containerStatus()
	case getContainerEvents:
		return &relay.Call{Message: h.event, InlineResponse: true}
	case podSandboxStatus:
		return &relay.Call{Response: h.sandboxStatus, InlineResponse: true}
	case removeContainer:
		return whenOK(h.engine.Removed)
	case runPodSandbox:
		return h.runPodSandbox()
	case updatePodSandbox:
		return h.updatePodSandbox()
	case stopPodSandbox:
		return whenOK(h.engine.PodStopped)
	case removePodSandbox:
		return whenOK(h.engine.PodRemoved)
	}
	return nil
}

// decode reads a message; false counts it as bad input, and it then passes as it is.
func (h *Hooks) decode(msg []byte, into proto.Message) bool {
	if err := proto.Unmarshal(msg, into); err != nil {
		h.badInput(string(into.ProtoReflect().Descriptor().Name()), err)
		return false
	}
	return true
}

func (h *Hooks) badInput(message string, err error) {
	h.engine.BadInput()
	h.log.Warn("message passes undecoded", "message", message, "err", err)
}

// failed says what becomes of a call that got no decision: the failure policy of its tier.
func (h *Hooks) failed(op string, pod policy.Pod, err error) *relay.Status {
	if h.engine.Enforcing() && h.engine.OnError(pod) == v1alpha1.Refuse {
		h.engine.Refused()
		return refusal(v1alpha1.LabelQoS, fmt.Sprintf("the tier wants certainty (onError: refuse), and there is %v", err))
	}
	h.engine.FailedOpen(op, err)
	h.log.Warn("call passes unmodified", "op", op, "pod", pod.Namespace+"/"+pod.Name, "err", err)
	return nil
}

func refusal(key, why string) *relay.Status {
	return &relay.Status{Code: uint32(codes.FailedPrecondition), Message: fmt.Sprintf("tideline: %s: %s", key, why)}
}

// whenOK reports the ID that a request names once the runtime has answered it well; the messages pass as they are.
func whenOK(report func(id string)) *relay.Call {
	var id string
	return &relay.Call{
		InlineRequest: true,
		Request: func(_ context.Context, msg []byte) ([]byte, *relay.Status) {
			id = firstString(msg)
			return msg, nil
		},
		Response: func(_ context.Context, msg []byte) ([]byte, *relay.Status) {
			report(id)
			return msg, nil
		},
	}
}

// held is what the callbacks of one call hand on: Request may have overrun its time, and then runs beside the others.
type held[T any] struct {
	mu sync.Mutex
	v  T
}

func (h *held[T]) put(v T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.v = v
}

// take leaves the zero value.
func (h *held[T]) take() T {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.v
	h.v = *new(T)
	return v
}

func (h *Hooks) updateContainer() *relay.Call {
	var plan held[engine.Plan]
	return &relay.Call{
		Request: func(ctx context.Context, msg []byte) ([]byte, *relay.Status) {
			var req runtimeapi.UpdateContainerResourcesRequest
			if !h.decode(msg, &req) || req.GetLinux() == nil {
				return msg, nil
			}
			id, asks := req.GetContainerId(), factscri.Resources(req.GetLinux())
			h.engine.AwaitAdopted(ctx)
			p, err := h.engine.Update(ctx, id, asks)
			if err != nil { // a running container is never refused an update: the kubelet would repeat it for ever
				h.engine.FailedOpen("UpdateContainerResources", err)
				p.Apply = h.engine.Fallback(ctx, id, asks)
			}
			if ctx.Err() != nil { // the relay has passed the message on without us
				h.engine.FailedOpen("UpdateContainerResources", errLate)
				h.engine.Updated(p, false)
				return msg, nil
			}
			plan.put(p)
			if len(p.Apply) == 0 {
				return msg, nil
			}
			_, err = applycri.Apply(p.Apply, h.engine.CgroupVersion(), req.Linux)
			if err == nil {
				var out []byte
				if out, err = proto.Marshal(&req); err == nil {
					return out, nil
				}
			}
			h.engine.FailedOpen("UpdateContainerResources", err)
			h.engine.Updated(plan.take(), false)
			return msg, nil
		},
		Response: func(_ context.Context, msg []byte) ([]byte, *relay.Status) {
			h.engine.Updated(plan.take(), true)
			return msg, nil
		},
		Done: func(int) { h.engine.Updated(plan.take(), false) },
	}
}

func (h *Hooks) runPodSandbox() *relay.Call {
	var pod held[policy.Pod]
	return &relay.Call{
		Request: func(ctx context.Context, msg []byte) ([]byte, *relay.Status) {
			var req runtimeapi.RunPodSandboxRequest
			if !h.decode(msg, &req) {
				return msg, nil
			}
			p := factscri.Pod(req.GetConfig())
			if p.UID == "" {
				h.engine.BadInput()
				return msg, nil
			}
			pod.put(p)
			h.engine.PodStarting(ctx, p)
			return msg, nil
		},
		InlineResponse: true,
		Response: func(_ context.Context, msg []byte) ([]byte, *relay.Status) {
			var res runtimeapi.RunPodSandboxResponse
			if h.decode(msg, &res) && res.GetPodSandboxId() != "" {
				if p := pod.take(); p.UID != "" {
					h.engine.PodStarted(p, res.GetPodSandboxId())
				}
			}
			return msg, nil
		},
		Done: func(int) {
			if p := pod.take(); p.UID != "" {
				h.engine.PodFailed(p.UID)
			}
		},
	}
}

func (h *Hooks) updatePodSandbox() *relay.Call {
	var id held[string]
	return &relay.Call{
		Request: func(ctx context.Context, msg []byte) ([]byte, *relay.Status) {
			var req runtimeapi.UpdatePodSandboxResourcesRequest
			if !h.decode(msg, &req) {
				return msg, nil
			}
			h.engine.AwaitAdopted(ctx)
			if r := h.engine.PodResizing(ctx, req.GetPodSandboxId(), factscri.Resources(req.GetResources())); r != nil {
				h.engine.Refused()
				return msg, refusal(r.Key, r.Message)
			}
			id.put(req.GetPodSandboxId())
			return msg, nil
		},
		Done: func(int) {
			if id := id.take(); id != "" {
				h.engine.PodResized(id)
			}
		},
	}
}
