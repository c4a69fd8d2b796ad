package doors

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/policy"
)

// Doors that are compared with the CRI door.
const (
	nriName     = "nri"
	explainName = "explain"
	noneName    = "none" // no door: ContainerStatus alone is compared, which the CRI door makes look like that
)

// finding is one value that a door has otherwise than the CRI door.
type finding struct {
	c         *testCase
	door      string
	step      string // "" for the creation, else the name of the update
	container string // "" for the pod
	key       string // within the container or the pod
	cri, has  string // "" where there is none
	asks      []asks // what the node has added to this container so far
}

// difference is a row of the table: what a protocol can't carry, and why.
type difference struct {
	id, door  string
	what      string
	cri, here string
	why       string
	is        func(finding) bool
	known     bool // no protocol is the reason: a disagreement of ours that is not yet resolved
}

// under says whether the key begins with one of the prefixes.
func (f finding) under(prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(f.key, p) })
}

// column is what a row calls the column that is compared with the CRI door's.
func column(door string) string {
	return map[string]string{nriName: "NRI", explainName: "`explain -f`", noneName: "without Tideline"}[door]
}

// ofKnob says whether the finding is about one of the knobs: what was asked, decided, or ends in the spec.
func (f finding) ofKnob(ks []policy.Knob) bool {
	key := f.key
	switch {
	case f.under("asked.", "oci.", "set.", "files."):
		_, key, _ = strings.Cut(key, ".")
	case f.under("note."):
		key = strings.SplitN(key, ".", 3)[2]
	default:
		return false
	}
	key = strings.TrimPrefix(key, "unified.")
	if k, ok := knobs[key]; ok {
		key = string(k)
	}
	return slices.Contains(ks, policy.Knob(key)) || strings.HasPrefix(key, "hugetlb.") && slices.Contains(ks, "hugetlb")
}

// added are the knobs of the container that the node has asked for beside the manifest.
func (f finding) added() []policy.Knob {
	var out []policy.Knob
	for _, a := range f.asks {
		out = append(out, a.knobs()...)
	}
	return out
}

// mapKey is the key of a label or annotation.
func (f finding) mapKey(of string) string {
	k, ok := strings.CutPrefix(f.key, of+"[")
	if !ok {
		return ""
	}
	return strings.TrimSuffix(k, "]")
}

// differences is the whole of what may differ. The test fails for a difference that is not here, and for one that is
// here and no case shows. The first that fits counts.
var differences = []difference{
	// What NRI can't carry.
	{id: "unset-weight", door: nriName, what: "a CPU weight that is unset (BE with cpu.idle)",
		cri: "no `shares` in the OCI spec", here: "`shares: 0`",
		why: "NRI can set a field, not take it out; runc takes both for \"leave the weight alone\"",
		is:  func(f finding) bool { return f.key == "oci.cpu.shares" && f.cri == "" && f.has == "0" }},
	{id: "status", door: nriName, what: "ContainerStatus after an update",
		cri: "what the kubelet asked", here: "the runtime's values",
		why: "NRI has no hook there. After the creation containerd still shows what was asked, since it keeps the spec from before NRI",
		is:  func(f finding) bool { return f.under("shown.") && f.step != "" }},
	{id: "status-swap", door: nriName, known: true, what: "the swap limit in ContainerStatus where we set the memory limit and the kubelet asks a swap limit",
		cri: "the asked memory limit", here: "the asked swap limit", why: "the facts hold no swap limit, so that the CRI door can't put it back. Kubelet 1.37 sends none but the memory limit",
		is: func(f finding) bool { return f.step == "" && f.key == "shown.memory.swap" }},
	{id: "refusal-code", door: nriName, what: "the refusal of a creation",
		cri: "gRPC status FailedPrecondition", here: "an error without a code, which the kubelet sees as Unknown",
		why: "NRI's errors carry a text; it is the same in both",
		is: func(f finding) bool {
			return f.key == "answer" && strings.HasPrefix(f.cri, "refused") && strings.HasPrefix(f.has, "refused")
		}},
	{id: "birth-place", door: nriName, what: "where the annotation `tideline.io/decision` is",
		cri: "in the container's CRI annotations; lists show it", here: "in the OCI spec; the verbose ContainerStatus alone shows it",
		why: "a plugin adjusts the OCI spec and not the message", is: func(f finding) bool { return f.key == "birth.in" }},
	{id: "kind-label", door: nriName, what: "the pod's label `io.cri-containerd.kind`",
		cri: "the pod's own, if any", here: "`sandbox`", why: "containerd announces its own labels with the pod's",
		is: func(f finding) bool { return f.mapKey("labels") == labelKind }},
	{id: "pause-labels", door: nriName, what: "labels of the pause image",
		cri: "not seen", here: "labels of the pod, where it has none of that name", why: "containerd merges them. A tier label on that image would be every pod's tier",
		is: func(f finding) bool { _, ok := f.c.Kubelet.PauseLabels[f.mapKey("labels")]; return ok && f.cri == "" }},
	{id: "runtime-annotations", door: nriName, what: "the pod's annotations `io.kubernetes.cri.*`",
		cri: "the pod's own, if any", here: "containerd's", why: "containerd announces the annotations of its OCI spec over the pod's",
		is: func(f finding) bool { return strings.HasPrefix(f.mapKey("annotations"), containerdsOwn) }},
	{id: "update-oom", door: nriName, what: "the kubelet's oom_score_adj in an update",
		cri: "seen", here: "not seen; that of the creation counts", why: "it is not in NRI's message. No runtime changes it in an update",
		is: func(f finding) bool {
			return f.step != "" && f.ofKnob([]policy.Knob{policy.OOMScoreAdj}) && !f.under("oci.")
		}},
	{id: "update-swap", door: nriName, what: "the kubelet's swap limit in an update that we change",
		cri: "kept", here: "lost; the runtime uses the memory limit for both", why: "it is not in NRI's message, and containerd goes on with the answer. Kubelet 1.37 sends none but the memory limit",
		is: func(f finding) bool { return f.step != "" && f.key == "oci.memory.swap" }},
	{id: "unified-weight", door: nriName, what: "a unified cpu.weight that the kubelet asks of a BE container",
		cri: "taken out", here: "the container starts unmodified, counted as missed",
		why: "NRI can add and replace unified keys, not take them out, and the kernel refuses cpu.idle beside it. Kubelet 1.37 sends none",
		is: func(f finding) bool {
			return f.under("oci.", "birth", "files.", "shown.", "set.", "note.") && asksUnified(f, policy.CPUWeight)
		}},

	{id: "io-priority", door: nriName, what: "the I/O priority (BE)",
		cri: "not decided; a note says so", here: "set at the creation, with the birth record telling so",
		why: "CRI has no field for it, and no cgroup file holds it", is: func(f finding) bool {
			return f.ofKnob([]policy.Knob{policy.IOPriority}) || f.key == "birth" && f.cri == bornWithout(f.has, policy.IOPriority)
		}},
	{id: "no-resources", door: nriName, what: "oom_score_adj of a container that is created without any resources",
		cri: "0, where we set something else", here: "none, so runc leaves it as inherited", why: "CRI's message has no way to ask for none. A kubelet always sends resources",
		is: func(f finding) bool {
			return f.key == "oci.oom_score_adj" && f.cri == "0" && f.has == "" && f.nothing()
		}},

	// What a manifest does not tell.
	{id: "which-door", door: explainName, what: "the I/O priority (BE)", cri: "not decided; a note says so", here: "told, as set through the NRI door alone",
		why: "a manifest does not tell which door a node has", is: func(f finding) bool { return f.ofKnob([]policy.Knob{policy.IOPriority}) }},
	{id: "kubelet-labels", door: explainName, what: "labels `io.kubernetes.pod.*`", cri: "seen", here: "not seen",
		why: "the kubelet adds them to the sandbox. A rule of the policy on them matches in the doors alone", is: func(f finding) bool { return strings.HasPrefix(f.mapKey("labels"), "io.kubernetes.pod.") }},
	{id: "kubelet-annotations", door: explainName, what: "annotations `kubernetes.io/config.*`", cri: "seen", here: "not seen",
		why: "the kubelet adds them", is: func(f finding) bool { return strings.HasPrefix(f.mapKey("annotations"), "kubernetes.io/config.") }},
	{id: "uid", door: explainName, what: "the pod's UID, and its place in the cgroup's name", cri: "seen", here: "`<uid>`",
		why: "the API server gives it", is: func(f finding) bool {
			return f.key == "uid" || f.key == "cgroupParent" && f.c.Kubelet.CgroupParent == nil
		}},
	{id: "parent", door: explainName, what: "a cgroup parent unlike the kubelet's", cri: "as sent; the QoS class is read from it", here: "as a kubelet names it",
		why: "a manifest has no parent", is: func(f finding) bool {
			return f.c.Kubelet.CgroupParent != nil && (f.key == "cgroupParent" || f.key == "kubeQoS")
		}},
	{id: "node-adds", door: explainName, what: "what the node adds: CPU manager, memory reservation policy, swap, huge pages, a client that is no kubelet", cri: "seen", here: "not seen",
		why: "a manifest does not tell it", is: func(f finding) bool { return f.ofKnob(f.added()) }},
	{id: "no-admission", door: explainName, what: "annotations that admission adds, in a cluster without its policies", cri: "not there", here: "explained with them, and said so",
		why: "explain shows what the pod will get with admission", is: func(f finding) bool {
			return f.c.Admission == "off" && strings.HasPrefix(f.mapKey("annotations"), "tideline.io/")
		}},
	{id: "stored-oom", door: explainName, what: "oom_score_adj of a running container whose resources change", cri: "that of its creation stays", here: "that of a new container",
		why: "no update changes it", is: func(f finding) bool { return f.step != "" && f.ofKnob([]policy.Knob{policy.OOMScoreAdj}) }},
	{id: "no-identity", door: explainName, what: "a pod or a container without an identity (a client that is no kubelet)", cri: "passes undecided; LSE and LSR of our own label are refused", here: "explained as any other",
		why: "the API server gives the UID", is: func(f finding) bool { return f.c.Kubelet.NoUID && f.key == "tier" }},
	{id: "ended-init", door: explainName, known: true, what: "sums of the pod's own cgroup while an init container that has ended is not removed", cri: "counted", here: "left out",
		why: "the engine hears of removals, not of ends, and a kubelet keeps ended init containers", is: func(f finding) bool {
			return f.c.Kubelet.KeepsInit && f.container == "" && f.under("set.", "note.")
		}},
	{id: "attempt", door: explainName, what: "restarts", cri: "seen", here: "not seen", why: "a manifest has none",
		is: func(f finding) bool { return f.key == "attempt" }},

	// What the CRI door shows the kubelet otherwise than a runtime without Tideline.
	{id: "shown-oom", door: noneName, known: true, what: "oom_score_adj in ContainerStatus after a resize, where we set it at the creation or would now",
		cri: "the newest that was asked", here: "that of the creation", why: "what was asked is merged over updates, and runtimes drop this field of an update. The kubelet does not read it",
		is: func(f finding) bool { return f.key == "shown.oom_score_adj" && f.step != "" }},
	{id: "shown-swap", door: noneName, known: true, what: "the swap limit in ContainerStatus where we set the memory limit and the kubelet asks a swap limit",
		cri: "the asked memory limit", here: "the asked swap limit", why: "the facts hold no swap limit. Kubelet 1.37 sends none but the memory limit", is: func(f finding) bool { return f.key == "shown.memory.swap" }},
	{id: "shown-weight", door: noneName, known: true, what: "a unified cpu.weight in ContainerStatus, asked of a BE container", cri: "gone", here: "shown",
		why: "it is taken out with the shares, and only those are put back. Kubelet 1.37 sends none", is: func(f finding) bool { return f.key == "shown.unified.cpu.weight" }},
}

// bornWithout is a birth record without one of its knobs.
func bornWithout(birth string, k policy.Knob) string {
	var b engine.Birth
	if err := json.Unmarshal([]byte(birth), &b); err != nil {
		return err.Error()
	}
	delete(b.Set, string(k))
	out, err := json.Marshal(b)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// nothing says whether the container was asked for without resources.
func (f finding) nothing() bool {
	return slices.ContainsFunc(f.asks, func(a asks) bool { return a.Nothing })
}

// asksUnified says whether the node asks a unified key.
func asksUnified(f finding, k policy.Knob) bool {
	return slices.ContainsFunc(f.asks, func(a asks) bool { _, ok := a.Unified[string(k)]; return ok })
}

// find gives the place of a difference in the list.
func find(id string) int {
	return slices.IndexFunc(differences, func(d difference) bool { return d.id == id })
}

// follows says whether a finding is a consequence that the case declares.
func (f finding) follows() bool {
	return f.c.Because[f.door] != "" && f.under("tier", "source", "set.", "note.", "refusal", "oci.", "files.", "shown.", "birth", "answer", "annotations[tideline.io/")
}
