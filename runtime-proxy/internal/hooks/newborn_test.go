package hooks_test

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

// containerd sends the event of a creation before the answer to CreateContainer, so the container's ID is new to us; the
// kubelet is still shown what it asked. Found with crictl events.
func TestEventBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	d := newDoor(t, options{})
	const birth = `{"tier":"BE","asked":{"cpuShares":2,"cpuPeriod":100000},"set":{"cpu.weight":"unset","cpu.max":"50000 100000","cpuset.cpus":"1"},"policy":"p","generation":1}`
	for _, tc := range []struct {
		name   string
		event  runtimeapi.ContainerEventType
		id     string
		birth  string
		shares int64
	}{
		{"creation", runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, "new", birth, 2},
		{"another's status", runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, "other", birth, 0},
		{"later event", runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, "new", birth, 0},
		{"no birth record", runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, "new", "{}", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sent := &runtimeapi.ContainerEventResponse{ContainerId: "new", ContainerEventType: tc.event, ContainersStatuses: []*runtimeapi.ContainerStatus{{
				Id: tc.id, Annotations: map[string]string{v1alpha1.AnnotationDecision: tc.birth},
				Resources: &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpusetCpus: "1"}},
			}}}
			msg := unknown(encode(t, sent))
			d.answer("GetContainerEvents", func([]byte) ([][]byte, error) { return [][]byte{msg}, nil })
			stream, err := d.client.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/runtime.v1.RuntimeService/GetContainerEvents")
			if err == nil {
				err = stream.SendMsg(&[]byte{})
			}
			if err == nil {
				err = stream.CloseSend()
			}
			var b []byte
			if err == nil {
				err = stream.RecvMsg(&b)
			}
			if err != nil {
				t.Fatal(err)
			}
			var got, want runtimeapi.ContainerEventResponse
			if err := proto.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			if err := proto.Unmarshal(msg, &want); err != nil {
				t.Fatal(err)
			}
			if tc.shares != 0 {
				want.ContainersStatuses[0].Resources.Linux = &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuShares: tc.shares}
			}
			if !proto.Equal(&got, &want) {
				t.Errorf("got %v, want %v", &got, &want)
			}
		})
	}
}
