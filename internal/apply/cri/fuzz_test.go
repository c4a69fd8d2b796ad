package cri_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/apply/cri"
	facts "github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
)

// FuzzCreate goes from a message to a decision and back into the message.
func FuzzCreate(f *testing.F) {
	p, err := policy.Compile(v1alpha1.Default().Spec)
	if err != nil {
		f.Fatal(err)
	}
	var placed *policy.Placed // of the pods that are added next
	add := func(edit func(*runtimeapi.CreateContainerRequest)) {
		r := &runtimeapi.CreateContainerRequest{
			PodSandboxId: "s",
			Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "app"}, Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{
				CpuShares: 2, CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 1 << 30, OomScoreAdj: 1000, CpusetCpus: "0-1", Unified: map[string]string{"memory.low": "0", "memory.min": "0"},
			}}},
			SandboxConfig: &runtimeapi.PodSandboxConfig{
				Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u", Namespace: "n", Name: "p"},
				Labels:   map[string]string{v1alpha1.LabelQoS: "BE"},
				Annotations: map[string]string{
					v1alpha1.AnnotationBatchResources: `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"2Gi"}}}}`,
					v1alpha1.AnnotationRequests:       `{"containers":{"app":{"cpu":"1","memory":"1Gi"}}}`,
				},
				Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/besteffort/podu"},
			},
		}
		edit(r)
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		cpus, mems := "", ""
		if placed != nil {
			cpus, mems = placed.CPUs, placed.Mems
		}
		f.Add(b, true, cpus, mems)
		f.Add(b, false, cpus, mems)
	}
	add(func(*runtimeapi.CreateContainerRequest) {})
	for _, tier := range []string{"LSE", "LSR", "LS", "SYSTEM", "odd"} {
		add(func(r *runtimeapi.CreateContainerRequest) { r.SandboxConfig.Labels[v1alpha1.LabelQoS] = tier })
	}
	add(func(r *runtimeapi.CreateContainerRequest) { r.SandboxConfig = nil })
	add(func(r *runtimeapi.CreateContainerRequest) { r.Config = nil })
	add(func(r *runtimeapi.CreateContainerRequest) { r.Config.Linux = nil })
	add(func(r *runtimeapi.CreateContainerRequest) {
		x := r.Config.Linux.Resources
		x.CpuShares, x.CpuQuota, x.CpuPeriod, x.MemoryLimitInBytes, x.OomScoreAdj = -1<<63, -5, 1<<62, 1<<63-1, -1<<63
	})
	placed = &policy.Placed{CPUs: "2-3", Mems: "1"}
	for _, tier := range []string{"LSE", "LSR"} {
		add(func(r *runtimeapi.CreateContainerRequest) {
			r.SandboxConfig.Labels[v1alpha1.LabelQoS], r.SandboxConfig.Annotations = tier, nil
		})
		add(func(r *runtimeapi.CreateContainerRequest) {
			r.SandboxConfig.Labels[v1alpha1.LabelQoS], r.SandboxConfig.Annotations = tier, nil
			r.Config.Linux.Resources.CpusetMems = "0-1"
		})
	}
	f.Fuzz(func(t *testing.T, msg []byte, v2 bool, cpus, mems string) {
		var req runtimeapi.CreateContainerRequest
		if proto.Unmarshal(msg, &req) != nil {
			return
		}
		node := policy.Node{CgroupVersion: 1, Online: cpuset.New(0, 1, 2, 3), Devices: []policy.Device{{Name: "vda", Number: "254:0"}}}
		if v2 {
			node.CgroupVersion = 2
		}
		before := proto.Clone(&req)
		pod := facts.Pod(req.GetSandboxConfig())
		if cpus != "" {
			pod.Placed = &policy.Placed{CPUs: cpus, Mems: mems}
		}
		ctr := policy.Container{Name: req.GetConfig().GetMetadata().GetName(), State: policy.Managed, Asked: facts.Resources(req.GetConfig().GetLinux().GetResources())}
		d := p.Container(node, pod, ctr)
		if diff := cmp.Diff(d, p.Container(node, pod, ctr)); diff != "" {
			t.Errorf("not deterministic:\n%s", diff)
		}
		if diff := cmp.Diff(before, proto.Message(&req), protocmp.Transform()); diff != "" {
			t.Fatalf("deciding changed the message:\n%s", diff)
		}
		if (d.Tier == v1alpha1.None || d.Refusal != nil) && len(d.Settings) > 0 {
			t.Errorf("settings without a tier: %+v", d)
		}
		res := req.GetConfig().GetLinux().GetResources()
		if res == nil {
			res = &runtimeapi.LinuxContainerResources{}
		}
		asked := proto.CloneOf(res)
		rest, err := cri.Apply(d.Settings, node.CgroupVersion, res)
		if err != nil {
			return // a period that no kernel takes: the message passes as it came
		}
		for _, s := range rest {
			if cri.Carries(node.CgroupVersion, s.Knob) {
				t.Errorf("%s is left over", s.Knob)
			}
		}
		if !v2 && len(res.Unified) > len(asked.Unified) {
			t.Errorf("unified on v1: %v", res.Unified)
		}
		if len(d.Settings) == 0 {
			if diff := cmp.Diff(asked, res, protocmp.Transform()); diff != "" {
				t.Errorf("nothing was decided, and changed:\n%s", diff)
			}
		}
		once := proto.CloneOf(res)
		if _, err := cri.Apply(d.Settings, node.CgroupVersion, res); err != nil {
			t.Errorf("applied twice: %v", err)
		}
		if diff := cmp.Diff(once, res, protocmp.Transform()); diff != "" {
			t.Errorf("applied twice:\n%s", diff)
		}
		// What the kubelet asked, as far as it is ours to say, is what it is shown.
		cri.Restore(d.Settings, ctr.Asked, res)
		for _, x := range []struct{ got, want int64 }{
			{res.CpuShares, asked.CpuShares}, {res.OomScoreAdj, asked.OomScoreAdj}, {res.MemoryLimitInBytes, asked.MemoryLimitInBytes}, {res.CpuQuota, asked.CpuQuota},
		} {
			if x.got != x.want {
				t.Errorf("shown %v, asked %v", res, asked)
			}
		}
		if res.CpusetCpus != asked.CpusetCpus || res.CpusetMems != asked.CpusetMems {
			t.Errorf("shown CPUs %q and nodes %q, asked %q and %q", res.CpusetCpus, res.CpusetMems, asked.CpusetCpus, asked.CpusetMems)
		}
	})
}

// Memory nodes have a field of their own on both cgroup versions.
func TestMemoryNodes(t *testing.T) {
	t.Parallel()
	settings := []policy.Setting{{Knob: policy.CPUSetMems, Level: policy.LevelContainer, Value: "1"}}
	for _, version := range []int{1, 2} {
		for _, asked := range []string{"", "0-1"} {
			res := &runtimeapi.LinuxContainerResources{CpusetMems: asked}
			rest, err := cri.Apply(settings, version, res)
			if want := (&runtimeapi.LinuxContainerResources{CpusetMems: "1"}); err != nil || len(rest) > 0 || !proto.Equal(want, res) {
				t.Errorf("cgroup v%d: %v, left over %v, %v", version, res, rest, err)
			}
			if !cri.Carries(version, policy.CPUSetMems) {
				t.Errorf("cgroup v%d: not carried", version)
			}
			cri.Restore(settings, policy.Resources{CPUSetMems: asked}, res)
			if res.CpusetMems != asked {
				t.Errorf("cgroup v%d: shown %q, asked %q", version, res.CpusetMems, asked)
			}
		}
	}
}
