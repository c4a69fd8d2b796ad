package doors

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/facts/nri/nritest"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
)

// explained is what `tideline explain -f` says of a pod, in the order of explainPod in cmd/tideline: of each container,
// and under "pod." of the pod.
type explained struct {
	containers map[string]flat
	pod        flat
}

func explain(t testing.TB, manifest *corev1.Pod, p *policy.Policy, n policy.Node, opts kube.Options) explained {
	t.Helper()
	object := manifest.DeepCopy()
	if tier, _, _ := p.Tier(kube.Pod(object, opts)); tier != v1alpha1.None {
		kube.Admit(object)
	}
	pod := kube.Pod(object, opts)
	m, err := placement.New(topology(n), p.Limits())
	if err != nil {
		t.Fatal(err)
	}
	n.Pools = policy.NewPools(m.Pools(nil), n.Online, false)
	if r, exclusive, err := p.Placing(pod); exclusive {
		var a placement.Assignment
		if err == nil {
			a, err = m.Place(nil, r)
		}
		if pod.Placed = (&policy.Placed{CPUs: a.CPUs.String()}); err != nil {
			pod.Placed = &policy.Placed{Why: err.Error()}
		}
	}
	out := explained{containers: map[string]flat{}, pod: flat{}}
	var running []policy.Container
	for _, c := range kube.Containers(object, opts) {
		if c.Kind != kube.Init {
			running = append(running, c.Container)
		}
		d := p.Container(n, pod, c.Container)
		f := decision(d)
		f.add("", resources("asked.", c.Asked))
		if d.Refusal == nil {
			spec, rest := wanted(t, c.Asked, d, n.CgroupVersion)
			f.add("oci.", oci(spec))
			f.add("files.", files(rest))
		}
		out.containers[c.Name] = f
	}
	out.pod.add("pod.", podFacts(pod))
	out.pod.add("pod.", decision(p.Pod(n, pod, running)))
	return out
}

// wanted is the OCI spec of what explain prints: what is asked, under what is decided.
func wanted(t testing.TB, asked policy.Resources, d policy.Decision, version int) (*specs.Spec, []policy.Setting) {
	t.Helper()
	res := asking(asked)
	rest, err := cri.Apply(d.Settings, version, res)
	if err != nil {
		t.Fatal(err)
	}
	return nritest.Create(res), rest
}
