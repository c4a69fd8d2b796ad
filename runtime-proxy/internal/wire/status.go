package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Field numbers of api.proto on the way to the resources of a status.
const (
	numStatus             = 1  // ContainerStatusResponse.status
	numEventStatuses      = 5  // ContainerEventResponse.containers_statuses
	numPodStatuses        = 3  // PodSandboxStatusResponse.containers_statuses
	numStatusID           = 1  // ContainerStatus.id
	numStatusResources    = 16 // ContainerStatus.resources
	numContainerResources = 1  // ContainerResources.linux
)

// Restore changes the resources that a status reports of the container with that ID, and says whether it did. It is
// asked for every status that reports some.
type Restore func(id string, res *runtimeapi.LinuxContainerResources) bool

// ContainerStatus changes a ContainerStatusResponse. It gives msg itself where nothing was changed. The error is
// ErrInvalid, or that of an encoding that failed.
func ContainerStatus(msg []byte, restore Restore) ([]byte, error) {
	return statusResponse.edit(msg, numStatus, true, restore, func() (proto.Message, []*runtimeapi.ContainerStatus, error) {
		var m runtimeapi.ContainerStatusResponse
		err := proto.Unmarshal(msg, &m)
		return &m, []*runtimeapi.ContainerStatus{m.GetStatus()}, err
	})
}

// ContainerEvent changes a ContainerEventResponse as ContainerStatus does.
func ContainerEvent(msg []byte, restore Restore) ([]byte, error) {
	return eventResponse.edit(msg, numEventStatuses, false, restore, func() (proto.Message, []*runtimeapi.ContainerStatus, error) {
		var m runtimeapi.ContainerEventResponse
		err := proto.Unmarshal(msg, &m)
		return &m, m.GetContainersStatuses(), err
	})
}

// PodSandboxStatus changes a PodSandboxStatusResponse as ContainerStatus does.
func PodSandboxStatus(msg []byte, restore Restore) ([]byte, error) {
	return podResponse.edit(msg, numPodStatuses, false, restore, func() (proto.Message, []*runtimeapi.ContainerStatus, error) {
		var m runtimeapi.PodSandboxStatusResponse
		err := proto.Unmarshal(msg, &m)
		return &m, m.GetContainersStatuses(), err
	})
}

// decoding decodes a whole message, and tells the statuses in it.
type decoding func() (proto.Message, []*runtimeapi.ContainerStatus, error)

// edit changes the statuses in field num of a message; single says that the field is no list.
func (s *schema) edit(msg []byte, num protowire.Number, single bool, restore Restore, whole decoding) ([]byte, error) {
	if !s.valid(msg) {
		return nil, ErrInvalid
	}
	merged := false
	var found []status
	for f := range fields(msg, 0, len(msg)) {
		if f.num != num || f.typ != protowire.BytesType {
			continue
		}
		st, repeated := readStatus(msg, f)
		found = append(found, st)
		merged = merged || repeated || single && len(found) > 1
	}
	if merged {
		return restoreAll(msg, restore, whole)
	}
	var out []byte
	done := 0 // of msg
	for _, st := range found {
		if !st.reports {
			continue
		}
		var res runtimeapi.LinuxContainerResources
		linux := st.path[2]
		if err := proto.Unmarshal(msg[linux.value:linux.end], &res); err != nil {
			return nil, ErrInvalid
		}
		if !restore(st.id, &res) {
			continue
		}
		content, err := proto.Marshal(&res)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = make([]byte, 0, len(msg)+len(content)+room)
		}
		out = append(out, msg[done:st.path[0].start]...)
		e := edit{path: st.path[:], content: content}
		out = e.appendTo(out, msg)
		done = st.path[0].end
	}
	if out == nil {
		return msg, nil
	}
	return append(out, msg[done:]...), nil
}

// status is a ContainerStatus in a message.
type status struct {
	id      string
	path    [3]field // the status, its resources, linux in them
	reports bool     // linux is there
}

// readStatus reads a status; repeated says that protobuf would have to merge something in it.
func readStatus(msg []byte, f field) (st status, repeated bool) {
	st.path[0] = f
	resources := 0
	var id field
	for in := range fields(msg, f.value, f.end) {
		switch {
		case in.typ != protowire.BytesType:
		case in.num == numStatusID:
			id = in // the last one counts
		case in.num == numStatusResources:
			st.path[1] = in
			resources++
		}
	}
	st.id = string(msg[id.value:id.end])
	if resources != 1 {
		return st, resources > 1
	}
	linux, times := message(msg, st.path[1].value, st.path[1].end, numContainerResources)
	st.path[2], st.reports = linux, times == 1
	return st, times > 1
}

// restoreAll decodes and encodes everything.
func restoreAll(msg []byte, restore Restore, whole decoding) ([]byte, error) {
	m, statuses, err := whole()
	if err != nil {
		return nil, ErrInvalid
	}
	changed := false
	for _, st := range statuses {
		if res := st.GetResources().GetLinux(); res != nil {
			changed = restore(st.GetId(), res) || changed
		}
	}
	if !changed {
		return msg, nil
	}
	return proto.Marshal(m)
}
