package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/door"
	"github.com/tideline-io/tideline/internal/engine"
	factsnri "github.com/tideline-io/tideline/internal/facts/nri"
	"github.com/tideline-io/tideline/internal/facts/nri/nritest"
	"github.com/tideline-io/tideline/internal/policy"
)

const patience = 60 * time.Second

func TestMain(m *testing.M) {
	nrilog.Set(nriLog{slog.New(slog.DiscardHandler)})
	adaptation.SetPluginRequestTimeout(20 * time.Second) // on a busy machine; 2 s by default
	os.Exit(m.Run())
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// machine is what outlives runtimes and plugins: a kernel, files of ours, and the place of the runtime's socket.
type machine struct {
	t      testing.TB
	layout cgrouptest.Layout
	k      *cgrouptest.Kernel
	state  string // records
	undo   string // journal
	socket string
	log    *lockedBuffer
	// Set before a plugin starts:
	budget time.Duration
	engine func(*engine.Config)
	limits func(*limits)
}

func newMachine(t testing.TB, layout cgrouptest.Layout) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	k, err := cgrouptest.New(t.TempDir(), layout)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{t: t, layout: layout, k: k, state: filepath.Join(dir, "records"), undo: filepath.Join(dir, "journal"), socket: filepath.Join(dir, "nri.sock"), log: &lockedBuffer{}}
}

func (m *machine) version() int {
	if m.layout == cgrouptest.V1 {
		return 1
	}
	return 2
}

func (m *machine) node() policy.Node {
	return policy.Node{CgroupVersion: m.version(), Online: cpuset.New(0, 1, 2, 3)}
}

func defaultPolicy(t testing.TB) *policy.Policy {
	t.Helper()
	p, err := policy.Compile(v1alpha1.Default().Spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is a plugin that runs.
type running struct {
	t    testing.TB
	m    *machine
	p    *Plugin
	e    *engine.Engine
	stop func() // ends it as SIGTERM does
}

// plugin starts one.
func (m *machine) plugin() *running {
	m.t.Helper()
	fs, err := cgroup.Open(m.k.Config(m.undo))
	if err != nil {
		m.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(m.log, nil))
	p := New(Config{Socket: m.socket, Name: "tideline", Index: "90", Budget: m.budget, Log: log}, m.version())
	p.limits.firstWait, p.limits.lastWait, p.limits.settle = 5*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond
	if m.limits != nil {
		m.limits(&p.limits)
	}
	cfg := engine.Config{
		Cgroups: fs, Runtime: p, StateDir: m.state, PlacementDir: m.t.TempDir(), Node: m.node(), Policy: defaultPolicy(m.t),
		Mode: control.ModeEnforce, DecisionBudget: p.cfg.Budget, Carries: p.Carries, Clock: time.Now, Log: log,
	}
	if m.engine != nil {
		m.engine(&cfg)
	}
	e := engine.New(cfg)
	ctx, cancel := context.WithCancel(m.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Run(ctx) })
	wg.Go(func() {
		if err := p.Run(ctx, new(door.Door), e); err != nil {
			m.t.Errorf("the plugin ended: %v", err)
		}
	})
	r := &running{t: m.t, m: m, p: p, e: e, stop: sync.OnceFunc(func() { cancel(); wg.Wait() })}
	m.t.Cleanup(r.stop)
	return r
}

func (r *running) seen() control.Runtime {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.p.seen
}

func (r *running) connected() bool { return r.seen().Connected }
func (r *running) why() string     { return r.seen().Error }

func (r *running) counts() control.Counts {
	r.t.Helper()
	st, err := r.e.Status(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return st.Counts
}

func (r *running) containers() []control.Container {
	r.t.Helper()
	all, err := r.e.Containers(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func (r *running) container(id string) *control.Container {
	r.t.Helper()
	all := r.containers()
	if i := slices.IndexFunc(all, func(c control.Container) bool { return c.ID == id }); i >= 0 {
		return &all[i]
	}
	return nil
}

// runtime is what containerd does around NRI, with nothing behind it.
type runtime struct {
	t      testing.TB
	m      *machine
	a      *adaptation.Adaptation
	limit  time.Duration      // of each call; 0: none
	nri    string             // the version that it says it has
	spent  chan time.Duration // if not nil, what each Synchronize took
	joined chan struct{}      // one for each plugin that has synchronized

	mu      sync.Mutex
	calls   []string // of plugins, in order
	fault   func(method string, req *ttrpc.Request) error
	begun   bool // it has synchronized its pre-installed plugins, of which there are none
	refuse  bool // unsolicited updates
	pods    map[string]*api.PodSandbox
	made    map[string]*made
	answers []*api.ContainerUpdate // of the last Synchronize
	asked   []*api.ContainerUpdate // unsolicited
}

// made is a container as the runtime stores it.
type made struct {
	pod, name   string
	annotations map[string]string
	spec        *specs.Spec
	pid         uint32
	state       api.ContainerState
}

func (m *machine) newRuntime() *runtime {
	return &runtime{t: m.t, m: m, nri: "v0.12.5", joined: make(chan struct{}, 100), pods: map[string]*api.PodSandbox{}, made: map[string]*made{}}
}

// runtime starts one.
func (m *machine) runtime() *runtime {
	m.t.Helper()
	r := m.newRuntime()
	r.start()
	return r
}

func (r *runtime) start() {
	r.t.Helper()
	none := filepath.Join(filepath.Dir(r.m.socket), "none")
	a, err := adaptation.New("fake", "v1", r.sync, r.update, adaptation.WithSocketPath(r.m.socket), adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none),
		adaptation.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(r.intercept)}, nil))
	r.a, r.begun = a, false
	if err == nil {
		err = a.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.stop)
}

// stop ends the runtime, and its connections.
func (r *runtime) stop() {
	if r.a != nil {
		r.drop(ttrpc.ErrClosed)
		r.a.Stop()
		r.a = nil
	}
}

// drop has the runtime close the connections of its plugins as after err.
func (r *runtime) drop(err error) {
	was := r.failWith(func(string, *ttrpc.Request) error { return err })
	_ = r.a.RemovePodSandbox(context.Background(), &api.RemovePodSandboxRequest{Pod: &api.PodSandbox{Id: "none"}})
	r.failWith(was)
}

func (r *runtime) failWith(f func(string, *ttrpc.Request) error) (was func(string, *ttrpc.Request) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, r.fault = r.fault, f
	return was
}

// intercept sees what is sent to plugins.
func (r *runtime) intercept(ctx context.Context, req *ttrpc.Request, res *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
	r.mu.Lock()
	r.calls = append(r.calls, req.Method)
	fault := r.fault
	r.mu.Unlock()
	if fault != nil {
		if err := fault(req.Method, req); err != nil {
			return err
		}
	}
	if req.Method == "Configure" { // test binaries do not know their NRI
		var c api.ConfigureRequest
		if err := proto.Unmarshal(req.Payload, &c); err != nil {
			return err
		}
		c.NRIVersion = r.nri
		var err error
		if req.Payload, err = proto.Marshal(&c); err != nil {
			return err
		}
	}
	return invoke(ctx, req, res)
}

// ctx is that of a call.
func (r *runtime) ctx() context.Context {
	if r.limit == 0 {
		return r.t.Context()
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), r.limit)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *runtime) sync(ctx context.Context, cb adaptation.SyncCB) error {
	r.mu.Lock()
	if !r.begun {
		r.begun = true
		r.mu.Unlock()
		return nil
	}
	var pods []*api.PodSandbox
	for _, id := range slices.Sorted(maps.Keys(r.pods)) {
		pods = append(pods, proto.CloneOf(r.pods[id]))
	}
	var containers []*api.Container
	for _, id := range slices.Sorted(maps.Keys(r.made)) {
		if r.made[id].state != api.ContainerState_CONTAINER_STOPPED {
			containers = append(containers, r.message(id))
		}
	}
	r.mu.Unlock()
	began := time.Now()
	updates, err := cb(ctx, pods, containers)
	if r.spent != nil {
		r.spent <- time.Since(began)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = updates
	for _, u := range updates {
		r.apply(u)
	}
	r.joined <- struct{}{}
	return nil
}

// apply makes an unsolicited update. The caller holds the lock.
func (r *runtime) apply(u *api.ContainerUpdate) bool {
	c := r.made[u.GetContainerId()]
	if c == nil || c.state == api.ContainerState_CONTAINER_STOPPED {
		return false
	}
	c.spec = nritest.Update(c.spec, nritest.Answered(nil, u))
	return true
}

func (r *runtime) update(_ context.Context, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range updates {
		r.asked = append(r.asked, u)
		if r.refuse || !r.apply(u) {
			failed = append(failed, u)
		}
	}
	return failed, nil
}

// wait waits for a plugin to join.
func (r *runtime) wait() {
	r.t.Helper()
	select {
	case <-r.joined:
	case <-time.After(patience):
		r.t.Fatal("no plugin has joined")
	}
	// The runtime counts it in after the callback has returned.
	r.a.BlockPluginSync().Unblock()
}

// message announces a container. The caller holds the lock.
func (r *runtime) message(id string) *api.Container {
	c := r.made[id]
	msg := nritest.Container(id, c.spec, maps.Clone(c.annotations))
	msg.Name, msg.PodSandboxId, msg.Pid, msg.State = c.name, c.pod, c.pid, c.state
	msg.Linux.CgroupsPath = c.spec.Linux.CgroupsPath
	return msg
}

func (r *runtime) about(id string) (*api.PodSandbox, *api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.made[id]
	if c == nil {
		return nil, nil
	}
	return proto.CloneOf(r.pods[c.pod]), r.message(id)
}

func (r *runtime) stored(id string) *specs.LinuxResources {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made[id].spec.Linux.Resources
}

func (r *runtime) edit(id string, f func(*made)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.made[id])
}

func (r *runtime) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.made, id)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pod describes a pod of a tier.
func pod(uid, tier string, annotations ...string) *api.PodSandbox {
	p := &api.PodSandbox{
		Id: "sandbox-" + uid, Name: "web-" + uid, Uid: uid, Namespace: "shop", Labels: map[string]string{}, Annotations: map[string]string{},
		Linux: &api.LinuxPodSandbox{CgroupParent: "/kubepods/besteffort/pod" + uid},
	}
	if tier != "" {
		p.Labels[v1alpha1.LabelQoS] = tier
	}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

// batch is what BE pods ask: half a CPU and 1 GiB.
const batch = `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"1Gi"}}}}`

func containerID(n int) string { return fmt.Sprintf("%064x", n+1) }

func cgroupOf(p *api.PodSandbox, id string) cgroup.Path {
	return cgroup.Path(p.GetLinux().GetCgroupParent() + "/" + id)
}

// run makes the sandbox of a pod, whose cgroup the kubelet has made.
func (r *runtime) run(p *api.PodSandbox) {
	r.t.Helper()
	must(r.t, r.m.k.Make(cgroup.Path(p.GetLinux().GetCgroupParent())))
	must(r.t, r.a.RunPodSandbox(r.ctx(), &api.RunPodSandboxRequest{Pod: proto.CloneOf(p)}))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods[p.Id] = p
}

// besteffort is what the kubelet asks for a container without requests.
func besteffort() *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 800}
}

// burstable is what the kubelet asks for a container with requests and limits.
func burstable() *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000, CpuQuota: 100000, MemoryLimitInBytes: 1 << 30, OomScoreAdj: 500}
}

var errMade = errors.New("the container could not be made")

// create makes a container, and gives what NRI has merged of the plugins' answers.
func (r *runtime) create(p *api.PodSandbox, id, name string, res *runtimeapi.LinuxContainerResources, then ...error) (*api.ContainerAdjustment, error) {
	r.t.Helper()
	r.mu.Lock()
	r.pods[p.Id] = p
	r.made[id] = &made{pod: p.Id, name: name, spec: nritest.Create(res), annotations: map[string]string{factsnri.AnnotationRestartCount: "0"}}
	r.mu.Unlock()
	sandbox, c := r.about(id)
	answer, err := r.a.CreateContainer(r.ctx(), &api.CreateContainerRequest{Pod: sandbox, Container: c})
	if err == nil {
		r.edit(id, func(c *made) { err = nritest.Adjust(c.spec, answer.Adjust) })
	}
	if err == nil && len(then) > 0 {
		err = then[0]
	}
	if err != nil { // undone, as containerd does
		r.stopContainer(id)
		r.remove(id)
		return nil, err
	}
	r.edit(id, func(c *made) { c.state = api.ContainerState_CONTAINER_CREATED })
	sandbox, c = r.about(id)
	return answer.Adjust, r.a.PostCreateContainer(r.ctx(), &api.PostCreateContainerRequest{Pod: sandbox, Container: c})
}

// startContainer starts a container as process pid in a cgroup of its own. What its spec says is not in the kernel.
func (r *runtime) startContainer(id string, pid int) {
	r.t.Helper()
	sandbox, _ := r.about(id)
	at := cgroupOf(sandbox, id)
	must(r.t, r.m.k.Make(at))
	must(r.t, r.m.k.AddProcess(pid, at))
	r.edit(id, func(c *made) { c.pid = uint32(pid) })
	sandbox, c := r.about(id)
	must(r.t, r.a.StartContainer(r.ctx(), &api.StartContainerRequest{Pod: sandbox, Container: c}))
	r.edit(id, func(c *made) { c.state = api.ContainerState_CONTAINER_RUNNING })
}

// updateContainer makes an update of the kubelet's; kernel is what the runtime writes once the plugins have answered.
func (r *runtime) updateContainer(id string, res *runtimeapi.LinuxContainerResources, kernel func()) {
	r.t.Helper()
	mine := r.updateThatFails(id, res)
	if kernel != nil {
		kernel()
	}
	r.edit(id, func(c *made) { c.spec = nritest.Update(c.spec, nritest.Answered(res, mine)) })
	sandbox, c := r.about(id)
	must(r.t, r.a.PostUpdateContainer(r.ctx(), &api.PostUpdateContainerRequest{Pod: sandbox, Container: c}))
}

// updateThatFails ends with the plugins' answers: nobody tells them how it went on.
func (r *runtime) updateThatFails(id string, res *runtimeapi.LinuxContainerResources) (mine *api.ContainerUpdate) {
	r.t.Helper()
	sandbox, c := r.about(id)
	answer, err := r.a.UpdateContainer(r.ctx(), &api.UpdateContainerRequest{Pod: sandbox, Container: c, LinuxResources: nritest.Request(res)})
	must(r.t, err)
	for _, u := range answer.Update {
		if u.GetContainerId() == id {
			mine = u
		}
	}
	return mine
}

func (r *runtime) stopContainer(id string) {
	r.t.Helper()
	sandbox, c := r.about(id)
	_, err := r.a.StopContainer(r.ctx(), &api.StopContainerRequest{Pod: sandbox, Container: c})
	must(r.t, err)
	r.edit(id, func(c *made) { c.pid, c.state = 0, api.ContainerState_CONTAINER_STOPPED })
}

func (r *runtime) remove(id string) {
	r.t.Helper()
	sandbox, c := r.about(id)
	must(r.t, r.a.RemoveContainer(r.ctx(), &api.RemoveContainerRequest{Pod: sandbox, Container: c}))
	r.forget(id)
}

func (r *runtime) removePod(p *api.PodSandbox) {
	r.t.Helper()
	must(r.t, r.a.RemovePodSandbox(r.ctx(), &api.RemovePodSandboxRequest{Pod: p}))
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, p.Id)
}

func (r *runtime) count(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, m := range r.calls {
		if strings.EqualFold(m, method) {
			n++
		}
	}
	return n
}

// pair is a machine with a runtime and a plugin that has joined it.
func pair(t testing.TB, layout cgrouptest.Layout, setup ...func(*machine)) (*machine, *runtime, *running) {
	t.Helper()
	m := newMachine(t, layout)
	for _, f := range setup {
		f(m)
	}
	r := m.runtime()
	p := m.plugin()
	r.wait()
	return m, r, p
}

func (m *machine) get(at cgroup.Path, file string) string {
	text, err := m.k.Get(at, file)
	if err != nil {
		return err.Error()
	}
	return text
}

func (m *machine) records() []string {
	left, err := os.ReadDir(m.state)
	if err != nil {
		return []string{err.Error()}
	}
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	return names
}
