package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// Explanation is the JSON of `tideline explain -f`. Fields are only ever added.
type Explanation struct {
	APIVersion string         `json:"apiVersion"` // "tideline.io/v1alpha1"
	Kind       string         `json:"kind"`       // "Explanation"
	Node       NodeSource     `json:"node"`
	Policy     PolicySource   `json:"policy"`
	Pods       []ExplainedPod `json:"pods"`
}

// NodeSource is the machine that the answer is for.
type NodeSource struct {
	Source        string `json:"source"` // "this machine", "generic", or a file
	Kernel        string `json:"kernel,omitempty"`
	CgroupVersion int    `json:"cgroupVersion"`
	CPUs          int    `json:"cpus"`
	MemTotalBytes int64  `json:"memTotalBytes,omitempty"`
	CgroupDriver  string `json:"cgroupDriver"`
	Why           string `json:"why,omitempty"` // why generic facts had to do
	node          policy.Node
	topology      placement.Topology
	reserved      cpuset.CPUSet // by the kubelet, where it is this machine's
}

// PolicySource is the policy that decided.
type PolicySource struct {
	Name     string `json:"name"`
	Source   string `json:"source"` // "built in" or a file
	untiered v1alpha1.Untiered
}

// ExplainedPod is one pod of a manifest.
type ExplainedPod struct {
	Origin       string            `json:"origin"` // "Pod demo/web", "Deployment shop/cart"
	Namespace    string            `json:"namespace"`
	Name         string            `json:"name"`
	KubeQoS      v1alpha1.KubeQoS  `json:"kubeQoS"`
	CgroupParent string            `json:"cgroupParent"` // "<uid>" stands for the UID that the API server gives
	Tier         v1alpha1.Tier     `json:"tier"`         // "" for none
	Source       policy.Source     `json:"source"`
	Admission    []string          `json:"admission,omitempty"` // annotations that are not in the manifest and that admission adds
	Placement    *ExplainedCPUs    `json:"placement,omitempty"` // of a pod of LSE or LSR, on a node where no other pod owns CPUs
	Pod          ExplainedCgroup   `json:"pod"`
	Containers   []ExplainedCgroup `json:"containers"`
}

// ExplainedCPUs is the CPUs that a pod would have for its own.
type ExplainedCPUs struct {
	CPUs        string `json:"cpus"`        // that it runs on
	Owned       string `json:"owned"`       // these, and siblings that are kept idle
	MemoryNodes string `json:"memoryNodes"` // "" for all
	idle        string // of Owned, those that are not in CPUs
}

// ExplainedCgroup is the pod's cgroup or that of a container.
type ExplainedCgroup struct {
	Name    string           `json:"name,omitempty"` // of the container
	Kind    kube.Kind        `json:"kind,omitempty"` // of the container
	Asked   policy.Resources `json:"asked"`          // by the kubelet; for the pod what it writes itself
	Knobs   []ExplainedKnob  `json:"knobs"`          // what is asked or decided, in the order of policy.Knobs
	Notes   []policy.Note    `json:"notes,omitempty"`
	Refusal *policy.Refusal  `json:"refusal,omitempty"`
}

// ExplainedKnob is one kernel setting.
type ExplainedKnob struct {
	Knob   policy.Knob `json:"knob"`
	Asked  string      `json:"asked,omitempty"`
	Value  string      `json:"value"`
	Ours   bool        `json:"ours"` // decided by us; else what the kubelet asks stands
	Rule   string      `json:"rule,omitempty"`
	Reason string      `json:"reason,omitempty"`
	Inert  string      `json:"inert,omitempty"`
}

// explainPod asks the policy what a node would do with a pod. Pod-level sums count the containers that run together:
// sidecars and the others, not the init containers, which are gone by then.
func explainPod(m manifest, p *policy.Policy, node NodeSource) ExplainedPod {
	opts := kube.Options{MemTotalBytes: node.MemTotalBytes, CgroupDriver: kube.CgroupDriver(node.CgroupDriver), CgroupVersion: node.CgroupVersion}
	object := m.pod.DeepCopy()
	tier, source, _ := p.Tier(kube.Pod(object, opts))
	out := ExplainedPod{Origin: m.origin, Namespace: object.Namespace, Name: object.Name, Tier: tier, Source: source, Containers: []ExplainedCgroup{}}
	if tier != v1alpha1.None { // a pod without a tier is left alone, by admission too
		out.Admission = kube.Admit(object)
	}
	pod := kube.Pod(object, opts)
	out.KubeQoS, out.CgroupParent = pod.KubeQoS, pod.CgroupParent
	empty, err := node.machine(p)
	if err == nil {
		node.node.Pools = policy.NewPools(empty.Pools(nil), node.node.Online, false)
	}
	if r, exclusive, unfit := p.Placing(pod); exclusive {
		r.UID = pod.Namespace + "/" + pod.Name // which a manifest does not have, and messages name
		var a placement.Assignment
		if err = cmp.Or(unfit, err); err == nil {
			a, err = empty.Place(nil, r)
		}
		if err != nil {
			pod.Placed = &policy.Placed{Why: err.Error()}
		} else {
			out.Placement = explainCPUs(a, node.topology)
			pod.Placed = &policy.Placed{CPUs: out.Placement.CPUs, Mems: out.Placement.MemoryNodes}
		}
	}
	var running []policy.Container
	for _, c := range kube.Containers(object, opts) {
		if c.Kind != kube.Init {
			running = append(running, c.Container)
		}
		e := explainCgroup(c.Asked, p.Container(node.node, pod, c.Container))
		e.Name, e.Kind = c.Name, c.Kind
		out.Containers = append(out.Containers, e)
	}
	out.Pod = explainCgroup(kube.PodResources(object, opts), p.Pod(node.node, pod, running))
	return out
}

// machine is the node without any pod that owns CPUs.
func (n NodeSource) machine(p *policy.Policy) (*placement.Machine, error) {
	limits := p.Limits()
	limits.Reserved = limits.Reserved.Union(n.reserved)
	return placement.New(n.topology, limits)
}

func explainCPUs(a placement.Assignment, t placement.Topology) *ExplainedCPUs {
	return &ExplainedCPUs{
		CPUs: units.FormatCPUs(a.CPUs), Owned: units.FormatCPUs(a.Owned), MemoryNodes: units.FormatCPUs(t.Restrict(a.Mems)),
		idle: units.FormatCPUs(a.Owned.Difference(a.CPUs)),
	}
}

// text says it as what it is, an example: on a real node the CPUs depend on the pods that are there.
func (c ExplainedCPUs) text() string {
	text := "CPUs of its own: " + c.CPUs
	if c.idle != "" {
		text += ", with siblings " + c.idle + " kept idle"
	}
	if c.MemoryNodes != "" {
		text += ", memory of node " + c.MemoryNodes
	}
	return text + " (on a node where no other pod owns CPUs)"
}

func explainCgroup(asked policy.Resources, d policy.Decision) ExplainedCgroup {
	out := ExplainedCgroup{Asked: asked, Knobs: []ExplainedKnob{}, Notes: d.Notes, Refusal: d.Refusal}
	for _, k := range policy.Knobs() {
		i := slices.IndexFunc(d.Settings, func(s policy.Setting) bool { return s.Knob == k })
		switch {
		case i >= 0:
			s := d.Settings[i]
			was := s.Asked
			if was == "" {
				was = asked.Value(k)
			}
			out.Knobs = append(out.Knobs, ExplainedKnob{Knob: k, Asked: was, Value: s.Value, Ours: true, Rule: s.Rule, Reason: s.Reason, Inert: s.Inert})
		case asked.Value(k) != "":
			out.Knobs = append(out.Knobs, ExplainedKnob{Knob: k, Asked: asked.Value(k), Value: asked.Value(k)})
		}
	}
	return out
}

// text writes an explanation for people.
func (e Explanation) text(width int) string {
	p := &page{width: width}
	p.labelled("node", 8, e.Node.describe())
	p.labelled("policy", 8, fmt.Sprintf("%s (%s)", dash(e.Policy.Name), e.Policy.Source))
	for _, pod := range e.Pods {
		p.WriteString("\n")
		pod.text(p, e.Policy.untiered)
	}
	return p.String()
}

func (n NodeSource) describe() string {
	parts := []string{plural(n.CPUs, "CPU", "CPUs")}
	if n.CgroupVersion > 0 {
		parts = append([]string{fmt.Sprintf("cgroup v%d", n.CgroupVersion)}, parts...)
	}
	if n.Kernel != "" {
		parts = append([]string{"Linux " + n.Kernel}, parts...)
	}
	if n.MemTotalBytes > 0 {
		parts = append(parts, fmt.Sprintf("%.1f GiB", float64(n.MemTotalBytes)/(1<<30)))
	}
	text := n.Source + ": " + strings.Join(parts, ", ")
	if n.Why != "" {
		text += "; " + n.Why
	}
	return text
}

// tierText says the tier and what decided it.
func tierText(t v1alpha1.Tier, s policy.Source, qos v1alpha1.KubeQoS, untiered v1alpha1.Untiered) string {
	if t == v1alpha1.None {
		text := fmt.Sprintf("tier: none (kube QoS %s): nothing of ours is written, the kubelet's values stand", dash(string(qos)))
		if untiered == v1alpha1.UntieredPool {
			text += "; it leaves the CPUs that pods of LSE and LSR own"
		}
		return text
	}
	text := "tier: " + string(t)
	switch s.Kind {
	case policy.FromLabel:
		text += fmt.Sprintf(" by label %s=%s", s.Key, s.Value)
	case policy.FromAlias:
		text += fmt.Sprintf(" by alias %s=%s", s.Key, s.Value)
	case policy.FromRule:
		text += fmt.Sprintf(" by rule %q of the policy", s.Rule)
	}
	return text + fmt.Sprintf(" (kube QoS %s)", dash(string(qos)))
}

func (e ExplainedPod) text(p *page, untiered v1alpha1.Untiered) {
	p.line(0, 2, e.Origin)
	p.line(2, 2, tierText(e.Tier, e.Source, e.KubeQoS, untiered))
	p.line(2, 2, "cgroup: "+e.CgroupParent)
	if len(e.Admission) > 0 {
		p.line(2, 2, "admission: adds "+strings.Join(e.Admission, ", ")+", not in the manifest")
	}
	if e.Placement != nil {
		p.line(2, 2, e.Placement.text())
	}
	common := e.commonNotes()
	if e.Pod.Refusal != nil {
		p.line(2, 2, fmt.Sprintf("refused: %s (%s)", e.Pod.Refusal.Message, e.Pod.Refusal.Key))
	}
	notes(p, 2, common)
	if e.Tier == v1alpha1.None {
		return
	}
	e.Pod.text(p, "pod cgroup", common)
	for _, c := range e.Containers {
		title := "container " + c.Name
		if c.Kind != kube.App {
			title = string(c.Kind) + " container " + c.Name
		}
		c.text(p, title, common)
	}
}

// commonNotes are the notes that stand in the pod's cgroup and in every container.
func (e ExplainedPod) commonNotes() []policy.Note {
	var out []policy.Note
	for _, n := range e.Pod.Notes {
		if !slices.ContainsFunc(e.Containers, func(c ExplainedCgroup) bool { return !slices.Contains(c.Notes, n) }) {
			out = append(out, n)
		}
	}
	return out
}

func (e ExplainedCgroup) text(p *page, title string, common []policy.Note) {
	p.WriteString("\n")
	p.line(2, 2, title)
	if e.Refusal != nil && len(e.Knobs) == 0 {
		return
	}
	kept := "as asked"
	if e.Name == "" {
		kept = "the kubelet's own"
	}
	var rows [][]string
	for _, k := range e.Knobs {
		why := kept
		if k.Knob == policy.CPUWeight && !k.Ours {
			why += ", in CPU shares"
		}
		if k.Ours {
			why = fmt.Sprintf("%s [%s]", k.Reason, k.Rule)
		}
		if k.Inert != "" {
			why += "; no effect here: " + k.Inert
		}
		rows = append(rows, []string{string(k.Knob), dash(k.Asked), k.Value, why})
	}
	p.table(4, []string{"KNOB", "ASKED", "VALUE", "WHY"}, rows)
	notes(p, 4, slices.DeleteFunc(slices.Clone(e.Notes), func(n policy.Note) bool { return slices.Contains(common, n) }))
}

func notes(p *page, indent int, list []policy.Note) {
	for _, n := range list {
		p.line(indent, 2, fmt.Sprintf("! %s: %s", n.Code, n.Message))
	}
}
