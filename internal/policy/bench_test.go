package policy_test

import (
	"testing"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
)

func BenchmarkDecide(b *testing.B) {
	reserved := v1alpha1.Default().Spec
	reserved.ReservedCPUs = "0-1"
	node := policy.Node{CgroupVersion: 2, Online: online(64)}
	be := policy.Pod{
		Namespace: "batch", Name: "sort-1", KubeQoS: v1alpha1.BestEffort,
		Labels:      map[string]string{"app": "sort", v1alpha1.LabelQoS: "BE"},
		Annotations: map[string]string{v1alpha1.AnnotationBatchResources: `{"containers":{"app":{"requests":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"2Gi"},"limits":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"2Gi"}}}}`},
	}
	ls := policy.Pod{
		Namespace: "shop", Name: "web-1", KubeQoS: v1alpha1.Burstable,
		Labels:      map[string]string{"app": "web", v1alpha1.LabelQoS: "LS"},
		Annotations: map[string]string{v1alpha1.AnnotationRequests: `{"containers":{"app":{"cpu":"500m","memory":"1Gi"}}}`},
	}
	none := policy.Pod{Namespace: "shop", Name: "web-1", KubeQoS: v1alpha1.Burstable, Labels: map[string]string{"app": "web"}}
	c := policy.Container{Name: "app", State: policy.Managed, Asked: policy.Resources{CPUShares: new(int64(2)), OOMScoreAdj: new(int64(1000))}}
	web := policy.Container{Name: "app", State: policy.Managed, Asked: policy.Resources{CPUShares: new(int64(512)), CPUQuota: new(int64(100000)), CPUPeriod: new(int64(100000))}}
	for _, x := range []struct {
		name string
		spec v1alpha1.QoSPolicySpec
		pod  policy.Pod
		c    policy.Container
	}{
		{"BE", v1alpha1.Default().Spec, be, c},
		{"BEReserved", reserved, be, c},
		{"LS", v1alpha1.Default().Spec, ls, web},
		{"None", v1alpha1.Default().Spec, none, web},
	} {
		p, err := policy.Compile(x.spec)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Container(node, x.pod, x.c)
			}
		})
	}
}
