package backend

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/internal/policy"
)

// runtime tells of three sandboxes, and of a container of each cgroup driver.
type runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (runtime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	pod := func(id string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
		return &runtimeapi.PodSandbox{Id: id, State: state, Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u" + id}}
	}
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{
		pod("ready", runtimeapi.PodSandboxState_SANDBOX_READY), pod("ended", runtimeapi.PodSandboxState_SANDBOX_NOTREADY), pod("odd", 7),
	}}, nil
}

func (runtime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{}, nil
}

func (runtime) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{
		Status: &runtimeapi.ContainerStatus{Id: req.GetContainerId()},
		Info: map[string]string{"info": map[string]string{
			"cgroupfs": `{"pid":7,"runtimeSpec":{"linux":{"cgroupsPath":"/kubepods/burstable/podu/cgroupfs","resources":{"cpu":{"shares":512,"cpus":"2-3","mems":"1"}}}}}`,
			"systemd":  `{"runtimeSpec":{"linux":{"cgroupsPath":"kubepods-podu.slice:cri-containerd:systemd","resources":{"cpu":{"cpus":"0"}}}}}`,
			"bare":     `{"runtimeSpec":{"linux":{"cgroupsPath":"/kubepods/podu/bare"}}}`,
			"silent":   `{}`,
		}[req.GetContainerId()]},
	}, nil
}

func newBackend(t *testing.T) *Backend {
	t.Helper()
	dir, err := os.MkdirTemp("", "backend") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(s, runtime{})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	b, err := New("unix://"+l.Addr().String(), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// A sandbox that is not ready has ended: it holds no CPUs.
func TestListStopped(t *testing.T) {
	t.Parallel()
	l, err := newBackend(t).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]bool{"ended": true, "odd": true}, l.Stopped); d != "" || len(l.Pods) != 3 {
		t.Errorf("%d pods, stopped (-want +got):\n%s", len(l.Pods), d)
	}
}

func TestSpec(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	for id, want := range map[string]struct {
		parent string
		values map[policy.Knob]string
	}{
		"cgroupfs": {"/kubepods/burstable/podu", map[policy.Knob]string{policy.CPUWeight: "512", policy.CPUSetCPUs: "2-3", policy.CPUSetMems: "1"}},
		"systemd":  {"kubepods-podu.slice", map[policy.Knob]string{policy.CPUSetCPUs: "0"}},
		"bare":     {"/kubepods/podu", map[policy.Knob]string{}},
		"silent":   {"", map[policy.Knob]string{}},
	} {
		s, err := b.Spec(t.Context(), id)
		if err != nil || s.CgroupParent != want.parent {
			t.Errorf("%s: parent %q, want %q, %v", id, s.CgroupParent, want.parent, err)
		}
		if d := cmp.Diff(want.values, s.Values); d != "" {
			t.Errorf("%s (-want +got):\n%s", id, d)
		}
	}
}
