package hooks_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/internal/engine/enginetest"
	"github.com/tideline-io/tideline/internal/facts/cri"
)

// A kubelet that asks right after a restart, before the runtime's containers were read, is shown what it asked.
func TestStatusRightAfterRestart(t *testing.T) {
	t.Parallel()
	listing := make(chan struct{})
	d := newDoor(t, options{timeout: time.Minute, runtime: func(rt *enginetest.Runtime) {
		rt.AddPod("sb", cri.Pod(sandbox("BE")))
		rt.Add(enginetest.Container{ID: ctrID, SandboxID: "sb", Name: "app", Running: true, PID: 7,
			Birth: `{"tier":"BE","asked":{"cpuShares":2},"set":{"cpu.max":"50000 100000"},"cgroupParent":"/kubepods/besteffort/podu1"}`})
		rt.Fail(func(op, _ string) error {
			if op == "List" {
				<-listing
			}
			return nil
		})
	}})
	time.AfterFunc(100*time.Millisecond, func() { close(listing) })
	d.answerWith("ContainerStatus", &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: ctrID, Resources: &runtimeapi.ContainerResources{
		Linux: &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000}}}})
	out, err := d.call("ContainerStatus", encode(t, &runtimeapi.ContainerStatusRequest{ContainerId: ctrID}))
	if err != nil {
		t.Fatal(err)
	}
	var got runtimeapi.ContainerStatusResponse
	if err := proto.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if q := got.GetStatus().GetResources().GetLinux().GetCpuQuota(); q != 0 {
		t.Errorf("the kubelet is shown a quota of %d, and asked none", q)
	}
}
