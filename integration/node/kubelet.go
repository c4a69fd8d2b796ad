package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/policy"
)

// Kubelet makes pods as a kubelet does: the pod's cgroup with the values that the kubelet writes itself, then the
// sandbox and the containers over CRI. What it asks for is internal/facts/kube's word; that a real kubelet asks the same
// is proven by `make test-kubelet`.
type Kubelet struct {
	CRI     *lab.CRI
	Options kube.Options

	lab   *lab.Lab
	above string // what the kubelet's names of cgroups are below: the lab's cgroup, or "" where they are systemd's slices

	step func(call string) // called before each CRI call
}

func newKubelet(l *lab.Lab, c *lab.CRI) (*Kubelet, error) {
	k := &Kubelet{CRI: c, lab: l, above: l.CgroupParent(), step: func(string) {}, Options: kube.Options{CgroupVersion: 1}}
	if lab.Unified() {
		k.Options.CgroupVersion = 2
	}
	var err error
	if k.Options.MemTotalBytes, err = memTotal(); err != nil {
		return nil, err
	}
	if lab.Systemd() {
		k.above, k.Options.CgroupDriver = "", kube.Systemd
	}
	for _, class := range Classes {
		if !lab.Systemd() {
			err = lab.MakeCgroup(k.Class(class))
		} else if class == "besteffort" {
			err = startSlice(context.Background(), k.Class(class), "CPUWeight t 1")
		} else {
			err = startSlice(context.Background(), k.Class(class))
		}
		if err != nil {
			return nil, err
		}
	}
	return k, nil
}

// Classes are the QoS classes that have a cgroup; "" is the one of all pods.
var Classes = []string{"", "burstable", "besteffort"}

// Root is the cgroup of all pods.
func (k *Kubelet) Root() string { return k.Class("") }

// Class is the cgroup of a class.
func (k *Kubelet) Class(class string) string {
	if class == "" {
		return k.above + map[bool]string{false: "/kubepods", true: "/kubepods.slice"}[lab.Systemd()]
	}
	if lab.Systemd() {
		return k.Class("") + "/kubepods-" + class + ".slice"
	}
	return k.Class("") + "/" + class
}

// BeforeCalls has f called before each CRI call, with its name.
func (k *Kubelet) BeforeCalls(f func(call string)) { k.step = f }

// Pod is a pod that the kubelet made.
type Pod struct {
	Spec       *corev1.Pod
	Config     *runtimeapi.PodSandboxConfig
	SandboxID  string
	Cgroup     string // of the pod, an absolute path
	Containers []*Container

	attempts map[string]uint32 // of containers, by name: how many were made
}

// Container is a container of a Pod.
type Container struct {
	kube.Container
	ID     string
	Config *runtimeapi.ContainerConfig
}

// RunPod makes a pod with all its containers started. Init containers are started and left running like the others.
func (k *Kubelet) RunPod(ctx context.Context, spec *corev1.Pod) (*Pod, error) {
	p, err := k.RunSandbox(ctx, spec)
	if err != nil {
		return p, err
	}
	for _, c := range kube.Containers(spec, k.Options) {
		ctr, err := k.Create(ctx, p, c)
		if err != nil {
			return p, err
		}
		if err := k.StartContainer(ctx, ctr); err != nil {
			return p, err
		}
	}
	return p, nil
}

// RunSandbox makes the pod's cgroup and its sandbox.
func (k *Kubelet) RunSandbox(ctx context.Context, spec *corev1.Pod) (*Pod, error) {
	if spec.UID == "" {
		return nil, fmt.Errorf("pod %s/%s has no UID", spec.Namespace, spec.Name)
	}
	facts := kube.Pod(spec, k.Options)
	p := &Pod{Spec: spec, Cgroup: k.above + facts.CgroupParent}
	if err := k.makePodCgroup(ctx, p); err != nil {
		return p, err
	}
	return p, k.runSandbox(ctx, p, facts)
}

// RunSandboxAgain makes another sandbox of a pod whose last one was stopped, as the kubelet does where a pod is to go on.
func (k *Kubelet) RunSandboxAgain(ctx context.Context, p *Pod) error {
	p.Config.Metadata.Attempt++
	return k.runSandbox(ctx, p, kube.Pod(p.Spec, k.Options))
}

func (k *Kubelet) runSandbox(ctx context.Context, p *Pod, facts policy.Pod) error {
	spec, attempt := p.Spec, p.Config.GetMetadata().GetAttempt()
	logs := filepath.Join(k.lab.Dir(), "podlogs", string(spec.UID))
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	labels := map[string]string{cri.LabelPodName: spec.Name, cri.LabelPodNamespace: spec.Namespace, cri.LabelPodUID: string(spec.UID)}
	for key, v := range spec.Labels {
		labels[key] = v
	}
	p.Config = &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: spec.Name, Namespace: spec.Namespace, Uid: string(spec.UID), Attempt: attempt},
		LogDirectory: logs, Labels: labels, Annotations: spec.Annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: p.Cgroup, Resources: Resources(facts.Resources),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER}},
		},
	}
	k.step("RunPodSandbox")
	res, err := k.CRI.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.Config})
	if err != nil {
		return fmt.Errorf("run sandbox of pod %s: %w", spec.Name, err)
	}
	p.SandboxID = res.GetPodSandboxId()
	return nil
}

// makePodCgroup makes the pod's cgroup and writes what the kubelet writes there.
func (k *Kubelet) makePodCgroup(ctx context.Context, p *Pod) error {
	r := kube.PodResources(p.Spec, k.Options)
	if lab.Systemd() {
		if err := startSlice(ctx, p.Cgroup, properties(r)...); err != nil {
			return err
		}
	} else if err := lab.MakeCgroup(p.Cgroup); err != nil {
		return err
	}
	return k.writePod(p, r)
}

func (k *Kubelet) writePod(p *Pod, r policy.Resources) error {
	type file struct{ controller, name, value string }
	var files []file
	period := int64(100000)
	if r.CPUPeriod != nil {
		period = *r.CPUPeriod
	}
	if lab.Unified() {
		if r.CPUQuota != nil {
			files = append(files, file{"", "cpu.max", fmt.Sprintf("%d %d", *r.CPUQuota, period)})
		}
		if r.MemoryLimit != nil {
			files = append(files, file{"", "memory.max", strconv.FormatInt(*r.MemoryLimit, 10)})
		}
	} else {
		if r.CPUShares != nil {
			files = append(files, file{"cpu", "cpu.shares", strconv.FormatInt(*r.CPUShares, 10)})
		}
		if r.CPUQuota != nil {
			files = append(files, file{"cpu", "cpu.cfs_period_us", strconv.FormatInt(period, 10)}, file{"cpu", "cpu.cfs_quota_us", strconv.FormatInt(*r.CPUQuota, 10)})
		}
		if r.MemoryLimit != nil {
			files = append(files, file{"memory", "memory.limit_in_bytes", strconv.FormatInt(*r.MemoryLimit, 10)})
		}
	}
	for _, f := range files {
		if err := os.WriteFile(lab.CgroupFile(f.controller, p.Cgroup, f.name), []byte(f.value), 0); err != nil {
			return fmt.Errorf("write the pod's cgroup as the kubelet does: %w", err)
		}
	}
	return nil
}

// ResizePod writes the pod's cgroup anew as the kubelet does on a resize, after it has told the runtime.
func (k *Kubelet) ResizePod(ctx context.Context, p *Pod) error {
	r := kube.PodResources(p.Spec, k.Options)
	p.Config.Linux.Resources = Resources(kube.Pod(p.Spec, k.Options).Resources) // which comes with each creation from here on
	k.step("UpdatePodSandboxResources")
	if _, err := k.CRI.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: p.SandboxID, Resources: Resources(r),
	}); err != nil {
		return fmt.Errorf("update sandbox of pod %s: %w", p.Spec.Name, err)
	}
	if lab.Systemd() {
		if err := setSlice(ctx, p.Cgroup, properties(r)...); err != nil {
			return err
		}
	}
	return k.writePod(p, r)
}

// KeepClass sets the weight of a class, as the kubelet does for all of them once a minute.
func (k *Kubelet) KeepClass(ctx context.Context, class string, shares int64) error {
	r := policy.Resources{CPUShares: &shares}
	if lab.Systemd() {
		return setSlice(ctx, k.Class(class), properties(r)...)
	}
	return k.writePod(&Pod{Cgroup: k.Class(class)}, r)
}

// Resources is a CRI message that asks for r.
func Resources(r policy.Resources) *runtimeapi.LinuxContainerResources {
	v := func(p *int64) int64 {
		if p == nil {
			return 0
		}
		return *p
	}
	return &runtimeapi.LinuxContainerResources{
		CpuShares: v(r.CPUShares), CpuQuota: v(r.CPUQuota), CpuPeriod: v(r.CPUPeriod), CpusetCpus: r.CPUSetCPUs, CpusetMems: r.CPUSetMems,
		MemoryLimitInBytes: v(r.MemoryLimit), OomScoreAdj: v(r.OOMScoreAdj), Unified: r.Unified,
	}
}

// Create makes a container of the pod; another one of a name is its next attempt.
func (k *Kubelet) Create(ctx context.Context, p *Pod, c kube.Container) (*Container, error) {
	var spec *corev1.Container
	for _, list := range [][]corev1.Container{p.Spec.Spec.InitContainers, p.Spec.Spec.Containers} {
		for i := range list {
			if list[i].Name == c.Name {
				spec = &list[i]
			}
		}
	}
	if spec == nil {
		return nil, fmt.Errorf("pod %s has no container %s", p.Spec.Name, c.Name)
	}
	ctr := &Container{Container: c}
	ctr.Config = &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: p.attempts[c.Name]}, Image: &runtimeapi.ImageSpec{Image: spec.Image, UserSpecifiedImage: spec.Image},
		Command: spec.Command, Args: spec.Args, LogPath: c.Name + ".log",
		Labels: map[string]string{cri.LabelContainerName: c.Name, cri.LabelPodName: p.Spec.Name, cri.LabelPodNamespace: p.Spec.Namespace, cri.LabelPodUID: string(p.Spec.UID)},
		Linux: &runtimeapi.LinuxContainerConfig{Resources: Resources(c.Asked), SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: p.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
	}
	k.step("CreateContainer")
	res, err := k.CRI.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.SandboxID, Config: ctr.Config, SandboxConfig: p.Config})
	if err != nil {
		return nil, fmt.Errorf("create container %s/%s: %w", p.Spec.Name, c.Name, err)
	}
	ctr.ID = res.GetContainerId()
	if p.attempts == nil {
		p.attempts = map[string]uint32{}
	}
	p.attempts[c.Name]++
	p.Containers = append(p.Containers, ctr)
	return ctr, nil
}

// StartContainer starts a container.
func (k *Kubelet) StartContainer(ctx context.Context, c *Container) error {
	k.step("StartContainer")
	if _, err := k.CRI.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ID}); err != nil {
		return fmt.Errorf("start container %s: %w", c.Name, err)
	}
	return nil
}

// Update asks for other resources of a running container.
func (k *Kubelet) Update(ctx context.Context, c *Container, r policy.Resources) error {
	k.step("UpdateContainerResources")
	if _, err := k.CRI.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.ID, Linux: Resources(r)}); err != nil {
		return fmt.Errorf("update container %s: %w", c.Name, err)
	}
	return nil
}

// StopContainer ends a container at once.
func (k *Kubelet) StopContainer(ctx context.Context, c *Container) error {
	k.step("StopContainer")
	if _, err := k.CRI.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ID}); err != nil {
		return fmt.Errorf("stop container %s: %w", c.Name, err)
	}
	return nil
}

// RemoveContainer removes a container of a pod, and ends it where it runs.
func (k *Kubelet) RemoveContainer(ctx context.Context, p *Pod, c *Container) error {
	k.step("RemoveContainer")
	if _, err := k.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil {
		return fmt.Errorf("remove container %s: %w", c.Name, err)
	}
	p.Containers = slices.DeleteFunc(p.Containers, func(x *Container) bool { return x == c })
	return nil
}

// Stop ends a pod's containers and its sandbox: its processes are gone, and all else is there until it is removed.
func (k *Kubelet) Stop(ctx context.Context, p *Pod) error {
	for _, c := range p.Containers {
		if err := k.StopContainer(ctx, c); err != nil {
			return err
		}
	}
	k.step("StopPodSandbox")
	if _, err := k.CRI.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.SandboxID}); err != nil {
		return fmt.Errorf("stop sandbox of pod %s: %w", p.Spec.Name, err)
	}
	return nil
}

// Remove ends a pod and removes its cgroup.
func (k *Kubelet) Remove(ctx context.Context, p *Pod) error {
	if err := k.Stop(ctx, p); err != nil {
		return err
	}
	for len(p.Containers) > 0 {
		if err := k.RemoveContainer(ctx, p, p.Containers[0]); err != nil {
			return err
		}
	}
	k.step("RemovePodSandbox")
	if _, err := k.CRI.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.SandboxID}); err != nil {
		return fmt.Errorf("remove sandbox of pod %s: %w", p.Spec.Name, err)
	}
	return lab.RemoveCgroup(p.Cgroup)
}

func memTotal() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	var kib int64
	if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kib); err != nil {
		return 0, fmt.Errorf("read MemTotal: %w", err)
	}
	return kib * 1024, nil
}
