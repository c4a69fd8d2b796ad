package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/engine/enginetest"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
)

var layouts = []cgrouptest.Layout{cgrouptest.V1, cgrouptest.V2}

// patience bounds what is waited for on a slow machine.
const patience = 30 * time.Second

// machine is a node with an engine.
type machine struct {
	t          testing.TB
	k          *cgrouptest.Kernel
	rt         *enginetest.Runtime
	e          *engine.Engine
	layout     cgrouptest.Layout
	version    int
	state      string // folder of records
	journal    string
	placements string
	stop       func() // ends the engine and waits
	edit       func(*engine.Config)
	pids       int
}

func newMachine(t testing.TB, layout cgrouptest.Layout, edit func(*engine.Config)) *machine {
	t.Helper()
	k, err := cgrouptest.New(t.TempDir(), layout)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, k: k, rt: enginetest.New(), layout: layout, version: 2, state: t.TempDir(), journal: t.TempDir(), placements: t.TempDir(), edit: edit, pids: 100}
	if layout == cgrouptest.V1 {
		m.version = 1
	}
	m.start()
	t.Cleanup(func() { m.stop() })
	return m
}

func compile(t testing.TB, edit func(*v1alpha1.QoSPolicySpec)) *policy.Policy {
	t.Helper()
	spec := v1alpha1.Default().Spec
	if edit != nil {
		edit(&spec)
	}
	p, err := policy.Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// flat is a machine with one NUMA node and a core for each CPU.
func flat(n int) placement.Topology {
	t := placement.Topology{Nodes: []placement.Node{{ID: 0, Memory: true, Distances: map[int]int{0: 10}}}}
	for i := range n {
		t.CPUs = append(t.CPUs, placement.CPU{ID: i, L2: i, Core: i})
	}
	return t
}

// start makes a new engine over the same folders, as a new process does, and has it read the runtime.
func (m *machine) start() {
	m.t.Helper()
	fs, err := cgroup.Open(m.k.Config(m.journal))
	if err != nil {
		m.t.Fatal(err)
	}
	features := map[policy.Knob]policy.Feature{}
	for _, k := range policy.Knobs() {
		features[k] = policy.Feature{Support: policy.Supported}
	}
	cfg := engine.Config{
		Cgroups: fs, Runtime: m.rt, StateDir: m.state, PlacementDir: m.placements, Topology: flat(4),
		Node:   policy.Node{CgroupVersion: m.version, Online: cpuset.New(0, 1, 2, 3), Features: features, PageSize: 4096},
		Policy: compile(m.t, nil), Info: control.PolicyStatus{Name: "default", Generation: 1}, Mode: control.ModeEnforce,
		Carries: func(k policy.Knob) bool { return cri.Carries(m.version, k) }, Clock: time.Now, Log: slog.New(slog.DiscardHandler),
	}
	if m.edit != nil {
		m.edit(&cfg)
	}
	m.e = engine.New(cfg)
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan error, 1)
	go func() { done <- m.e.Run(ctx) }()
	ended := false
	m.stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				m.t.Error(err)
			}
		case <-time.After(patience):
			m.t.Error("Run does not return")
		}
	}
}

// adopt has the runtime read, and waits until it was.
func (m *machine) adopt() {
	m.t.Helper()
	marker := policy.Pod{UID: fmt.Sprintf("marker-%d", m.pids), Namespace: "marker", Name: fmt.Sprintf("m%d", m.pids)}
	m.pids++
	m.rt.AddPod(marker.UID, marker)
	defer m.rt.RemovePod(marker.UID)
	m.e.Adopt()
	m.eventually("adoption", func() bool {
		_, found, err := m.e.Explain(m.t.Context(), marker.Namespace, marker.Name)
		return err == nil && found
	})
	// What follows the list is done when the next report is.
	m.eventually("adoption", func() bool { return !m.degraded("adoption") })
}

func (m *machine) eventually(what string, ok func() bool) {
	m.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// never gives what is done in the background some time to be wrong.
func (m *machine) never(what string, bad func() bool) {
	m.t.Helper()
	for end := time.Now().Add(150 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if bad() {
			m.t.Fatal(what)
		}
	}
}

func (m *machine) status() control.Status {
	m.t.Helper()
	st, err := m.e.Status(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return st
}

func (m *machine) degraded(what string) bool {
	for _, d := range m.status().Degraded {
		if d.What == what {
			return true
		}
	}
	return false
}

// file gives the text of a cgroup's file.
func (m *machine) file(p cgroup.Path, name string) string {
	m.t.Helper()
	s, err := m.k.Get(p, name)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

func (m *machine) want(p cgroup.Path, name, want string) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("%s of %s to be %q", name, p, want), func() bool { return m.file(p, name) == want })
}

// burstName and the like are the files of a knob on this layout.
func (m *machine) name(v1, v2 string) string {
	if m.layout == cgrouptest.V1 {
		return v1
	}
	return v2
}

// pod makes the facts of a pod, and its cgroup as the kubelet does.
func (m *machine) pod(uid string, tier v1alpha1.Tier, class string, annotations ...string) policy.Pod {
	m.t.Helper()
	p := policy.Pod{UID: uid, Namespace: "shop", Name: "pod-" + uid, CgroupParent: "/kubepods" + class + "/pod" + uid, KubeQoS: v1alpha1.Burstable}
	if class == "/besteffort" {
		p.KubeQoS = v1alpha1.BestEffort
	}
	if tier != v1alpha1.None {
		p.Labels = map[string]string{v1alpha1.LabelQoS: string(tier)}
	}
	if tier.Exclusive() {
		p.Resources = asks(1024, 100000, 0)
	}
	for i := 0; i < len(annotations); i += 2 {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	if err := m.k.Make(cgroup.Path(p.CgroupParent)); err != nil {
		m.t.Fatal(err)
	}
	return p
}

// run starts a pod: its sandbox is "s" and its UID.
func (m *machine) run(p policy.Pod) {
	m.t.Helper()
	m.e.PodStarting(m.t.Context(), p)
	m.rt.AddPod("s"+p.UID, p)
	m.e.PodStarted(p, "s"+p.UID)
}

func id(name string) string { return name + strings.Repeat("0", 64-len(name)) }

// make creates and starts a container as a door does: what the message carries goes into the kernel.
func (m *machine) make(p policy.Pod, name string, asked policy.Resources) (engine.Plan, cgroup.Path) {
	m.t.Helper()
	c := engine.Creation{SandboxID: "s" + p.UID, Pod: p, Name: name, Asked: asked}
	plan, err := m.e.Create(m.t.Context(), c)
	if err != nil {
		m.t.Fatal(err)
	}
	return plan, m.made(c, plan)
}

// made is the runtime's part of make.
func (m *machine) made(c engine.Creation, plan engine.Plan) cgroup.Path {
	m.t.Helper()
	at := cgroup.Path(c.Pod.CgroupParent + "/" + id(c.Name))
	if err := m.k.Make(at); err != nil {
		m.t.Fatal(err)
	}
	m.pids++
	if err := m.k.AddProcess(m.pids, at); err != nil {
		m.t.Fatal(err)
	}
	m.rt.Add(enginetest.Container{ID: id(c.Name), SandboxID: c.SandboxID, Name: c.Name, Attempt: c.Attempt, Birth: plan.Birth, PID: m.pids, Running: true, Resources: c.Asked})
	m.e.Created(c, plan, id(c.Name))
	m.carry(at, plan.Apply)
	m.e.Started(id(c.Name))
	return at
}

// carry does what a runtime does with a message.
func (m *machine) carry(at cgroup.Path, settings []policy.Setting) {
	m.t.Helper()
	var carried []policy.Setting
	for _, s := range settings {
		if s.Knob != policy.OOMScoreAdj && cri.Carries(m.version, s.Knob) && !(s.Knob == policy.CPUWeight && s.Value == policy.Unset) {
			carried = append(carried, s)
		}
	}
	fs, err := cgroup.Open(m.k.Config(m.t.TempDir())) // not our journal
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := fs.WriteAll(at, carried); err != nil {
		m.t.Errorf("the runtime is refused: %v", err)
	}
}

func values(settings []policy.Setting) map[policy.Knob]string {
	m := map[policy.Knob]string{}
	for _, s := range settings {
		m[s.Knob] = s.Value
	}
	return m
}

func (m *machine) container(name string) *control.Container {
	m.t.Helper()
	all, err := m.e.Containers(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// asks makes resources: shares, quota (period 100 ms) and memory limit, 0 for not asked.
func asks(shares, quota, memory int64) policy.Resources {
	r := policy.Resources{CPUPeriod: new(int64(100000))}
	if shares != 0 {
		r.CPUShares = &shares
	}
	if quota != 0 {
		r.CPUQuota = &quota
	}
	if memory != 0 {
		r.MemoryLimit = &memory
	}
	return r
}

const gi = 1 << 30

func requests(name string) string {
	return `{"containers":{"` + name + `":{"cpu":"1","memory":"1Gi"}}}`
}

func batch(name string) string {
	return `{"containers":{"` + name + `":{"limits":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"2Gi"}}}}`
}
