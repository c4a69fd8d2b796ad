package doors

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	applycri "github.com/tideline-io/tideline/internal/apply/cri"
	applynri "github.com/tideline-io/tideline/internal/apply/nri"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/engine/enginetest"
	factscri "github.com/tideline-io/tideline/internal/facts/cri"
	factsnri "github.com/tideline-io/tideline/internal/facts/nri"
	"github.com/tideline-io/tideline/internal/facts/nri/nritest"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
)

// door is a door with its engine, and the runtime behind it.
type door interface {
	// sandbox is RunPodSandbox.
	sandbox(*runtimeapi.PodSandboxConfig)
	// create is CreateContainer; it tells what came of it, without the container's name.
	create(*runtimeapi.ContainerConfig) flat
	// update is UpdateContainerResources.
	update(message) flat
	// resizing is UpdatePodSandboxResources.
	resizing(*runtimeapi.LinuxContainerResources)
	// finished is RemoveContainer.
	finished(name string)
	// pod is the decision on the pod's own cgroup.
	pod() flat
	spec(container string) *specs.Spec
}

// host is what both doors have.
type host struct {
	t       testing.TB
	e       *engine.Engine
	rt      *enginetest.Runtime
	version int
	facts   policy.Pod
	specs   map[string]*specs.Spec // what the runtime stores, by container
}

const sandboxID = "s000000000000000000000000000000000000000000000000000000000000000"

func newHost(t testing.TB, node policy.Node, p *policy.Policy, carries func(int, policy.Knob) bool) *host {
	t.Helper()
	layout := cgrouptest.V2
	if node.CgroupVersion == 1 {
		layout = cgrouptest.V1
	}
	k, err := cgrouptest.New(t.TempDir(), layout)
	if err != nil {
		t.Fatal(err)
	}
	fs, err := cgroup.Open(k.Config(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, rt: enginetest.New(), version: node.CgroupVersion, specs: map[string]*specs.Spec{}}
	h.e = engine.New(engine.Config{
		Cgroups: fs, Runtime: h.rt, StateDir: t.TempDir(), PlacementDir: t.TempDir(), Topology: topology(node), Node: node, Policy: p, Info: control.PolicyStatus{Name: "corpus"},
		Mode: control.ModeEnforce, DecisionBudget: time.Minute, Clock: time.Now, Log: slog.New(slog.DiscardHandler),
		Carries: func(k policy.Knob) bool { return carries(node.CgroupVersion, k) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return h
}

// topology is a core for each CPU, on one NUMA node.
func topology(n policy.Node) placement.Topology {
	t := placement.Topology{Nodes: []placement.Node{{ID: 0, Memory: true}}}
	for _, id := range n.Online.List() {
		t.CPUs = append(t.CPUs, placement.CPU{ID: id, L2: id, Core: id})
	}
	return t
}

func containerID(name string) string { return fmt.Sprintf("%.64s", name+strings.Repeat("0", 64)) }

func (h *host) started(p policy.Pod) {
	h.facts = p
	h.rt.AddPod(sandboxID, p)
	if p.UID != "" {
		h.e.PodStarting(h.t.Context(), p)
		h.e.PodStarted(p, sandboxID)
	}
}

func (h *host) resizing(asks policy.Resources) {
	h.facts.Resources = asks
	if r := h.e.PodResizing(h.t.Context(), sandboxID, asks); r != nil {
		h.t.Errorf("a resize is refused: %+v", r)
	}
	h.e.PodResized(sandboxID)
}

func (h *host) finished(name string) {
	h.rt.Remove(containerID(name))
	h.e.Removed(containerID(name))
}

func (h *host) pod() flat {
	f := flat{}
	f.add("pod.", podFacts(h.facts))
	all, found, err := h.e.Explain(h.t.Context(), h.facts.Namespace, h.facts.Name)
	if err != nil {
		h.t.Fatal(err)
	}
	if found {
		f.add("pod.", decision(all[0].Decision))
	}
	return f
}

func (h *host) spec(container string) *specs.Spec { return h.specs[container] }

// add puts what was made into the runtime that the engine asks.
func (h *host) add(c engine.Creation, birth string) {
	h.rt.Add(enginetest.Container{ID: containerID(c.Name), SandboxID: sandboxID, Name: c.Name, Attempt: c.Attempt, Birth: birth, Resources: c.Asked})
}

// creationFacts are the facts of a container.
func creationFacts(c engine.Creation) flat {
	f := flat{"attempt": fmt.Sprint(c.Attempt)}
	f.add("", resources("asked.", c.Asked))
	return f
}

// failed says whether a creation that got no decision is refused.
func (h *host) failed(pod policy.Pod) bool { return h.e.OnError(pod) == v1alpha1.Refuse }

// wire sends a message: what can't be sent fails the test.
func wire[M proto.Message](t testing.TB, m, into M) M {
	t.Helper()
	b, err := proto.Marshal(m)
	if err == nil {
		err = proto.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatalf("%T does not travel: %v", m, err)
	}
	return into
}

// criDoor follows runtime-proxy/internal/hooks.
type criDoor struct {
	*host
	config *runtimeapi.PodSandboxConfig
}

func newCRI(t testing.TB, node policy.Node, p *policy.Policy) door {
	return &criDoor{host: newHost(t, node, p, applycri.Carries)}
}

func (d *criDoor) sandbox(cfg *runtimeapi.PodSandboxConfig) {
	d.config = cfg
	req := wire(d.t, &runtimeapi.RunPodSandboxRequest{Config: cfg}, &runtimeapi.RunPodSandboxRequest{})
	d.started(factscri.Pod(req.GetConfig()))
}

func (d *criDoor) resizing(r *runtimeapi.LinuxContainerResources) {
	req := wire(d.t, &runtimeapi.UpdatePodSandboxResourcesRequest{Resources: r}, &runtimeapi.UpdatePodSandboxResourcesRequest{})
	d.host.resizing(factscri.Resources(req.GetResources()))
}

func (d *criDoor) create(cfg *runtimeapi.ContainerConfig) flat {
	req := wire(d.t, &runtimeapi.CreateContainerRequest{PodSandboxId: sandboxID, Config: cfg, SandboxConfig: d.config}, &runtimeapi.CreateContainerRequest{})
	cfg = req.GetConfig()
	c := engine.Creation{
		SandboxID: req.GetPodSandboxId(), Pod: factscri.Pod(req.GetSandboxConfig()), Name: cfg.GetMetadata().GetName(),
		Attempt: cfg.GetMetadata().GetAttempt(), Asked: factscri.Resources(cfg.GetLinux().GetResources()),
	}
	f := creationFacts(c)
	d.facts = c.Pod
	if c.Pod.UID == "" || c.Name == "" {
		if d.e.Tier(c.Pod) != v1alpha1.None && d.failed(c.Pod) {
			return d.refused(f, v1alpha1.LabelQoS)
		}
		return d.runs(f, c, nil, cfg)
	}
	plan, err := d.e.Create(d.t.Context(), c)
	if err != nil {
		d.t.Fatal(err)
	}
	f.add("", decision(plan.Decision))
	if r := plan.Decision.Refusal; r != nil {
		d.e.CreateFailed(c.Key())
		return d.refused(f, r.Key)
	}
	if !plan.Changes() {
		return d.made(f, c, plan, nil, cfg)
	}
	if len(plan.Apply) > 0 {
		if cfg.Linux == nil {
			cfg.Linux = &runtimeapi.LinuxContainerConfig{}
		}
		if cfg.Linux.Resources == nil {
			cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{}
		}
	}
	rest, err := applycri.Apply(plan.Apply, d.version, cfg.GetLinux().GetResources())
	if err != nil {
		d.t.Fatal(err)
	}
	applycri.Annotate(cfg, v1alpha1.AnnotationDecision, plan.Birth)
	return d.made(f, c, plan, rest, wire(d.t, cfg, &runtimeapi.ContainerConfig{}))
}

func (d *criDoor) refused(f flat, key string) flat {
	f["answer"], f["answer.key"] = fmt.Sprintf("refused, gRPC status %v", codes.FailedPrecondition), key
	return f
}

func (d *criDoor) made(f flat, c engine.Creation, plan engine.Plan, rest []policy.Setting, cfg *runtimeapi.ContainerConfig) flat {
	d.add(c, plan.Birth)
	d.e.Created(c, plan, containerID(c.Name))
	d.e.Reported(c, plan)
	return d.runs(f, c, rest, cfg)
}

// runs is the runtime's part.
func (d *criDoor) runs(f flat, c engine.Creation, rest []policy.Setting, cfg *runtimeapi.ContainerConfig) flat {
	spec := nritest.Create(cfg.GetLinux().GetResources())
	d.specs[c.Name] = spec
	f["answer"] = "made"
	f.add("oci.", oci(spec))
	f.add("files.", files(rest))
	if b, ok := cfg.GetAnnotations()[v1alpha1.AnnotationDecision]; ok {
		f["birth"], f["birth.in"] = b, "the CRI message's annotations"
	}
	f.add("shown.", d.shown(c.Name))
	return f
}

// shown is ContainerStatus as the kubelet gets it.
func (d *criDoor) shown(name string) flat {
	res := status(d.specs[name])
	if v := d.e.View(containerID(name)); v != nil {
		applycri.Restore(v.Settings, v.Asked, res)
	}
	return shown(res)
}

func (d *criDoor) update(m message) flat {
	req := wire(d.t, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: containerID(m.container), Linux: m.linux}, &runtimeapi.UpdateContainerResourcesRequest{})
	asks := factscri.Resources(req.GetLinux())
	plan, err := d.e.Update(d.t.Context(), req.GetContainerId(), asks)
	if err != nil {
		d.t.Fatal(err)
	}
	f := decision(plan.Decision)
	f.add("", resources("asked.", asks))
	rest, err := applycri.Apply(plan.Apply, d.version, req.Linux)
	if err != nil {
		d.t.Fatal(err)
	}
	d.specs[m.container] = nritest.Update(d.specs[m.container], wire(d.t, req.Linux, &runtimeapi.LinuxContainerResources{}))
	d.e.Updated(plan, true)
	f.add("oci.", oci(d.specs[m.container]))
	f.add("files.", files(rest))
	f.add("shown.", d.shown(m.container))
	return f
}

// nriDoor follows nri-plugin/internal/plugin, behind containerd's side of NRI.
type nriDoor struct {
	*host
	pauseLabels map[string]string
	sent        map[string]map[string]bool // fields that were set, by call
	announcedAs *api.PodSandbox            // the pod in every message
}

func newNRI(t testing.TB, node policy.Node, p *policy.Policy, pauseLabels map[string]string, sent map[string]map[string]bool) door {
	return &nriDoor{host: newHost(t, node, p, applynri.Carries), pauseLabels: pauseLabels, sent: sent}
}

// Labels and annotations of containerd (internal/cri/labels, internal/cri/annotations).
const (
	labelKind       = "io.cri-containerd.kind"
	containerdsOwn  = "io.kubernetes.cri."
	annotationKind  = containerdsOwn + "container-type"
	annotationPause = containerdsOwn + "sandbox-image-name"
)

func (d *nriDoor) sandbox(cfg *runtimeapi.PodSandboxConfig) {
	cfg = wire(d.t, &runtimeapi.RunPodSandboxRequest{Config: cfg}, &runtimeapi.RunPodSandboxRequest{}).GetConfig()
	d.announcedAs = wire(d.t, d.announced(cfg), &api.PodSandbox{})
	d.started(factsnri.Pod(d.announcedAs))
}

// announced is criPodSandbox in internal/cri/nri/nri_api_linux.go, with labels of util.BuildLabels and annotations of
// annotations.DefaultCRIAnnotations.
func (d *nriDoor) announced(cfg *runtimeapi.PodSandboxConfig) *api.PodSandbox {
	labels := map[string]string{}
	for _, from := range []map[string]string{d.pauseLabels, cfg.GetLabels(), {labelKind: "sandbox"}} {
		for k, v := range from {
			labels[k] = v
		}
	}
	annotations := map[string]string{}
	for _, from := range []map[string]string{cfg.GetAnnotations(), {
		annotationKind: "sandbox", containerdsOwn + "sandbox-id": sandboxID, annotationPause: "registry.k8s.io/pause:3.10",
		containerdsOwn + "sandbox-namespace": cfg.GetMetadata().GetNamespace(), containerdsOwn + "sandbox-uid": cfg.GetMetadata().GetUid(),
		containerdsOwn + "sandbox-name": cfg.GetMetadata().GetName(), containerdsOwn + "sandbox-log-directory": cfg.GetLogDirectory(),
	}} {
		for k, v := range from {
			annotations[k] = v
		}
	}
	return &api.PodSandbox{
		Id: sandboxID, Name: cfg.GetMetadata().GetName(), Namespace: cfg.GetMetadata().GetNamespace(), Uid: cfg.GetMetadata().GetUid(),
		Labels: labels, Annotations: annotations, Linux: &api.LinuxPodSandbox{CgroupParent: cfg.GetLinux().GetCgroupParent(), PodResources: nritest.Request(cfg.GetLinux().GetResources())},
	}
}

func (d *nriDoor) resizing(r *runtimeapi.LinuxContainerResources) {
	req := wire(d.t, &api.UpdatePodSandboxRequest{LinuxResources: nritest.Request(r)}, &api.UpdatePodSandboxRequest{})
	d.host.resizing(factsnri.Update(req.GetLinuxResources()))
}

func (d *nriDoor) create(cfg *runtimeapi.ContainerConfig) flat {
	cfg = wire(d.t, &runtimeapi.CreateContainerRequest{Config: cfg}, &runtimeapi.CreateContainerRequest{}).GetConfig()
	asked := nritest.Create(cfg.GetLinux().GetResources())
	announced := nritest.Container(cfg.GetMetadata().GetName(), asked, cfg.GetAnnotations())
	announced.Id, announced.PodSandboxId = containerID(announced.Name), sandboxID
	req := wire(d.t, &api.CreateContainerRequest{Pod: d.announcedAs, Container: announced}, &api.CreateContainerRequest{})

	ctr := req.GetContainer()
	c := engine.Creation{
		SandboxID: req.GetPod().GetId(), Pod: factsnri.Pod(req.GetPod()), Name: ctr.GetName(), Attempt: factsnri.Attempt(ctr),
		Asked: factsnri.Resources(ctr.GetLinux().GetResources(), ctr.GetLinux().GetOomScoreAdj()),
	}
	f := creationFacts(c)
	d.facts = c.Pod
	if c.Pod.UID == "" || c.Name == "" {
		if d.e.Tier(c.Pod) != v1alpha1.None && d.failed(c.Pod) {
			return d.refused(f, v1alpha1.LabelQoS)
		}
		return d.made(f, c, asked, nil, nil)
	}
	plan, err := d.e.Create(d.t.Context(), c)
	if err != nil {
		d.t.Fatal(err)
	}
	f.add("", decision(plan.Decision))
	if r := plan.Decision.Refusal; r != nil {
		return d.refused(f, r.Key)
	}
	var adj *api.ContainerAdjustment
	var rest []policy.Setting
	if plan.Changes() {
		if adj, rest, err = applynri.Adjust(plan.Apply, d.version, ctr); err != nil {
			d.e.Missed(c.Key(), err.Error())
			if d.failed(c.Pod) {
				d.e.CreateFailed(c.Key())
				return d.refused(f, v1alpha1.LabelQoS)
			}
			d.e.Created(c, engine.Plan{}, ctr.GetId())
			return d.made(f, c, asked, nil, nil)
		}
	}
	d.e.Created(c, plan, ctr.GetId())
	d.e.Reported(c, plan)
	if plan.Birth != "" {
		adj = applynri.Annotate(adj, v1alpha1.AnnotationDecision, plan.Birth)
	}
	return d.made(f, c, asked, adj, rest)
}

func (d *nriDoor) refused(f flat, key string) flat {
	f["answer"], f["answer.key"] = "refused, an error without a code", key
	return f
}

func (d *nriDoor) made(f flat, c engine.Creation, asked *specs.Spec, adj *api.ContainerAdjustment, rest []policy.Setting) flat {
	d.add(c, "")
	// containerd keeps what it shows from the spec that was before NRI (copyResourcesToStatus in container_create.go).
	f.add("shown.", shown(status(asked)))
	if adj != nil {
		d.note("creation", wire(d.t, adj, &api.ContainerAdjustment{}))
		if err := nritest.Adjust(asked, adj); err != nil {
			d.t.Fatal(err)
		}
	}
	d.specs[c.Name] = asked
	f["answer"] = "made"
	f.add("oci.", oci(asked))
	f.add("files.", files(rest))
	if b, ok := asked.Annotations[v1alpha1.AnnotationDecision]; ok {
		f["birth"], f["birth.in"] = b, "the OCI spec's annotations"
	}
	return f
}

func (d *nriDoor) update(m message) flat {
	asked := wire(d.t, m.linux, &runtimeapi.LinuxContainerResources{})
	req := wire(d.t, &api.UpdateContainerRequest{
		Pod: d.announcedAs, Container: nritest.Container(m.container, d.specs[m.container], nil), LinuxResources: nritest.Request(asked),
	}, &api.UpdateContainerRequest{})

	id, asks := containerID(m.container), factsnri.Update(req.GetLinuxResources())
	plan, err := d.e.Update(d.t.Context(), id, asks)
	if err != nil {
		d.t.Fatal(err)
	}
	f := decision(plan.Decision)
	f.add("", resources("asked.", asks))
	u, rest, err := applynri.Update(plan.Apply, d.version, id, req.GetLinuxResources())
	if err != nil {
		d.e.Updated(plan, false)
	} else {
		d.e.Updated(plan, true)
	}
	if u != nil {
		d.note("update", wire(d.t, u, &api.ContainerUpdate{}))
	}
	d.specs[m.container] = nritest.Update(d.specs[m.container], nritest.Answered(asked, u))
	f.add("oci.", oci(d.specs[m.container]))
	f.add("files.", files(rest))
	f.add("shown.", shown(status(d.specs[m.container])))
	return f
}
