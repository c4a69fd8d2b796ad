package cri_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
)

func TestKubeQoS(t *testing.T) {
	t.Parallel()
	for parent, want := range map[string]v1alpha1.KubeQoS{
		"/kubepods/besteffort/pod1":        v1alpha1.BestEffort,
		"/kubepods/burstable/pod1":         v1alpha1.Burstable,
		"/kubepods/pod1":                   v1alpha1.Guaranteed,
		"/a/b/kubepods/pod1":               v1alpha1.Guaranteed,
		"kubepods-besteffort-pod1_2.slice": v1alpha1.BestEffort,
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice": v1alpha1.Burstable,
		"/kubepods.slice/kubepods-pod1_2.slice":                                    v1alpha1.Guaranteed,
		"":                                                                         v1alpha1.Unknown,
		"/kubepods":                                                                v1alpha1.Unknown,
		"/kubepods/other/pod1":                                                     v1alpha1.Unknown,
		"/system.slice":                                                            v1alpha1.Unknown,
		"/pod1":                                                                    v1alpha1.Unknown,
		"/kubepods/burstable/../pod1":                                              v1alpha1.Unknown,
		"/kubepods/..":                                                             v1alpha1.Unknown,
	} {
		if got := cri.KubeQoS(parent); got != want {
			t.Errorf("KubeQoS(%q) = %q, want %q", parent, got, want)
		}
	}
}

func TestNothingAsked(t *testing.T) {
	t.Parallel()
	for _, r := range []*runtimeapi.LinuxContainerResources{nil, {}} {
		if d := cmp.Diff(policy.Resources{}, cri.Resources(r)); d != "" {
			t.Error(d)
		}
	}
	if d := cmp.Diff(policy.Pod{KubeQoS: v1alpha1.Unknown}, cri.Pod(nil)); d != "" {
		t.Error(d)
	}
}

// A pod's CPUs are in its sandbox's resources; a list does not tell them.
func TestPodResources(t *testing.T) {
	t.Parallel()
	meta := &runtimeapi.PodSandboxMetadata{Uid: "u", Namespace: "n", Name: "p"}
	got := cri.Pod(&runtimeapi.PodSandboxConfig{Metadata: meta, Linux: &runtimeapi.LinuxPodSandboxConfig{
		Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2048, CpuQuota: 200000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 30, CpusetMems: "1"},
	}})
	want := policy.Resources{CPUShares: new(int64(2048)), CPUQuota: new(int64(200000)), CPUPeriod: new(int64(100000)), MemoryLimit: new(int64(1 << 30)), CPUSetMems: "1"}
	if d := cmp.Diff(want, got.Resources); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(policy.Pod{UID: "u", Namespace: "n", Name: "p"}, cri.ListedPod(&runtimeapi.PodSandbox{Metadata: meta})); d != "" {
		t.Error(d)
	}
}

// An update keeps what it does not name, and shares nothing with what was before.
func TestUpdated(t *testing.T) {
	t.Parallel()
	before := policy.Resources{CPUShares: new(int64(2)), CPUQuota: new(int64(1000)), CPUSetCPUs: "0", MemoryLimit: new(int64(5)), Unified: map[string]string{"a": "1", "b": "2"}}
	after := cri.Updated(before, policy.Resources{CPUQuota: new(int64(-1)), CPUSetMems: "1", Unified: map[string]string{"b": "3"}})
	want := policy.Resources{CPUShares: new(int64(2)), CPUQuota: new(int64(-1)), CPUSetCPUs: "0", CPUSetMems: "1", MemoryLimit: new(int64(5)), Unified: map[string]string{"a": "1", "b": "3"}}
	if d := cmp.Diff(want, after); d != "" {
		t.Error(d)
	}
	if before.Unified["b"] != "2" || *before.CPUQuota != 1000 {
		t.Errorf("before is %+v", before)
	}
	if d := cmp.Diff(before, cri.Updated(before, policy.Resources{})); d != "" {
		t.Error(d)
	}
}
