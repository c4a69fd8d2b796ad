package kube_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/policy"
)

const gib = 1 << 30

// res builds resource lists from "cpu=1", "memory=1Gi", ...
func res(requests, limits map[corev1.ResourceName]string) corev1.ResourceRequirements {
	list := func(m map[corev1.ResourceName]string) corev1.ResourceList {
		if m == nil {
			return nil
		}
		out := corev1.ResourceList{}
		for k, v := range m {
			out[k] = resource.MustParse(v)
		}
		return out
	}
	return corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}
}

type rl = map[corev1.ResourceName]string

func ctr(name string, r corev1.ResourceRequirements) corev1.Container {
	return corev1.Container{Name: name, Resources: r}
}

func sidecar(name string, r corev1.ResourceRequirements) corev1.Container {
	c := ctr(name, r)
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	return c
}

func pod(cs ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{}
	p.UID = types.UID("11111111-2222-3333-4444-555555555555")
	for _, c := range cs {
		if c.RestartPolicy != nil {
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		} else {
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

func TestKubeQoS(t *testing.T) {
	t.Parallel()
	full := res(rl{"cpu": "1", "memory": "1Gi"}, rl{"cpu": "1", "memory": "1Gi"})
	podLevel := func(r corev1.ResourceRequirements, cs ...corev1.Container) *corev1.Pod {
		p := pod(cs...)
		p.Spec.Resources = &r
		return p
	}
	told := pod(ctr("a", full))
	told.Status.QOSClass = corev1.PodQOSBurstable
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		want v1alpha1.KubeQoS
	}{
		{"no containers", pod(), v1alpha1.BestEffort},
		{"nothing asked", pod(ctr("a", res(nil, nil))), v1alpha1.BestEffort},
		{"batch resources do not count", pod(ctr("a", res(nil, rl{"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "128Mi"}))), v1alpha1.BestEffort},
		{"zero is nothing", pod(ctr("a", res(rl{"cpu": "0"}, rl{"memory": "0"}))), v1alpha1.BestEffort},
		{"requests equal limits", pod(ctr("a", full)), v1alpha1.Guaranteed},
		{"limits alone become requests", pod(ctr("a", res(nil, rl{"cpu": "1", "memory": "1Gi"}))), v1alpha1.Guaranteed},
		{"written differently", pod(ctr("a", res(rl{"cpu": "1000m", "memory": "1Gi"}, rl{"cpu": "1", "memory": "1024Mi"}))), v1alpha1.Guaranteed},
		{"cpu alone", pod(ctr("a", res(rl{"cpu": "1"}, rl{"cpu": "1"}))), v1alpha1.Burstable},
		{"request below limit", pod(ctr("a", res(rl{"cpu": "1", "memory": "1Gi"}, rl{"cpu": "2", "memory": "1Gi"}))), v1alpha1.Burstable},
		{"one container of two", pod(ctr("a", full), ctr("b", res(nil, nil))), v1alpha1.Burstable},
		{"a sidecar counts", pod(ctr("a", full), sidecar("s", res(nil, nil))), v1alpha1.Burstable},
		{"pod level alone decides", podLevel(full, ctr("a", res(nil, nil))), v1alpha1.Guaranteed},
		{"pod level limits become requests", podLevel(res(nil, rl{"cpu": "1", "memory": "1Gi"}), ctr("a", res(nil, nil))), v1alpha1.Guaranteed},
		{"pod level requests come from containers first", podLevel(res(nil, rl{"cpu": "2", "memory": "2Gi"}), ctr("a", res(rl{"cpu": "1"}, nil))), v1alpha1.Burstable},
		{"empty pod level is not set", podLevel(res(nil, nil), ctr("a", full)), v1alpha1.Guaranteed},
		{"the status is believed", told, v1alpha1.Burstable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := kube.Pod(tc.pod, kube.Options{}).KubeQoS; got != tc.want {
				t.Errorf("KubeQoS = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestCgroupParent(t *testing.T) {
	t.Parallel()
	const uid = "11111111-2222-3333-4444-555555555555"
	guaranteed, burstable := res(rl{"cpu": "1", "memory": "1Gi"}, rl{"cpu": "1", "memory": "1Gi"}), res(rl{"cpu": "1"}, nil)
	unborn := pod(ctr("a", res(nil, nil)))
	unborn.UID = ""
	for _, tc := range []struct {
		name   string
		pod    *corev1.Pod
		driver kube.CgroupDriver
		want   string
	}{
		{"guaranteed", pod(ctr("a", guaranteed)), kube.Cgroupfs, "/kubepods/pod" + uid},
		{"burstable", pod(ctr("a", burstable)), kube.Cgroupfs, "/kubepods/burstable/pod" + uid},
		{"best effort", pod(ctr("a", res(nil, nil))), "", "/kubepods/besteffort/pod" + uid},
		{"no UID yet", unborn, kube.Cgroupfs, "/kubepods/besteffort/pod<uid>"},
		{"systemd guaranteed", pod(ctr("a", guaranteed)), kube.Systemd,
			"/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice"},
		{"systemd burstable", pod(ctr("a", burstable)), kube.Systemd,
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := kube.Pod(tc.pod, kube.Options{CgroupDriver: tc.driver}).CgroupParent; got != tc.want {
				t.Errorf("CgroupParent = %q, want %q", got, tc.want)
			}
		})
	}
}

// The wanted numbers are those of the formulas of kubelet 1.37.2 (pkg/kubelet/kuberuntime, pkg/kubelet/qos, pkg/kubelet/cm).
func TestContainers(t *testing.T) {
	t.Parallel()
	period := new(int64(100000))
	app := func(a policy.Resources) []kube.Container {
		return []kube.Container{{Kind: kube.App, Container: policy.Container{Name: "a", State: policy.Managed, Asked: a}}}
	}
	critical := pod(ctr("a", res(rl{"cpu": "100m"}, nil)))
	critical.Spec.PriorityClassName = "system-node-critical"
	notCritical := critical.DeepCopy()
	notCritical.Spec.Priority = new(int32(10))
	podLimit := pod(ctr("a", res(nil, nil)))
	podLimit.Spec.Resources = new(res(nil, rl{"cpu": "2", "memory": "2Gi"}))
	podRequest := pod(ctr("a", res(rl{"memory": "1Gi"}, nil)), ctr("b", res(nil, nil)))
	podRequest.Spec.Resources = new(res(rl{"memory": "4Gi"}, nil))
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		opts kube.Options
		want []kube.Container
	}{
		{"nothing asked", pod(ctr("a", res(nil, nil))), kube.Options{},
			app(policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period, OOMScoreAdj: new(int64(1000))})},
		{"guaranteed", pod(ctr("a", res(nil, rl{"cpu": "1", "memory": "64Mi"}))), kube.Options{},
			app(policy.Resources{CPUShares: new(int64(1024)), CPUQuota: new(int64(100000)), CPUPeriod: period, MemoryLimit: new(int64(64 << 20)), OOMScoreAdj: new(int64(-997))})},
		{"limit alone is the request", pod(ctr("a", res(nil, rl{"cpu": "500m"}))), kube.Options{MemTotalBytes: 16 * gib},
			app(policy.Resources{CPUShares: new(int64(512)), CPUQuota: new(int64(50000)), CPUPeriod: period, OOMScoreAdj: new(int64(999))})},
		{"request of zero is not the limit", pod(ctr("a", res(rl{"cpu": "0"}, rl{"cpu": "500m"}))), kube.Options{MemTotalBytes: 16 * gib},
			app(policy.Resources{CPUShares: new(int64(2)), CPUQuota: new(int64(50000)), CPUPeriod: period, OOMScoreAdj: new(int64(999))})},
		{"smallest shares and quota", pod(ctr("a", res(rl{"cpu": "1m"}, rl{"cpu": "1m"}))), kube.Options{MemTotalBytes: 16 * gib},
			app(policy.Resources{CPUShares: new(int64(2)), CPUQuota: new(int64(1000)), CPUPeriod: period, OOMScoreAdj: new(int64(999))})},
		{"largest shares", pod(ctr("a", res(rl{"cpu": "1000"}, nil))), kube.Options{MemTotalBytes: 16 * gib},
			app(policy.Resources{CPUShares: new(int64(262144)), CPUPeriod: period, OOMScoreAdj: new(int64(999))})},
		{"a quarter of memory", pod(ctr("a", res(rl{"memory": "4Gi"}, rl{"memory": "8Gi"}))), kube.Options{MemTotalBytes: 16 * gib},
			app(policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period, MemoryLimit: new(int64(8 * gib)), OOMScoreAdj: new(int64(750))})},
		{"all of memory", pod(ctr("a", res(rl{"memory": "16Gi"}, nil))), kube.Options{MemTotalBytes: 16 * gib},
			app(policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period, OOMScoreAdj: new(int64(3))})},
		{"memory of the node unknown", pod(ctr("a", res(rl{"memory": "1Gi"}, nil))), kube.Options{},
			app(policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period})},
		{"node critical", critical, kube.Options{MemTotalBytes: 16 * gib},
			app(policy.Resources{CPUShares: new(int64(102)), CPUPeriod: period, OOMScoreAdj: new(int64(-997))})},
		{"class without the priority", notCritical, kube.Options{MemTotalBytes: 16 * gib},
			app(policy.Resources{CPUShares: new(int64(102)), CPUPeriod: period, OOMScoreAdj: new(int64(999))})},
		{"limits of the pod", podLimit, kube.Options{MemTotalBytes: 16 * gib},
			app(policy.Resources{CPUShares: new(int64(2048)), CPUQuota: new(int64(200000)), CPUPeriod: period, MemoryLimit: new(int64(2 * gib)), OOMScoreAdj: new(int64(-997))})},
		{"spare request of the pod is shared", podRequest, kube.Options{MemTotalBytes: 16 * gib}, []kube.Container{
			{Kind: kube.App, Container: policy.Container{Name: "a", State: policy.Managed, // (1 + 3/2) of 16
				Asked: policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period, OOMScoreAdj: new(int64(844))}}},
			{Kind: kube.App, Container: policy.Container{Name: "b", State: policy.Managed, // 3/2 of 16
				Asked: policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period, OOMScoreAdj: new(int64(907))}}},
		}},
		{"sidecar is killed no sooner than its containers", pod(sidecar("s", res(rl{"memory": "1Gi"}, nil)), ctr("a", res(rl{"memory": "8Gi"}, nil)), ctr("b", res(rl{"memory": "4Gi"}, nil))),
			kube.Options{MemTotalBytes: 16 * gib}, []kube.Container{
				{Kind: kube.Sidecar, Container: policy.Container{Name: "s", State: policy.Managed,
					Asked: policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period, OOMScoreAdj: new(int64(750))}}},
				{Kind: kube.App, Container: policy.Container{Name: "a", State: policy.Managed,
					Asked: policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period, OOMScoreAdj: new(int64(500))}}},
				{Kind: kube.App, Container: policy.Container{Name: "b", State: policy.Managed,
					Asked: policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period, OOMScoreAdj: new(int64(750))}}},
			}},
		{"cgroup v2", pod(ctr("a", res(nil, nil))), kube.Options{CgroupVersion: 2},
			app(policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period, OOMScoreAdj: new(int64(1000)),
				Unified: map[string]string{"memory.min": "0", "memory.low": "0", "memory.swap.max": "0"}})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			before := tc.pod.DeepCopy()
			if diff := cmp.Diff(tc.want, kube.Containers(tc.pod, tc.opts)); diff != "" {
				t.Errorf("Containers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.pod); diff != "" {
				t.Errorf("the pod was changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestContainersOrder(t *testing.T) {
	t.Parallel()
	p := pod(ctr("app", res(nil, nil)))
	p.Spec.InitContainers = []corev1.Container{ctr("init", res(nil, nil)), sidecar("side", res(nil, nil))}
	var got []string
	for _, c := range kube.Containers(p, kube.Options{}) {
		got = append(got, string(c.Kind)+" "+c.Name)
	}
	if diff := cmp.Diff([]string{"init init", "sidecar side", "app app"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestPodResources(t *testing.T) {
	t.Parallel()
	period := new(int64(100000))
	initPod := pod(ctr("a", res(rl{"cpu": "1"}, rl{"cpu": "1"})), sidecar("s", res(rl{"cpu": "500m"}, rl{"cpu": "500m"})))
	initPod.Spec.InitContainers = append(initPod.Spec.InitContainers, ctr("i", res(rl{"cpu": "2"}, rl{"cpu": "2"})))
	overhead := pod(ctr("a", res(rl{"cpu": "1"}, nil)))
	overhead.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("1Gi")}
	podLevel := pod(ctr("a", res(rl{"cpu": "1"}, rl{"cpu": "1"})))
	podLevel.Spec.Resources = new(res(nil, rl{"memory": "1Gi"}))
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		want policy.Resources
	}{
		{"best effort", pod(ctr("a", res(nil, nil))), policy.Resources{CPUShares: new(int64(2))}},
		{"guaranteed", pod(ctr("a", res(nil, rl{"cpu": "1", "memory": "1Gi"})), ctr("b", res(nil, rl{"cpu": "500m", "memory": "1Gi"}))),
			policy.Resources{CPUShares: new(int64(1536)), CPUQuota: new(int64(150000)), CPUPeriod: period, MemoryLimit: new(int64(2 * gib))}},
		{"one container has no limit", pod(ctr("a", res(nil, rl{"cpu": "1"})), ctr("b", res(rl{"cpu": "1"}, nil))), policy.Resources{CPUShares: new(int64(2048))}},
		{"init container is larger", initPod, policy.Resources{CPUShares: new(int64(2560)), CPUQuota: new(int64(250000)), CPUPeriod: period}},
		{"overhead makes no limit", overhead, policy.Resources{CPUShares: new(int64(1280))}},
		{"pod level", podLevel, policy.Resources{CPUShares: new(int64(1024)), CPUQuota: new(int64(100000)), CPUPeriod: period, MemoryLimit: new(int64(gib))}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, kube.PodResources(tc.pod, kube.Options{})); diff != "" {
				t.Errorf("PodResources (-want +got):\n%s", diff)
			}
		})
	}
}

// What comes with the sandbox, by which pods of LSE and LSR are placed.
func TestSandboxResources(t *testing.T) {
	t.Parallel()
	period := new(int64(100000))
	both := func(cpu string) corev1.ResourceRequirements { return res(rl{"cpu": cpu}, rl{"cpu": cpu}) }
	roles := pod(ctr("a", both("1")), sidecar("s", both("500m")))
	roles.Spec.InitContainers = append(roles.Spec.InitContainers, ctr("i", both("2")))
	overhead := pod(ctr("a", both("1")))
	overhead.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("250m")}
	podLevel := pod(ctr("a", both("1")), ctr("b", res(nil, nil)))
	podLevel.Spec.Resources = new(both("3"))
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		want policy.Resources
	}{
		{"nothing", pod(ctr("a", res(nil, nil))), policy.Resources{CPUShares: new(int64(2)), CPUPeriod: period}},
		{"requests", pod(ctr("a", res(rl{"cpu": "1500m"}, nil)), ctr("b", res(rl{"cpu": "500m"}, nil))), policy.Resources{CPUShares: new(int64(2048)), CPUPeriod: period}},
		{"limits", pod(ctr("a", res(nil, rl{"cpu": "1500m", "memory": "1Gi"})), ctr("b", res(nil, rl{"cpu": "500m", "memory": "1Gi"}))),
			policy.Resources{CPUShares: new(int64(2048)), CPUQuota: new(int64(200000)), CPUPeriod: period, MemoryLimit: new(int64(2 * gib))}},
		{"an init container beside a sidecar is larger", roles, policy.Resources{CPUShares: new(int64(2560)), CPUQuota: new(int64(250000)), CPUPeriod: period}},
		{"overhead is not in it", overhead, policy.Resources{CPUShares: new(int64(1024)), CPUQuota: new(int64(100000)), CPUPeriod: period}},
		{"pod level", podLevel, policy.Resources{CPUShares: new(int64(3072)), CPUQuota: new(int64(300000)), CPUPeriod: period}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, kube.Pod(tc.pod, kube.Options{}).Resources); diff != "" {
				t.Errorf("Resources (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	batch := pod(ctr("a", res(nil, rl{"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "128Mi"})), sidecar("s", res(rl{"cpu": "100m"}, nil)))
	set := batch.DeepCopy()
	set.Annotations = map[string]string{v1alpha1.AnnotationBatchResources: "x", v1alpha1.AnnotationRequests: "y"}
	alias := batch.DeepCopy()
	alias.Annotations = map[string]string{v1alpha1.AliasKoordinatorBatch: "x"}
	const wantBatch = `{"containers":{"a":{"requests":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"128Mi"},"limits":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"128Mi"}}}}`
	const wantRequests = `{"containers":{"s":{"cpu":"100m"}}}`
	for _, tc := range []struct {
		name        string
		pod         *corev1.Pod
		changed     []string
		annotations map[string]string
	}{
		{"nothing asked", pod(ctr("a", res(nil, nil))), nil, nil},
		{"batch and requests", batch, []string{v1alpha1.AnnotationBatchResources, v1alpha1.AnnotationRequests},
			map[string]string{v1alpha1.AnnotationBatchResources: wantBatch, v1alpha1.AnnotationRequests: wantRequests}},
		{"set already", set, nil, set.DeepCopy().Annotations},
		{"Koordinator's form counts", alias, []string{v1alpha1.AnnotationRequests},
			map[string]string{v1alpha1.AliasKoordinatorBatch: "x", v1alpha1.AnnotationRequests: wantRequests}},
		{"limits become requests", pod(ctr("a", res(nil, rl{"cpu": "1", "memory": "64Mi"}))), []string{v1alpha1.AnnotationRequests},
			map[string]string{v1alpha1.AnnotationRequests: `{"containers":{"a":{"cpu":"1","memory":"64Mi"}}}`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			spec := tc.pod.Spec.DeepCopy()
			if diff := cmp.Diff(tc.changed, kube.Admit(tc.pod)); diff != "" {
				t.Errorf("changed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.annotations, tc.pod.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(spec, &tc.pod.Spec); diff != "" {
				t.Errorf("the spec was changed (-before +after):\n%s", diff)
			}
			if again := kube.Admit(tc.pod); again != nil {
				t.Errorf("a second Admit changed %v", again)
			}
			var b v1alpha1.BatchResources
			if v, ok := tc.pod.Annotations[v1alpha1.AnnotationBatchResources]; ok && v != "x" {
				if err := json.Unmarshal([]byte(v), &b); err != nil {
					t.Errorf("annotation does not parse: %v", err)
				}
			}
		})
	}
}
