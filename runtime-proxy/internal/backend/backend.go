// Package backend is the proxy's own connection to the runtime, apart from the relayed ones: it finds first processes,
// lists containers after a restart, reads stored specs, and takes values back. It implements engine.Runtime.
//
//	b, err := backend.New("unix:///run/containerd/containerd.sock", 2)
//	defer b.Close()
//	pid, err := b.PID(ctx, containerID)
package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	applycri "github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/engine"
	factscri "github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
)

// maxMessage bounds an answer of the runtime: a list of 16 MiB is what the kubelet takes; ours is a little above it.
const maxMessage = 32 << 20

// Backend talks CRI to the runtime. Its methods may be called by several goroutines.
type Backend struct {
	conn    *grpc.ClientConn
	rt      runtimeapi.RuntimeServiceClient
	version int
}

var _ engine.Runtime = (*Backend)(nil)

// New makes a connection that is dialled with the first call and again whenever the runtime comes back.
func New(endpoint string, cgroupVersion int) (*Backend, error) {
	// A runtime that is back is to be found again at once: the default waits up to two minutes.
	retry := backoff.DefaultConfig
	retry.MaxDelay = time.Second
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("connect to runtime %q: %w", endpoint, err)
	}
	return &Backend{conn: conn, rt: runtimeapi.NewRuntimeServiceClient(conn), version: cgroupVersion}, nil
}

// Close ends the connection.
func (b *Backend) Close() error { return b.conn.Close() }

// Version tells name and version of the runtime.
func (b *Backend) Version(ctx context.Context) (name, version string, err error) {
	v, err := b.rt.Version(ctx, &runtimeapi.VersionRequest{})
	return v.GetRuntimeName(), v.GetRuntimeVersion(), err
}

// info is the part that we read of what containerd and CRI-O tell of a container under the key "info".
type info struct {
	PID  int         `json:"pid"`
	Spec *specs.Spec `json:"runtimeSpec"`
}

func (b *Backend) info(ctx context.Context, id string) (*runtimeapi.ContainerStatus, info, error) {
	st, err := b.rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return nil, info{}, translate(err)
	}
	var i info
	if text, ok := st.GetInfo()["info"]; ok {
		if err := json.Unmarshal([]byte(text), &i); err != nil {
			return nil, info{}, fmt.Errorf("parse verbose status of container %.64s: %w", id, err)
		}
	}
	return st.GetStatus(), i, nil
}

// translate makes an unknown container engine.ErrNotFound.
func translate(err error) error {
	if status.Code(err) == codes.NotFound {
		return fmt.Errorf("%w: %w", engine.ErrNotFound, err)
	}
	return err
}

// PID tells the first process of a running container.
func (b *Backend) PID(ctx context.Context, id string) (int, error) {
	st, i, err := b.info(ctx, id)
	if err != nil {
		return 0, err
	}
	switch {
	case st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING:
		return 0, fmt.Errorf("container %.64s: %w", id, engine.ErrNotRunning)
	case i.PID <= 0:
		return 0, fmt.Errorf("runtime tells no process of container %.64s in its verbose status", id)
	}
	return i.PID, nil
}

// Update puts settings into the stored spec and the kernel.
func (b *Backend) Update(ctx context.Context, id string, settings []policy.Setting) error {
	res := &runtimeapi.LinuxContainerResources{}
	if _, err := applycri.Apply(settings, b.version, res); err != nil {
		return err
	}
	_, err := b.rt.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: res})
	return translate(err)
}

// List tells the sandboxes and the containers.
func (b *Backend) List(ctx context.Context) (engine.Listing, error) {
	pods, err := b.rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return engine.Listing{}, err
	}
	ctrs, err := b.rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return engine.Listing{}, err
	}
	l := engine.Listing{Pods: map[string]policy.Pod{}, Stopped: map[string]bool{}}
	for _, s := range pods.GetItems() {
		l.Pods[s.GetId()] = factscri.ListedPod(s)
		if s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			l.Stopped[s.GetId()] = true
		}
	}
	for _, c := range ctrs.GetContainers() {
		l.Containers = append(l.Containers, engine.Listed{
			ID: c.GetId(), SandboxID: c.GetPodSandboxId(), Name: c.GetMetadata().GetName(), Attempt: c.GetMetadata().GetAttempt(),
			Birth: c.GetAnnotations()[v1alpha1.AnnotationDecision], Running: c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING,
			Exited: c.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED,
		})
	}
	return l, nil
}

// Spec tells what the runtime's stored spec holds of a container.
func (b *Backend) Spec(ctx context.Context, id string) (engine.Spec, error) {
	st, i, err := b.info(ctx, id)
	if err != nil {
		return engine.Spec{}, err
	}
	out := engine.Spec{Resources: factscri.Resources(st.GetResources().GetLinux()), Values: map[policy.Knob]string{}}
	if i.Spec == nil {
		return out, nil
	}
	if p := i.Spec.Process; p != nil && p.OOMScoreAdj != nil {
		out.Values[policy.OOMScoreAdj] = strconv.Itoa(*p.OOMScoreAdj)
	}
	if i.Spec.Linux == nil {
		return out, nil
	}
	out.CgroupParent = cgroupParent(i.Spec.Linux.CgroupsPath)
	if i.Spec.Linux.Resources == nil {
		return out, nil
	}
	r := i.Spec.Linux.Resources
	if c := r.CPU; c != nil {
		if c.Shares != nil {
			out.Values[policy.CPUWeight] = strconv.FormatUint(*c.Shares, 10)
		}
		if c.Quota != nil {
			quota, period := "max", uint64(100000)
			if *c.Quota > 0 {
				quota = strconv.FormatInt(*c.Quota, 10)
			}
			if c.Period != nil {
				period = *c.Period
			}
			out.Values[policy.CPUMax] = fmt.Sprintf("%s %d", quota, period)
		}
		set(out.Values, policy.CPUSetCPUs, c.Cpus)
		set(out.Values, policy.CPUSetMems, c.Mems)
	}
	if m := r.Memory; m != nil && m.Limit != nil {
		out.Values[policy.MemoryMax] = "max"
		if *m.Limit > 0 {
			out.Values[policy.MemoryMax] = strconv.FormatInt(*m.Limit, 10)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(r.Unified)) {
		set(out.Values, policy.Knob(k), strings.TrimSpace(r.Unified[k]))
	}
	return out, nil
}

// cgroupParent is the parent of a container's cgroup as the kubelet names it: of "PARENT/ID", or of a systemd unit
// "SLICE:PREFIX:ID".
func cgroupParent(cgroupsPath string) string {
	if slice, _, ok := strings.Cut(cgroupsPath, ":"); ok {
		return slice
	}
	if i := strings.LastIndexByte(cgroupsPath, '/'); i > 0 {
		return cgroupsPath[:i]
	}
	return ""
}

func set(values map[policy.Knob]string, k policy.Knob, v string) {
	if v != "" {
		values[k] = v
	}
}
