package hooks

import (
	"bytes"
	"context"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	applycri "github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/runtime-proxy/internal/relay"
	"github.com/tideline-io/tideline/runtime-proxy/internal/wire"
)

// fullID is the length of the IDs that runtimes give.
const fullID = 64

func (h *Hooks) containerStatus() *relay.Call {
	var id string
	adopted := h.engine.Adopted()
	return &relay.Call{
		InlineRequest: true, InlineResponse: adopted,
		Request: func(_ context.Context, msg []byte) ([]byte, *relay.Status) {
			id = firstString(msg)
			return msg, nil
		},
		Response: func(ctx context.Context, msg []byte) ([]byte, *relay.Status) {
			if !adopted {
				h.engine.AwaitAdopted(ctx)
			}
			// People may name a container by the beginning of its ID; the answer has all of it.
			if h.engine.View(id) == nil && (len(id) >= fullID || !h.engine.HasViews()) {
				return msg, nil
			}
			return h.edited("ContainerStatusResponse", msg, wire.ContainerStatus), nil
		},
	}
}

func (h *Hooks) event(_ context.Context, msg []byte) []byte {
	msg = h.newborn(msg) // first: a container that gets known meanwhile is then edited as the others are
	if !h.engine.HasViews() {
		return msg
	}
	return h.edited("ContainerEventResponse", msg, wire.ContainerEvent)
}

// newborn makes the event of a creation show what the kubelet asked for: the runtime tells of a container before it
// answers CreateContainer, so the engine may not know its ID. Nothing was asked since, so its birth record holds.
func (h *Hooks) newborn(msg []byte) []byte {
	if !isCreation(msg) || !bytes.Contains(msg, []byte(v1alpha1.AnnotationDecision)) {
		return msg
	}
	var ev runtimeapi.ContainerEventResponse
	if proto.Unmarshal(msg, &ev) != nil || ev.GetContainerEventType() != runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT || h.engine.View(ev.GetContainerId()) != nil {
		return msg
	}
	changed := false
	for _, st := range ev.GetContainersStatuses() {
		res := st.GetResources().GetLinux()
		if st.GetId() != ev.GetContainerId() || res == nil {
			continue
		}
		if v := engine.BornView(st.GetAnnotations()[v1alpha1.AnnotationDecision]); v != nil {
			applycri.Restore(v.Settings, v.Asked, res)
			changed = true
		}
	}
	if !changed {
		return msg
	}
	out, err := proto.Marshal(&ev)
	if err != nil {
		h.engine.FailedOpen("ContainerEventResponse", err)
		return msg
	}
	return out
}

// isCreation says whether a ContainerEventResponse may be of type CONTAINER_CREATED_EVENT. That is 0, which is not on the
// wire; whoever decodes the message has the last word.
func isCreation(msg []byte) bool {
	const numType = 2 // ContainerEventResponse.container_event_type
	for len(msg) > 0 {
		num, typ, tag := protowire.ConsumeTag(msg)
		if tag < 0 {
			break
		}
		if num == numType && typ == protowire.VarintType {
			v, n := protowire.ConsumeVarint(msg[tag:])
			return n > 0 && v == uint64(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
		}
		n := protowire.ConsumeFieldValue(num, typ, msg[tag:])
		if n < 0 {
			break
		}
		msg = msg[tag+n:]
	}
	return true
}

// sandboxStatus: with evented PLEG the runtime puts the statuses of the pod's containers into it.
func (h *Hooks) sandboxStatus(_ context.Context, msg []byte) ([]byte, *relay.Status) {
	if !h.engine.HasViews() {
		return msg, nil
	}
	return h.edited("PodSandboxStatusResponse", msg, wire.PodSandboxStatus), nil
}

// edited gives a message in which every status shows what the kubelet asked for, or msg when that can't be had.
func (h *Hooks) edited(name string, msg []byte, edit func([]byte, wire.Restore) ([]byte, error)) []byte {
	out, err := edit(msg, h.restore)
	switch {
	case errors.Is(err, wire.ErrInvalid):
		h.badInput(name, err)
		return msg
	case err != nil:
		h.engine.FailedOpen(name, err)
		return msg
	}
	return out
}

// restore makes the resources of a status show what the kubelet asked for; false when there is nothing of ours in them.
func (h *Hooks) restore(id string, res *runtimeapi.LinuxContainerResources) bool {
	v := h.engine.View(id)
	if v == nil {
		return false
	}
	applycri.Restore(v.Settings, v.Asked, res)
	return true
}
