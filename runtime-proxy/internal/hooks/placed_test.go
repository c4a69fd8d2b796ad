package hooks_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/placement"
)

// A pod of an exclusive tier has CPUs of its own from its sandbox on, a resize is refused before the runtime hears of it,
// and the end of the sandbox gives the CPUs back.
func TestPlaced(t *testing.T) {
	t.Parallel()
	d := newDoor(t, options{engine: func(c *engine.Config) {
		c.Node.Online = cpuset.New(0, 1, 2, 3)
		for i := range 4 {
			c.Topology.CPUs = append(c.Topology.CPUs, placement.CPU{ID: i, NUMANode: i / 2, L3: i / 2, L2: i, Core: i})
		}
		c.Topology.Nodes = []placement.Node{{ID: 0, Memory: true}, {ID: 1, Memory: true}}
	}})
	if err := d.k.SetSize(4, 2); err != nil {
		t.Fatal(err)
	}
	asks := func(cpus int64) *runtimeapi.LinuxContainerResources {
		return &runtimeapi.LinuxContainerResources{CpuQuota: cpus * 100000, CpuPeriod: 100000, CpuShares: cpus * 1024}
	}
	pod := func(uid string, cpus int64) *runtimeapi.PodSandboxConfig {
		s := sandbox("LSE")
		s.Metadata.Uid, s.Linux.CgroupParent, s.Linux.Resources = uid, "/kubepods/pod"+uid, asks(cpus)
		if err := d.k.Make(cgroup.Path(s.Linux.CgroupParent)); err != nil { // as the kubelet does
			t.Fatal(err)
		}
		d.answerWith("RunPodSandbox", &runtimeapi.RunPodSandboxResponse{PodSandboxId: "sb-" + uid})
		d.must("RunPodSandbox", &runtimeapi.RunPodSandboxRequest{Config: s})
		return s
	}
	made := func(s *runtimeapi.PodSandboxConfig) (*runtimeapi.LinuxContainerResources, error) {
		req := create(s)
		req.PodSandboxId = "sb-" + s.Metadata.Uid
		d.answerWith("CreateContainer", &runtimeapi.CreateContainerResponse{ContainerId: ctrID})
		if _, err := d.call("CreateContainer", encode(t, req)); err != nil {
			return nil, err
		}
		var got runtimeapi.CreateContainerRequest
		if err := proto.Unmarshal(d.last("CreateContainer"), &got); err != nil {
			t.Fatal(err)
		}
		return got.GetConfig().GetLinux().GetResources(), nil
	}
	a := pod("a", 2)
	if r, err := made(a); err != nil || r.GetCpusetCpus() != "0-1" || r.GetCpusetMems() != "0" {
		t.Fatalf("created with CPUs %q and memory nodes %q: %v", r.GetCpusetCpus(), r.GetCpusetMems(), err)
	}
	d.answerWith("ContainerStatus", &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: ctrID, Resources: &runtimeapi.ContainerResources{
		Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: "0-1", CpusetMems: "0"},
	}}})
	var shown runtimeapi.ContainerStatusResponse
	if err := proto.Unmarshal(d.must("ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: ctrID}), &shown); err != nil {
		t.Fatal(err)
	}
	if l := shown.GetStatus().GetResources().GetLinux(); l.GetCpusetCpus()+l.GetCpusetMems() != "" {
		t.Errorf("the kubelet is shown CPUs %q and memory nodes %q", l.GetCpusetCpus(), l.GetCpusetMems())
	}

	resize := func(cpus int64) error {
		_, err := d.call("UpdatePodSandboxResources", encode(t, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "sb-a", Resources: asks(cpus)}))
		return err
	}
	if err := resize(4); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), v1alpha1.LabelQoS) || d.last("UpdatePodSandboxResources") != nil {
		t.Errorf("a resize that does not fit: %v", err)
	}
	if err := resize(3); err != nil || d.last("UpdatePodSandboxResources") == nil {
		t.Errorf("a resize that fits: %v", err)
	}
	b := pod("b", 2)
	if _, err := made(b); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "2 whole cores asked, 1 free") {
		t.Errorf("without room: %v", err)
	}
	d.must("StopPodSandbox", &runtimeapi.StopPodSandboxRequest{PodSandboxId: "sb-a"})
	d.eventually("the other to be placed", func() bool {
		c, err := d.e.CPUs(t.Context())
		return err == nil && len(c.Pods) == 1 && c.Pods[0].UID == "b"
	})
	if r, err := made(b); err != nil || r.GetCpusetCpus() == "" {
		t.Errorf("with room: %v, %v", r, err)
	}
}
