package bench

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Lists that the fake runtime gives, by the value of the label selector listLabel.
const (
	listLabel = "bench"
	listKnown = "known"
	listLarge = "large"

	large  = 4000
	events = 10

	maxMessage = 16 << 20 // the kubelet's own limit
)

// fakeRuntime answers as containerd does, without doing anything. It remembers the containers that it was asked for, so
// that their status is of their size and shows the resources that came.
type fakeRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	large *runtimeapi.ListContainersResponse

	mu         sync.Mutex
	made       int
	sandboxes  map[string]*runtimeapi.PodSandboxConfig
	containers map[string]*runtimeapi.CreateContainerRequest
	known      *runtimeapi.ListContainersResponse // nil: to be made anew
}

// serveRuntime serves until its process is ended.
func serveRuntime(socket string) error {
	f := &fakeRuntime{large: &runtimeapi.ListContainersResponse{}, sandboxes: map[string]*runtimeapi.PodSandboxConfig{}, containers: map[string]*runtimeapi.CreateContainerRequest{}}
	for i := range large {
		req := createRequest(podConfig(i/2, "", "/kubepods"), containerName(i))
		req.PodSandboxId = id("s", i/2)
		f.large.Containers = append(f.large.Containers, listed(id("l", i), req))
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	runtimeapi.RegisterRuntimeServiceServer(s, f)
	runtimeapi.RegisterImageServiceServer(s, f)
	endWithParent(s.Stop)
	return s.Serve(l)
}

// id is 64 characters long, as containerd's are.
func id(kind string, n int) string { return fmt.Sprintf("%s%063x", kind, n) }

func (f *fakeRuntime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "v2.2.0", RuntimeApiVersion: "v1"}, nil
}

func (f *fakeRuntime) RunPodSandbox(_ context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made++
	s := id("s", f.made)
	f.sandboxes[s] = r.GetConfig()
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: s}, nil
}

func (f *fakeRuntime) CreateContainer(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made++
	c := id("c", f.made)
	f.containers[c], f.known = r, nil
	return &runtimeapi.CreateContainerResponse{ContainerId: c}, nil
}

func (f *fakeRuntime) RemoveContainer(_ context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.containers, r.GetContainerId())
	f.known = nil
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (f *fakeRuntime) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	req := f.containers[r.GetContainerId()]
	if req == nil {
		return nil, status.Errorf(codes.NotFound, "no container %q", r.GetContainerId())
	}
	return &runtimeapi.ContainerStatusResponse{Status: statusOf(r.GetContainerId(), req)}, nil
}

func statusOf(id string, req *runtimeapi.CreateContainerRequest) *runtimeapi.ContainerStatus {
	c := req.GetConfig()
	return &runtimeapi.ContainerStatus{
		Id: id, Metadata: c.GetMetadata(), State: runtimeapi.ContainerState_CONTAINER_RUNNING, CreatedAt: time.Now().UnixNano(), StartedAt: time.Now().UnixNano(),
		Image: c.GetImage(), ImageRef: imageRef, ImageId: imageRef, Labels: c.GetLabels(), Annotations: c.GetAnnotations(), Mounts: c.GetMounts(),
		LogPath: req.GetSandboxConfig().GetLogDirectory() + c.GetLogPath(), Resources: &runtimeapi.ContainerResources{Linux: c.GetLinux().GetResources()},
		User: &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{Uid: 1000, Gid: 1000, SupplementalGroups: []int64{1000}}},
	}
}

func listed(id string, req *runtimeapi.CreateContainerRequest) *runtimeapi.Container {
	c := req.GetConfig()
	return &runtimeapi.Container{Id: id, PodSandboxId: req.GetPodSandboxId(), Metadata: c.GetMetadata(), Image: c.GetImage(), ImageRef: imageRef, ImageId: imageRef,
		State: runtimeapi.ContainerState_CONTAINER_RUNNING, CreatedAt: time.Now().UnixNano(), Labels: c.GetLabels(), Annotations: c.GetAnnotations()}
}

// ListContainers gives one of the prepared lists. Without a selector there are none: that is how the proxy asks at
// its start, and what it knows shall come from the calls of the benchmark.
func (f *fakeRuntime) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	switch r.GetFilter().GetLabelSelector()[listLabel] {
	case listLarge:
		return f.large, nil
	case listKnown:
	default:
		return &runtimeapi.ListContainersResponse{}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		f.known = &runtimeapi.ListContainersResponse{}
		for id, req := range f.containers {
			f.known.Containers = append(f.known.Containers, listed(id, req))
		}
	}
	return f.known, nil
}

func (f *fakeRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{}, nil
}

// GetContainerEvents sends what the first containers' starts would cause, and ends, which a real runtime does not.
func (f *fakeRuntime) GetContainerEvents(_ *runtimeapi.GetEventsRequest, s grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	f.mu.Lock()
	var all []*runtimeapi.ContainerEventResponse
	for id, req := range f.containers {
		cfg := req.GetSandboxConfig()
		all = append(all, &runtimeapi.ContainerEventResponse{
			ContainerId: id, ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, CreatedAt: time.Now().UnixNano(),
			PodSandboxStatus:   &runtimeapi.PodSandboxStatus{Id: req.GetPodSandboxId(), Metadata: cfg.GetMetadata(), Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations()},
			ContainersStatuses: []*runtimeapi.ContainerStatus{statusOf(id, req)},
		})
		if len(all) == events {
			break
		}
	}
	f.mu.Unlock()
	for _, e := range all {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return nil
}

var imageRef = "registry.example/shop/app@sha256:" + strings.Repeat("a", 64)

const batch = `{"containers":{"app":{"requests":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"2Gi"},"limits":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"2Gi"}}}}`

func containerName(i int) string {
	if i%2 == 0 {
		return "app"
	}
	return "sidecar"
}

// labelTier is written out here, as users do.
const labelTier = "tideline.io/qos"

// podConfig is what a kubelet says of a pod; tier "" is none.
func podConfig(n int, tier, parent string) *runtimeapi.PodSandboxConfig {
	name, uid := fmt.Sprintf("web-7d9c6b5f4-%05d", n), fmt.Sprintf("5a3c1f0e-0000-4000-8000-%012d", n)
	class := map[string]string{"BE": "/besteffort", "LS": "/burstable", "": "/burstable"}[tier]
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "shop", Uid: uid}, Hostname: name,
		LogDirectory: "/var/log/pods/shop_" + name + "_" + uid,
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}, Options: []string{"ndots:5"}},
		Labels: map[string]string{"app": "web", "pod-template-hash": "7d9c6b5f4",
			"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": uid},
		Annotations: map[string]string{"kubernetes.io/config.seen": "2026-11-30T12:00:00.000000000Z", "kubernetes.io/config.source": "api"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: parent + class + "/pod" + uid,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}},
	}
	if tier != "" {
		cfg.Labels[labelTier] = tier
	}
	switch tier {
	case "BE":
		cfg.Annotations["tideline.io/batch-resources"] = batch
	case "LS":
		cfg.Annotations["tideline.io/requests"] = `{"containers":{"app":{"cpu":"500m","memory":"1Gi"},"sidecar":{"cpu":"100m","memory":"64Mi"}}}`
	}
	return cfg
}

// createRequest is a container with 40 variables, 15 mounts, and annotations that make a listed one 1.1 KB long.
func createRequest(pod *runtimeapi.PodSandboxConfig, name string) *runtimeapi.CreateContainerRequest {
	uid := pod.GetMetadata().GetUid()
	res := &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000, CpuQuota: 100000, MemoryLimitInBytes: 1 << 30, OomScoreAdj: 900}
	if pod.GetLabels()[labelTier] == "BE" {
		res = &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 1000}
	}
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: imageRef, UserSpecifiedImage: "registry.example/shop/app:1.2.3"},
		Command: []string{"/app/server"}, Args: []string{"--listen=:8080", "--log=json"}, WorkingDir: "/app", LogPath: name + "/0.log",
		Labels: map[string]string{"io.kubernetes.container.name": name, "io.kubernetes.pod.name": pod.GetMetadata().GetName(),
			"io.kubernetes.pod.namespace": pod.GetMetadata().GetNamespace(), "io.kubernetes.pod.uid": uid},
		Annotations: map[string]string{"io.kubernetes.container.hash": "2f0a9d2e", "io.kubernetes.container.restartCount": "0",
			"io.kubernetes.container.terminationMessagePath": "/dev/termination-log", "io.kubernetes.container.terminationMessagePolicy": "File", "io.kubernetes.pod.terminationGracePeriod": "30",
			"io.kubernetes.container.ports": `[{"name":"http","containerPort":8080,"protocol":"TCP"},{"name":"metrics","containerPort":9090,"protocol":"TCP"}]`},
		Linux: &runtimeapi.LinuxContainerConfig{Resources: res, SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Capabilities: &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}, NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			RunAsUser: &runtimeapi.Int64Value{Value: 1000}, NoNewPrivs: true, MaskedPaths: []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}}},
	}
	for i := range 40 {
		cfg.Envs = append(cfg.Envs, &runtimeapi.KeyValue{Key: fmt.Sprintf("SERVICE_%d_HOST", i), Value: fmt.Appendf(nil, "10.96.0.%d", i)})
	}
	for i := range 15 {
		cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{ContainerPath: fmt.Sprintf("/data/%d", i), HostPath: fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~projected/volume-%d", uid, i), Readonly: i%2 == 0})
	}
	return &runtimeapi.CreateContainerRequest{Config: cfg, SandboxConfig: proto.CloneOf(pod)}
}
