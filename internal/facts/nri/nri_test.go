package nri_test

import (
	"math"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"pgregory.net/rapid"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/facts/nri"
	"github.com/tideline-io/tideline/internal/facts/nri/nritest"
	"github.com/tideline-io/tideline/internal/policy"
)

func TestPod(t *testing.T) {
	t.Parallel()
	asked := &runtimeapi.LinuxContainerResources{CpuShares: 2048, CpuQuota: 200000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 30}
	labels, annotations := map[string]string{v1alpha1.LabelQoS: "BE"}, map[string]string{"a": "b"}
	want := cri.Pod(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u", Namespace: "n", Name: "p"}, Labels: labels, Annotations: annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/besteffort/podu", Resources: asked},
	})
	got := nri.Pod(&api.PodSandbox{Id: "s", Uid: "u", Namespace: "n", Name: "p", Labels: labels, Annotations: annotations,
		Linux: &api.LinuxPodSandbox{CgroupParent: "/kubepods/besteffort/podu", PodResources: nritest.Request(asked)}})
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if q := got.Resources.CPUQuota; q == nil || *q != 200000 {
		t.Errorf("the pod's resources are %+v", got.Resources)
	}
	if got.KubeQoS != v1alpha1.BestEffort {
		t.Errorf("KubeQoS is %q", got.KubeQoS)
	}
	if d := cmp.Diff(policy.Pod{KubeQoS: v1alpha1.Unknown}, nri.Pod(nil)); d != "" {
		t.Error(d)
	}
}

func TestAttempt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint32{"": 0, "0": 0, "7": 7, "4294967295": math.MaxUint32, "4294967296": 0, "-1": 0, "x": 0} {
		if got := nri.Attempt(&api.Container{Annotations: map[string]string{nri.AnnotationRestartCount: text}}); got != want {
			t.Errorf("Attempt(%q) = %d, want %d", text, got, want)
		}
	}
	if got := nri.Attempt(nil); got != 0 {
		t.Errorf("Attempt(nil) = %d", got)
	}
}

func TestNothingAsked(t *testing.T) {
	t.Parallel()
	for _, r := range []*api.LinuxResources{
		nil, {}, {Cpu: &api.LinuxCPU{}, Memory: &api.LinuxMemory{}},
		{Cpu: &api.LinuxCPU{Shares: api.UInt64(0), Quota: api.Int64(0), Period: api.UInt64(0)}, Memory: &api.LinuxMemory{Limit: api.Int64(0)}},
	} {
		for _, oom := range []*api.OptionalInt{nil, api.Int(0)} {
			if d := cmp.Diff(policy.Resources{}, nri.Resources(r, oom)); d != "" {
				t.Errorf("%v: %s", r, d)
			}
		}
		if d := cmp.Diff(policy.Resources{}, nri.Update(r)); d != "" {
			t.Errorf("%v: %s", r, d)
		}
	}
}

// The facts share no map with the message.
func TestUnifiedIsCopied(t *testing.T) {
	t.Parallel()
	r := &api.LinuxResources{Unified: map[string]string{"memory.low": "0"}}
	nri.Resources(r, nil).Unified["memory.low"] = "1"
	if r.Unified["memory.low"] != "0" {
		t.Errorf("the message says %v", r.Unified)
	}
}

var messages = []struct {
	name string
	res  *runtimeapi.LinuxContainerResources
}{
	{"none", nil},
	{"empty", &runtimeapi.LinuxContainerResources{}},
	{"Guaranteed, pinned", &runtimeapi.LinuxContainerResources{CpuShares: 2048, CpuQuota: 200000, CpuPeriod: 100000, CpusetCpus: "2-3", CpusetMems: "0", MemoryLimitInBytes: 4 << 30, OomScoreAdj: -997}},
	{"Burstable with memory QoS", &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000, OomScoreAdj: 968, Unified: map[string]string{
		"memory.low": "0", "memory.min": "0", "memory.high": "max", "memory.oom.group": "1"}}},
	{"BestEffort", &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 1000}},
	{"an OOM score of 0", &runtimeapi.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 0}},
	{"no quota, said so", &runtimeapi.LinuxContainerResources{CpuQuota: -1, CpuPeriod: 100000}},
	{"no memory limit, said so", &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: -1}},
	{"a swap limit of its own", &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 30, MemorySwapLimitInBytes: 2 << 30}},
	{"a swap limit alone", &runtimeapi.LinuxContainerResources{MemorySwapLimitInBytes: 2 << 30}},
	{"hugepages", &runtimeapi.LinuxContainerResources{HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}}}},
	{"a weight in unified", &runtimeapi.LinuxContainerResources{Unified: map[string]string{"cpu.weight": "50"}}},
	{"nonsense", &runtimeapi.LinuxContainerResources{CpuShares: -5, CpuQuota: -7, CpuPeriod: -9, CpusetCpus: "x", OomScoreAdj: 5000, MemoryLimitInBytes: math.MinInt64}},
}

// Both doors give policy the same facts, at creation and in an update.
func TestSameAsCRI(t *testing.T) {
	t.Parallel()
	for _, m := range messages {
		t.Run(m.name, func(t *testing.T) { same(t, m.res) })
	}
	t.Run("any", rapid.MakeCheck(func(t *rapid.T) {
		i64 := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64())
		text := rapid.SampledFrom([]string{"", "0-3", "x"})
		r := &runtimeapi.LinuxContainerResources{
			CpuShares: i64.Draw(t, "shares"), CpuQuota: i64.Draw(t, "quota"), CpuPeriod: i64.Draw(t, "period"), CpusetCpus: text.Draw(t, "cpus"), CpusetMems: text.Draw(t, "mems"),
			MemoryLimitInBytes: i64.Draw(t, "limit"), MemorySwapLimitInBytes: i64.Draw(t, "swap"), OomScoreAdj: i64.Draw(t, "oom"),
		}
		if u := rapid.MapOf(rapid.SampledFrom([]string{"memory.low", "cpu.weight", "cpu.idle"}), rapid.SampledFrom([]string{"0", "1", ""})).Draw(t, "unified"); len(u) > 0 {
			r.Unified = u // the wire makes no difference between none and an empty map
		}
		same(t, r)
	}))
}

type failer interface {
	Helper()
	Errorf(string, ...any)
}

func same(t failer, r *runtimeapi.LinuxContainerResources) {
	t.Helper()
	want := cri.Resources(r)
	l := nritest.Container("c", nritest.Create(r), nil).Linux
	if d := cmp.Diff(want, nri.Resources(l.Resources, l.OomScoreAdj)); d != "" {
		t.Errorf("created with %v (-cri +nri):\n%s", r, d)
	}
	want.OOMScoreAdj = nil // not in the request; no runtime takes it
	if d := cmp.Diff(want, nri.Update(nritest.Request(r))); d != "" {
		t.Errorf("updated with %v (-cri +nri):\n%s", r, d)
	}
}
