package nri_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/apply/nri"
	facts "github.com/tideline-io/tideline/internal/facts/nri"
	"github.com/tideline-io/tideline/internal/facts/nri/nritest"
	"github.com/tideline-io/tideline/internal/policy"
)

func put(k policy.Knob, v string) policy.Setting {
	return policy.Setting{Knob: k, Level: policy.LevelContainer, Value: v}
}

var (
	batch = []policy.Setting{
		put(policy.CPUSetCPUs, "2-7"), put(policy.CPUWeight, policy.Unset), put(policy.CPUMax, "50000 100000"), put(policy.CPUIdle, "1"),
		put(policy.MemoryHigh, "900"), put(policy.MemoryMax, "1000"), put(policy.OOMScoreAdj, "1000"), put(policy.IOMax, "8:0 rbps=1"), lowest,
	}
	lowest    = put(policy.IOPriority, "best-effort:7")
	service   = []policy.Setting{put(policy.CPUMaxBurst, "50000"), put(policy.MemoryLow, "4096")}
	unlimited = []policy.Setting{put(policy.CPUWeight, "1024"), put(policy.CPUMax, "max 100000"), put(policy.CPUIdle, "0"), put(policy.MemoryMax, "max"), put(policy.OOMScoreAdj, "0")}
	elsewhere = []policy.Setting{{Knob: policy.IOWeight, Level: policy.LevelPod, Value: "10"}, {Knob: policy.MemoryLow, Level: policy.LevelClass, Value: "1"}}
)

func bestEffort(level int32) *api.LinuxIOPriority {
	return &api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_BE, Priority: level}
}

// TestIOPriority: it is set where the container has another one, and read back in the words of the policy.
func TestIOPriority(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		has     *api.LinuxIOPriority
		is      string
		changed bool
	}{
		{nil, "", true},
		{&api.LinuxIOPriority{}, "", true},
		{bestEffort(4), "", true},
		{bestEffort(7), "best-effort:7", false},
		{&api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_IDLE}, "idle", true},
		{&api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_RT, Priority: 7}, "", true},
	} {
		c := &api.Container{Linux: &api.LinuxContainer{IoPriority: test.has}}
		if got := nri.IOPriority(c); got != test.is {
			t.Errorf("%v: read as %q, want %q", test.has, got, test.is)
		}
		adj, rest, err := nri.Adjust([]policy.Setting{lowest}, 2, c)
		if err != nil || rest != nil || (adj != nil) != test.changed {
			t.Errorf("%v: %v, %v, %v", test.has, adj, rest, err)
		}
		if adj != nil && !proto.Equal(adj.Linux.IoPriority, bestEffort(7)) {
			t.Errorf("%v: %v", test.has, adj)
		}
	}
}

// TestBlockIOClassStays: containerd has put the parameters of an asked class into the spec before a plugin is asked. A
// class that a plugin names fails the creation where the runtime has no file of classes, so no answer of ours names one.
func TestBlockIOClassStays(t *testing.T) {
	t.Parallel()
	s := nritest.Create(&runtimeapi.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 1000})
	s.Linux.Resources.BlockIO = &specs.LinuxBlockIO{Weight: new(uint16(50))}
	adj, _, err := nri.Adjust(batch, 2, nritest.Container("c", s, nil))
	if err != nil || adj.GetLinux().GetResources().GetBlockioClass() != nil {
		t.Fatalf("adjusted: %v, %v", adj, err)
	}
	if err := nritest.Adjust(s, adj); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&specs.LinuxBlockIO{Weight: new(uint16(50))}, s.Linux.Resources.BlockIO); d != "" {
		t.Errorf("the class was changed:\n%s", d)
	}
	u, _, err := nri.Update(batch, 2, "c", nritest.Request(&runtimeapi.LinuxContainerResources{CpuShares: 2}))
	if err != nil || u.GetLinux().GetResources().GetBlockioClass() != nil {
		t.Errorf("updated: %v, %v", u, err)
	}
	adj.Linux.Resources.BlockioClass = api.String("gold")
	if err := nritest.Adjust(s, adj); err == nil {
		t.Error("a class that the runtime does not know was taken")
	}
}

func TestAdjust(t *testing.T) {
	t.Parallel()
	burstable := func() *runtimeapi.LinuxContainerResources {
		return &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000, MemoryLimitInBytes: 2000, OomScoreAdj: 900, Unified: map[string]string{"memory.high": "max", "memory.low": "4096"}}
	}
	for _, test := range []struct {
		name     string
		settings []policy.Setting
		version  int
		asked    *runtimeapi.LinuxContainerResources
		want     *api.LinuxContainerAdjustment
		rest     []policy.Setting
	}{
		{"nothing decided", nil, 2, burstable(), nil, nil},
		{"other levels", elsewhere, 2, burstable(), nil, nil},
		{"batch on v2 sets what differs", batch, 2, burstable(), &api.LinuxContainerAdjustment{OomScoreAdj: api.Int(1000), IoPriority: bestEffort(7), Resources: &api.LinuxResources{
			Cpu: &api.LinuxCPU{Cpus: "2-7", Shares: api.UInt64(0)}, Memory: &api.LinuxMemory{Limit: api.Int64(1000)},
			Unified: map[string]string{"cpu.idle": "1", "memory.high": "900", "io.max": "8:0 rbps=1"},
		}}, nil},
		{"batch on v1 leaves the files over", batch, 1, burstable(), &api.LinuxContainerAdjustment{OomScoreAdj: api.Int(1000), IoPriority: bestEffort(7), Resources: &api.LinuxResources{
			Cpu: &api.LinuxCPU{Cpus: "2-7", Shares: api.UInt64(0)}, Memory: &api.LinuxMemory{Limit: api.Int64(1000)},
		}}, []policy.Setting{batch[3], batch[4], batch[7]}},
		{"a container that has them all", []policy.Setting{put(policy.CPUWeight, "512"), put(policy.CPUMax, "50000 100000"), put(policy.MemoryLow, "4096"), put(policy.MemoryMax, "2000"), put(policy.OOMScoreAdj, "900")},
			2, burstable(), nil, nil},
		{"one half of cpu.max", []policy.Setting{put(policy.CPUMax, "50000 50000")}, 2, burstable(), &api.LinuxContainerAdjustment{Resources: &api.LinuxResources{
			Cpu: &api.LinuxCPU{Period: api.UInt64(50000)}}}, nil},
		{"no shares to unset", []policy.Setting{put(policy.CPUWeight, policy.Unset)}, 2, nil, nil, nil},
		{"an OOM score of 0 where there is none", []policy.Setting{put(policy.OOMScoreAdj, "0")}, 2, nil, &api.LinuxContainerAdjustment{OomScoreAdj: api.Int(0)}, nil},
		{"the idle class", []policy.Setting{put(policy.IOPriority, "idle")}, 1, burstable(), &api.LinuxContainerAdjustment{IoPriority: &api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_IDLE}}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := nritest.Container("c", nritest.Create(test.asked), nil)
			before := proto.CloneOf(c)
			got, rest, err := nri.Adjust(test.settings, test.version, c)
			if err != nil {
				t.Fatal(err)
			}
			var want *api.ContainerAdjustment
			if test.want != nil {
				want = &api.ContainerAdjustment{Linux: test.want}
			}
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(test.rest, rest); d != "" {
				t.Errorf("rest: %s", d)
			}
			if d := cmp.Diff(before, c, protocmp.Transform()); d != "" {
				t.Errorf("the container was changed: %s", d)
			}
		})
	}
	if got, _, err := nri.Adjust(service, 2, nil); err != nil || len(got.GetLinux().GetResources().GetUnified()) != 2 {
		t.Errorf("no container: %v, %v", got, err)
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		settings []policy.Setting
		asked    *api.LinuxResources
		want     *api.LinuxResources
	}{
		{"nothing decided", nil, nil, nil},
		{"only what an update can't change", []policy.Setting{put(policy.OOMScoreAdj, "900"), lowest}, nil, nil},
		{"unset shares that the kubelet asks", []policy.Setting{put(policy.CPUWeight, policy.Unset)},
			nritest.Request(&runtimeapi.LinuxContainerResources{CpuShares: 2}), &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(0)}}},
		{"unset shares that nobody asks", []policy.Setting{put(policy.CPUWeight, policy.Unset)}, nritest.Request(&runtimeapi.LinuxContainerResources{CpusetCpus: "0"}), nil},
		{"the kubelet asks what is decided", []policy.Setting{put(policy.CPUSetCPUs, "0"), put(policy.CPUMax, "1000 100000"), put(policy.MemoryMax, "5"), put(policy.MemoryLow, "1")},
			nritest.Request(&runtimeapi.LinuxContainerResources{CpusetCpus: "0", CpuQuota: 1000, CpuPeriod: 100000, MemoryLimitInBytes: 5, Unified: map[string]string{"memory.low": "1"}}), nil},
		{"unsolicited", batch, nil, &api.LinuxResources{
			Cpu:    &api.LinuxCPU{Cpus: "2-7", Quota: api.Int64(50000), Period: api.UInt64(100000)},
			Memory: &api.LinuxMemory{Limit: api.Int64(1000)}, Unified: map[string]string{"cpu.idle": "1", "memory.high": "900", "io.max": "8:0 rbps=1"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := proto.CloneOf(test.asked)
			got, rest, err := nri.Update(test.settings, 2, "c", test.asked)
			if err != nil || rest != nil {
				t.Fatalf("rest %v, error %v", rest, err)
			}
			var want *api.ContainerUpdate
			if test.want != nil {
				want = &api.ContainerUpdate{ContainerId: "c", Linux: &api.LinuxContainerUpdate{Resources: test.want}}
			}
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(before, test.asked, protocmp.Transform()); d != "" {
				t.Errorf("the request was changed: %s", d)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, s := range []policy.Setting{put(policy.CPUWeight, "-1"), put(policy.CPUWeight, "x"), put(policy.CPUMax, "1"), put(policy.MemoryMax, "1Gi"), put(policy.OOMScoreAdj, ""), put(policy.IOPriority, "realtime:0")} {
		if adj, rest, err := nri.Adjust([]policy.Setting{put(policy.CPUSetCPUs, "0"), s}, 2, nil); adj != nil || rest != nil || err == nil || !strings.Contains(err.Error(), string(s.Knob)) {
			t.Errorf("%s %q: %v, %v, %v", s.Knob, s.Value, adj, rest, err)
		}
		if s.Knob.OfProcess() {
			continue
		}
		if u, rest, err := nri.Update([]policy.Setting{s}, 2, "c", nil); u != nil || rest != nil || err == nil {
			t.Errorf("%s %q: %v, %v, %v", s.Knob, s.Value, u, rest, err)
		}
	}
}

// NRI can't take the key out, and cpu.idle beside it fails the container.
func TestWeightStays(t *testing.T) {
	t.Parallel()
	has := &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(2)}, Unified: map[string]string{"cpu.weight": "1"}}
	for _, s := range []policy.Setting{put(policy.CPUWeight, policy.Unset), put(policy.CPUIdle, "1")} {
		if adj, _, err := nri.Adjust([]policy.Setting{s}, 2, &api.Container{Linux: &api.LinuxContainer{Resources: has}}); !errors.Is(err, nri.ErrWeightStays) || adj != nil {
			t.Errorf("%s: %v, %v", s.Knob, adj, err)
		}
		if u, _, err := nri.Update([]policy.Setting{s}, 2, "c", has); !errors.Is(err, nri.ErrWeightStays) || u != nil {
			t.Errorf("%s: %v, %v", s.Knob, u, err)
		}
	}
	if _, _, err := nri.Adjust([]policy.Setting{put(policy.CPUIdle, "0"), put(policy.CPUWeight, "2")}, 2, &api.Container{Linux: &api.LinuxContainer{Resources: has}}); err != nil {
		t.Error(err)
	}
}

func TestAnnotate(t *testing.T) {
	t.Parallel()
	s := nritest.Create(nil)
	s.Annotations = map[string]string{"k": "the pod's", "other": "1"}
	if err := nritest.Adjust(s, nri.Annotate(nil, "k", "ours")); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"k": "ours", "other": "1"}, s.Annotations); d != "" {
		t.Error(d)
	}
	adj := &api.ContainerAdjustment{Linux: &api.LinuxContainerAdjustment{OomScoreAdj: api.Int(1)}}
	if got := nri.Annotate(adj, "k", "v"); got != adj || got.Linux.OomScoreAdj.Value != 1 || got.Annotations["k"] != "v" {
		t.Errorf("got %v", got)
	}
}

// A removal marker beside a value loses the value at random, which is why Annotate sets none. When this test fails, NRI
// does better and a marker would also take our key from a plugin before us.
func TestMarkerLosesTheValue(t *testing.T) {
	t.Parallel()
	for range 200 {
		s := nritest.Create(nil)
		adj := nri.Annotate(nil, "k", "ours")
		adj.RemoveAnnotation("k")
		if err := nritest.Adjust(s, adj); err != nil {
			t.Fatal(err)
		}
		if s.Annotations["k"] == "" {
			return
		}
	}
	t.Error("a value beside a removal marker stays")
}

var created = []struct {
	name string
	res  *runtimeapi.LinuxContainerResources
}{
	{"empty", &runtimeapi.LinuxContainerResources{}},
	{"BestEffort", &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 1000}},
	{"Burstable", &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuQuota: 100000, CpuPeriod: 100000, MemoryLimitInBytes: 2 << 30, OomScoreAdj: 937,
		Unified: map[string]string{"memory.low": "0", "memory.min": "0", "memory.high": "max", "memory.swap.max": "1000"}}},
	{"Guaranteed, pinned", &runtimeapi.LinuxContainerResources{CpuShares: 2048, CpuQuota: 200000, CpuPeriod: 100000, CpusetCpus: "0-3", CpusetMems: "0", MemoryLimitInBytes: 4 << 30, OomScoreAdj: -997}},
	{"no limits, said so", &runtimeapi.LinuxContainerResources{CpuQuota: -1, CpuPeriod: 100000, MemoryLimitInBytes: -1}},
	{"a swap limit of its own", &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 30, MemorySwapLimitInBytes: 2 << 30}},
	{"hugepages", &runtimeapi.LinuxContainerResources{CpuShares: 2, HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}}}},
}

var decided = []struct {
	name     string
	settings []policy.Setting
}{
	{"nothing", nil}, {"batch", batch}, {"service", service}, {"unlimited", unlimited}, {"other levels", elsewhere}, {"cpuset.mems", []policy.Setting{put(policy.CPUSetMems, "0")}},
}

// sameSpec compares the resources of the CRI door's spec with the NRI door's. Shares of 0 are the one difference: NRI
// can't take a value out, and 0 is what runtimes take for none.
func sameSpec(t *testing.T, viaCRI, viaNRI *specs.Spec) {
	t.Helper()
	zeroIsNone := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Shares" }, cmp.Transformer("shares", func(p *uint64) uint64 {
		if p == nil {
			return 0
		}
		return *p
	}))
	if d := cmp.Diff(viaCRI.Linux.Resources, viaNRI.Linux.Resources, zeroIsNone, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("resources (-cri +nri):\n%s", d)
	}
	if d := cmp.Diff(viaCRI.Process.OOMScoreAdj, viaNRI.Process.OOMScoreAdj); d != "" {
		t.Errorf("OOM score (-cri +nri):\n%s", d)
	}
}

// Both doors end in the same OCI spec, at creation and with an update.
func TestSameAsCRI(t *testing.T) {
	t.Parallel()
	for _, version := range []int{1, 2} {
		for _, c := range created {
			for _, d := range decided {
				t.Run(strconv.Itoa(version)+"/"+c.name+"/"+d.name, func(t *testing.T) {
					viaCRI := proto.CloneOf(c.res)
					wantRest, err := cri.Apply(d.settings, version, viaCRI)
					if err != nil {
						t.Fatal(err)
					}
					viaNRI := nritest.Create(c.res)
					adj, rest, err := nri.Adjust(d.settings, version, nritest.Container("c", viaNRI, nil))
					if err != nil {
						t.Fatal(err)
					}
					if err := nritest.Adjust(viaNRI, adj); err != nil {
						t.Fatal(err)
					}
					sameSpec(t, nritest.Create(viaCRI), viaNRI)
					if d := cmp.Diff(wantRest, rest); d != "" {
						t.Errorf("rest (-cri +nri):\n%s", d)
					}
					for _, u := range append(updates, created...) {
						t.Run(u.name, func(t *testing.T) { sameUpdate(t, d.settings, version, nritest.Create(viaCRI), viaNRI, u.res) })
					}
				})
			}
		}
	}
}

var updates = []struct {
	name string
	res  *runtimeapi.LinuxContainerResources
}{
	{"cpuset alone", &runtimeapi.LinuxContainerResources{CpusetCpus: "4-5"}},
	{"resize", &runtimeapi.LinuxContainerResources{CpuShares: 256, CpuQuota: 25000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 20}},
}

func sameUpdate(t *testing.T, settings []policy.Setting, version int, storedCRI, storedNRI *specs.Spec, req *runtimeapi.LinuxContainerResources) {
	t.Helper()
	viaCRI := proto.CloneOf(req)
	wantRest, err := cri.Apply(settings, version, viaCRI)
	if err != nil {
		t.Fatal(err)
	}
	u, rest, err := nri.Update(settings, version, "c", nritest.Request(req))
	if err != nil {
		t.Fatal(err)
	}
	viaNRI := nritest.Answered(req, u)
	if u != nil && viaCRI.MemoryLimitInBytes != 0 {
		// Lost on the way back to CRI, so the runtime sets it to the memory limit.
		viaCRI.MemorySwapLimitInBytes = 0
	}
	sameSpec(t, nritest.Update(storedCRI, viaCRI), nritest.Update(storedNRI, viaNRI))
	if d := cmp.Diff(wantRest, rest); d != "" {
		t.Errorf("rest (-cri +nri):\n%s", d)
	}
}

func TestCarriesAsCRI(t *testing.T) {
	t.Parallel()
	for _, k := range policy.Knobs() {
		for _, version := range []int{1, 2} {
			want := cri.Carries(version, k) || k == policy.IOPriority || k == policy.Resctrl // which CRI has no field for
			if got := nri.Carries(version, k); got != want {
				t.Errorf("Carries(%d, %s) = %v, want %v", version, k, got, want)
			}
		}
	}
}

// FuzzCreate goes from a message to a decision and into the container's spec.
func FuzzCreate(f *testing.F) {
	p, err := policy.Compile(v1alpha1.Default().Spec)
	if err != nil {
		f.Fatal(err)
	}
	add := func(edit func(*api.CreateContainerRequest)) {
		r := &api.CreateContainerRequest{
			Pod: &api.PodSandbox{
				Uid: "u", Namespace: "n", Name: "p", Labels: map[string]string{v1alpha1.LabelQoS: "BE"},
				Annotations: map[string]string{
					v1alpha1.AnnotationBatchResources: `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"2Gi"}}}}`,
					v1alpha1.AnnotationRequests:       `{"containers":{"app":{"cpu":"1","memory":"1Gi"}}}`,
				},
				Linux: &api.LinuxPodSandbox{CgroupParent: "/kubepods/besteffort/podu"},
			},
			Container: nritest.Container("app", nritest.Create(&runtimeapi.LinuxContainerResources{
				CpuShares: 2, CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 1 << 30, OomScoreAdj: 500, CpusetCpus: "0-1", Unified: map[string]string{"memory.low": "0", "memory.min": "0"},
			}), nil),
		}
		edit(r)
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
		f.Add(b, false)
	}
	add(func(*api.CreateContainerRequest) {})
	add(func(r *api.CreateContainerRequest) { r.Container.Linux.IoPriority = bestEffort(7) })
	for _, tier := range []string{"", "LSE", "LSR", "LS", "SYSTEM", "odd"} {
		add(func(r *api.CreateContainerRequest) { r.Pod.Labels[v1alpha1.LabelQoS] = tier })
	}
	add(func(r *api.CreateContainerRequest) { r.Pod = nil })
	add(func(r *api.CreateContainerRequest) { r.Container = nil })
	add(func(r *api.CreateContainerRequest) { r.Container.Linux = nil })
	add(func(r *api.CreateContainerRequest) { r.Container.Linux.Resources.Unified["cpu.weight"] = "1" })
	add(func(r *api.CreateContainerRequest) {
		x := r.Container.Linux.Resources
		x.Cpu = &api.LinuxCPU{Shares: api.UInt64(uint64(1 << 63)), Quota: api.Int64(-5), Period: api.UInt64(uint64(1 << 63))}
		x.Memory = &api.LinuxMemory{Limit: api.Int64(int64(1<<63 - 1)), Swap: api.Int64(1)}
	})
	f.Fuzz(func(t *testing.T, msg []byte, v2 bool) {
		var req api.CreateContainerRequest
		if proto.Unmarshal(msg, &req) != nil {
			return
		}
		node := policy.Node{CgroupVersion: 1, Online: cpuset.New(0, 1, 2, 3), Devices: []policy.Device{{Name: "vda", Number: "254:0"}}}
		if v2 {
			node.CgroupVersion = 2
		}
		before := proto.CloneOf(&req)
		c := req.GetContainer()
		pod := facts.Pod(req.GetPod())
		facts.Attempt(c)
		ctr := policy.Container{Name: c.GetName(), State: policy.Managed, Asked: facts.Resources(c.GetLinux().GetResources(), c.GetLinux().GetOomScoreAdj())}
		d := p.Container(node, pod, ctr)
		adj, rest, err := nri.Adjust(d.Settings, node.CgroupVersion, c)
		again, restAgain, errAgain := nri.Adjust(d.Settings, node.CgroupVersion, c)
		if diff := cmp.Diff(adj, again, protocmp.Transform()); diff != "" || cmp.Diff(rest, restAgain) != "" || (err == nil) != (errAgain == nil) {
			t.Errorf("not deterministic:\n%s", diff)
		}
		u, _, errUpdate := nri.Update(d.Settings, node.CgroupVersion, "c", c.GetLinux().GetResources())
		if diff := cmp.Diff(before, &req, protocmp.Transform()); diff != "" {
			t.Fatalf("the message was changed:\n%s", diff)
		}
		if (d.Tier == v1alpha1.None || d.Refusal != nil || len(d.Settings) == 0) && (adj != nil || rest != nil || u != nil || err != nil || errUpdate != nil) {
			t.Errorf("nothing was decided, and answered: %v, %v, %v, %v", adj, rest, u, err)
		}
		if err != nil {
			if adj != nil || rest != nil {
				t.Errorf("an answer beside an error: %v, %v", adj, rest)
			}
			return // a period that no kernel takes, or a weight that stays: the container passes as it came
		}
		if adj != nil && proto.Equal(adj, &api.ContainerAdjustment{}) {
			t.Error("an empty adjustment is not nil")
		}
		for _, s := range rest {
			if nri.Carries(node.CgroupVersion, s.Knob) {
				t.Errorf("%s is left over", s.Knob)
			}
		}
		if !v2 && len(adj.GetLinux().GetResources().GetUnified()) > 0 {
			t.Errorf("unified on v1: %v", adj)
		}
		// A container that has been adjusted needs no more.
		s := &specs.Spec{Process: &specs.Process{OOMScoreAdj: c.GetLinux().GetOomScoreAdj().Get(), IOPriority: c.GetLinux().GetIoPriority().ToOCI()}, Linux: &specs.Linux{Resources: c.GetLinux().GetResources().ToOCI()}}
		if s.Linux.Resources == nil {
			s.Linux.Resources = &specs.LinuxResources{}
		}
		if err := nritest.Adjust(s, adj); err != nil {
			t.Fatal(err)
		}
		if more, _, err := nri.Adjust(d.Settings, node.CgroupVersion, nritest.Container("c", s, nil)); err != nil || more != nil {
			t.Errorf("adjusted twice: %v, %v", more, err)
		}
	})
}
