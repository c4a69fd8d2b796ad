package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

type vals = map[policy.Knob]string

func TestContainer(t *testing.T) {
	reserve := func(s *v1alpha1.QoSPolicySpec) { s.ReservedCPUs = "0-1" }
	allReserved := func(s *v1alpha1.QoSPolicySpec) { s.ReservedCPUs = "0-63" }
	disks := func(s *v1alpha1.QoSPolicySpec) {
		tierOf(s, v1alpha1.BE, func(tp *v1alpha1.TierPolicy) {
			tp.IO.Max = []v1alpha1.DeviceMax{{Device: "all", WBps: 100, RIOPS: 9}, {Device: "rotational", WBps: 50}}
		})
	}
	without := func(knobs ...policy.Knob) func(*policy.Node) {
		return func(n *policy.Node) {
			for _, k := range knobs {
				n.Features[k] = policy.Feature{Support: policy.Unsupported, Need: "Linux 9"}
			}
		}
	}
	const noBatch = "unknown-input" // the note that a BE container has no batch resources
	be := func(annotations ...string) policy.Pod { return labelled(v1alpha1.BE, annotations...) }
	ls := func(annotations ...string) policy.Pod { return labelled(v1alpha1.LS, annotations...) }
	withBatch := func(more ...string) policy.Pod {
		return be(append([]string{v1alpha1.AnnotationBatchResources, batch2}, more...)...)
	}
	guaranteed := func(p policy.Pod) policy.Pod { p.KubeQoS = v1alpha1.Guaranteed; return p }

	for _, tt := range []struct {
		name  string
		edit  func(*v1alpha1.QoSPolicySpec)
		node  func(*policy.Node)
		pod   policy.Pod
		c     policy.Container
		want  vals
		notes []string
	}{
		{name: "no tier", edit: reserve, pod: policy.Pod{Namespace: "shop"}, c: app(shares(2), oom(0), quota(5000)), want: vals{}},

		// cpuset.cpus
		{name: "cpuset: nothing reserved, nothing asked", pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(), want: vals{}},
		{name: "cpuset: pool", edit: reserve, pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(), want: vals{policy.CPUSetCPUs: "2-7"}},
		{name: "cpuset: asked and pool", edit: reserve, pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(cpus("1-3")), want: vals{policy.CPUSetCPUs: "2-3"}},
		{name: "cpuset: asked within pool", edit: reserve, pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(cpus("3,2")), want: vals{}},
		{name: "cpuset: asked outside pool", edit: reserve, pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(cpus("0")), want: vals{}, notes: []string{"kept cpuset.cpus"}},
		{name: "cpuset: reserved CPUs that are offline", edit: func(s *v1alpha1.QoSPolicySpec) { s.ReservedCPUs = "60" }, pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(), want: vals{}},
		{name: "cpuset: empty pool", edit: allReserved, pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(), want: vals{}, notes: []string{"kept cpuset.cpus"}},
		{name: "cpuset: online unknown", edit: reserve, node: func(n *policy.Node) { n.Online = online(0) }, pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(), want: vals{}, notes: []string{"unknown-input cpuset.cpus"}},
		{name: "cpuset: asked garbage", edit: reserve, pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(cpus("0-4294967295")), want: vals{}, notes: []string{"unknown-input cpuset.cpus"}},
		{name: "cpuset: kernel lacks it", edit: reserve, node: without(policy.CPUSetCPUs), pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(), want: vals{}, notes: []string{"unsupported cpuset.cpus"}},
		{name: "cpuset: SYSTEM none", edit: reserve, pod: labelled(v1alpha1.SYSTEM), c: app(cpus("0")), want: vals{}},
		{name: "cpuset: LSE before us", edit: reserve, pod: labelled(v1alpha1.LSE, v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(cpus("0-3")), want: vals{policy.CPUSetCPUs: "2-3"}, notes: []string{"unplaced cpuset.cpus"}},

		// cpu.weight and cpu.idle
		{name: "idle", pod: be(), c: app(shares(2), oom(1000)), want: vals{policy.CPUWeight: "unset", policy.CPUIdle: "1"}, notes: []string{noBatch}},
		{name: "idle: no shares asked", pod: be(), c: app(oom(1000)), want: vals{policy.CPUIdle: "1"}, notes: []string{noBatch}},
		{name: "idle: adopted", pod: be(), c: app(shares(2), oom(1000), state(policy.Adopted)), want: vals{}, notes: []string{noBatch, "kept cpu.idle"}},
		{name: "idle: missed", pod: be(), c: app(shares(2), oom(1000), state(policy.Missed)), want: vals{}, notes: []string{noBatch, "kept cpu.idle"}},
		{name: "idle: state unknown", pod: be(), c: app(shares(2), oom(1000), state("")), want: vals{}, notes: []string{noBatch, "kept cpu.idle"}},
		{name: "idle: kernel lacks it", node: without(policy.CPUIdle), pod: be(), c: app(shares(2), oom(1000)), want: vals{}, notes: []string{noBatch, "unsupported cpu.idle"}},
		{name: "idle: not probed", node: func(n *policy.Node) { n.Features = nil }, pod: be(), c: app(shares(2), oom(1000)), want: vals{policy.CPUWeight: "unset", policy.CPUIdle: "1"}, notes: []string{noBatch}},
		{name: "idle: policy off", edit: func(s *v1alpha1.QoSPolicySpec) {
			tierOf(s, v1alpha1.BE, func(tp *v1alpha1.TierPolicy) { tp.CPU.Idle = new(false) })
		}, pod: be(), c: app(shares(2), oom(1000)), want: vals{}, notes: []string{noBatch}},

		// cpu.max, memory.max, memory.high of batch
		{name: "batch", pod: withBatch(), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.CPUMax: "200000 100000", policy.MemoryHigh: "1932734464", policy.MemoryMax: "2147483648"}},
		{name: "batch: 64 KiB pages", node: func(n *policy.Node) { n.PageSize = 65536 }, pod: withBatch(), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.CPUMax: "200000 100000", policy.MemoryHigh: "1932722176", policy.MemoryMax: "2147483648"}},
		{name: "batch: period asked", pod: withBatch(), c: app(oom(1000), quota(-1), func(c *policy.Container) { c.Asked.CPUPeriod = new(int64(50000)) }), want: vals{policy.CPUIdle: "1", policy.CPUMax: "100000 50000", policy.MemoryHigh: "1932734464", policy.MemoryMax: "2147483648"}},
		{name: "batch: the kubelet's are lower", pod: withBatch(), c: app(oom(1000), quota(100000), limit(1<<30)), want: vals{policy.CPUIdle: "1", policy.MemoryHigh: "966365184"}, notes: []string{"kept cpu.max", "kept memory.max"}},
		{name: "batch: the kubelet's are the same", pod: withBatch(), c: app(oom(1000), quota(200000), limit(2<<30)), want: vals{policy.CPUIdle: "1", policy.MemoryHigh: "1932734464"}},
		{name: "batch: the kubelet's are higher", pod: withBatch(), c: app(oom(1000), quota(300000), limit(3<<30)), want: vals{policy.CPUIdle: "1", policy.CPUMax: "200000 100000", policy.MemoryHigh: "1932734464", policy.MemoryMax: "2147483648"}},
		{name: "batch: tiny", pod: be(v1alpha1.AnnotationBatchResources, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"1","kubernetes.io/batch-memory":"100"}}}}`), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.CPUMax: "1000 100000", policy.MemoryMax: "100"}, notes: []string{"kept memory.high"}},
		{name: "batch: zero is no limit", pod: be(v1alpha1.AnnotationBatchResources, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"0","kubernetes.io/batch-memory":"0"}}}}`), c: app(oom(1000)), want: vals{policy.CPUIdle: "1"}},
		{name: "batch: more than the kernel takes", pod: be(v1alpha1.AnnotationBatchResources, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"9E"}}}}`), c: app(oom(1000)), want: vals{policy.CPUIdle: "1"}, notes: []string{"bad-annotation cpu.max"}},
		{name: "batch: other container", pod: withBatch(), c: app(oom(1000), func(c *policy.Container) { c.Name = "x" }), want: vals{policy.CPUIdle: "1"}, notes: []string{noBatch}},
		{name: "batch: of Koordinator", pod: be(v1alpha1.AliasKoordinatorBatch, batch2), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.CPUMax: "200000 100000", policy.MemoryHigh: "1932734464", policy.MemoryMax: "2147483648"}},
		{name: "batch: ours before Koordinator's", pod: be(v1alpha1.AnnotationBatchResources, `{"containers":{}}`, v1alpha1.AliasKoordinatorBatch, batch2), c: app(oom(1000)), want: vals{policy.CPUIdle: "1"}, notes: []string{noBatch}},
		{name: "batch: Koordinator off", edit: func(s *v1alpha1.QoSPolicySpec) { s.Aliases.Koordinator = new(false) }, pod: be(v1alpha1.AliasKoordinatorBatch, batch2), c: app(oom(1000)), want: vals{policy.CPUIdle: "1"}, notes: []string{noBatch}},
		{name: "batch: bad", pod: be(v1alpha1.AnnotationBatchResources, `{`), c: app(oom(1000)), want: vals{policy.CPUIdle: "1"}, notes: []string{"bad-annotation"}},
		{name: "batch: of another tier", pod: ls(v1alpha1.AnnotationBatchResources, batch2, v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(), want: vals{}},
		{name: "memory.high: v1", node: func(n *policy.Node) { n.CgroupVersion, n.Features = 1, nil }, pod: withBatch(), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.CPUMax: "200000 100000", policy.MemoryMax: "2147483648"}, notes: []string{"unsupported memory.high"}},
		{name: "memory.high: annotation lowers", pod: withBatch(v1alpha1.AnnotationMemoryQoS, `{"high":"50%"}`), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.CPUMax: "200000 100000", policy.MemoryHigh: "1073741824", policy.MemoryMax: "2147483648"}},
		{name: "memory.high: annotation asks more", pod: withBatch(v1alpha1.AnnotationMemoryQoS, `{"high":"91%"}`), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.CPUMax: "200000 100000", policy.MemoryHigh: "1932734464", policy.MemoryMax: "2147483648"}, notes: []string{"bad-annotation"}},
		{name: "memory.high: the kubelet's is lower", pod: withBatch(), c: app(oom(1000), unified(policy.MemoryHigh, "4096")), want: vals{policy.CPUIdle: "1", policy.CPUMax: "200000 100000", policy.MemoryMax: "2147483648"}, notes: []string{"kept memory.high"}},
		{name: "memory.high: policy off", edit: func(s *v1alpha1.QoSPolicySpec) {
			tierOf(s, v1alpha1.BE, func(tp *v1alpha1.TierPolicy) { tp.Memory.High = new(v1alpha1.Percent(100)) })
		}, pod: withBatch(), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.CPUMax: "200000 100000", policy.MemoryMax: "2147483648"}},

		// cpu.max.burst
		{name: "burst", pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(quota(150000)), want: vals{policy.CPUMaxBurst: "150000"}},
		{name: "burst: no quota", pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(quota(-1)), want: vals{}},
		{name: "burst: policy off", edit: func(s *v1alpha1.QoSPolicySpec) {
			tierOf(s, v1alpha1.LS, func(tp *v1alpha1.TierPolicy) { tp.CPU.Burst = v1alpha1.BurstOff })
		}, pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(quota(150000)), want: vals{}},
		{name: "burst: kernel lacks it", node: without(policy.CPUMaxBurst), pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(quota(150000)), want: vals{}, notes: []string{"unsupported cpu.max.burst"}},
		{name: "burst: within the kernel's sum", pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{}}}`), c: app(quota(1<<44 - 2)), want: vals{policy.CPUMaxBurst: "1"}},

		// memory.low
		{name: "low: LS", pod: ls(v1alpha1.AnnotationRequests, req1Gi), c: app(), want: vals{policy.MemoryLow: "536870912"}},
		{name: "low: LSR", pod: labelled(v1alpha1.LSR, v1alpha1.AnnotationRequests, req1Gi), c: app(), want: vals{policy.MemoryLow: "1073741824"}, notes: []string{"unplaced cpuset.cpus"}},
		{name: "low: the kubelet's 0 is none", pod: ls(v1alpha1.AnnotationRequests, req1Gi), c: app(unified(policy.MemoryLow, "0")), want: vals{policy.MemoryLow: "536870912"}},
		{name: "low: the kubelet's is higher", pod: ls(v1alpha1.AnnotationRequests, req1Gi), c: app(unified(policy.MemoryLow, "1073741824")), want: vals{}, notes: []string{"kept memory.low"}},
		{name: "low: no memory requested", pod: ls(v1alpha1.AnnotationRequests, req1Gi), c: app(func(c *policy.Container) { c.Name = "bare" }), want: vals{}},
		{name: "low: request unknown", pod: ls(), c: app(limit(1 << 30)), want: vals{}, notes: []string{"unknown-input memory.low"}},
		{name: "low: container not named", pod: ls(v1alpha1.AnnotationRequests, req1Gi), c: app(func(c *policy.Container) { c.Name = "debug" }), want: vals{}, notes: []string{"unknown-input memory.low"}},
		{name: "low: Guaranteed", pod: guaranteed(ls()), c: app(limit(1 << 30)), want: vals{policy.MemoryLow: "536870912"}},
		{name: "low: request above the limit", pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{"memory":"1Ti"}}}`), c: app(limit(1 << 30)), want: vals{policy.MemoryLow: "536870912"}},
		{name: "low: annotation lowers", pod: ls(v1alpha1.AnnotationRequests, req1Gi, v1alpha1.AnnotationMemoryQoS, `{"low":"25%"}`), c: app(), want: vals{policy.MemoryLow: "268435456"}},
		{name: "low: annotation takes it away", pod: ls(v1alpha1.AnnotationMemoryQoS, `{"low":"0%"}`), c: app(), want: vals{}},
		{name: "low: annotation asks more", pod: ls(v1alpha1.AnnotationRequests, req1Gi, v1alpha1.AnnotationMemoryQoS, `{"low":"51%"}`), c: app(), want: vals{policy.MemoryLow: "536870912"}, notes: []string{"bad-annotation"}},
		{name: "low: high of a tier without", pod: ls(v1alpha1.AnnotationRequests, req1Gi, v1alpha1.AnnotationMemoryQoS, `{"low":"25%","high":"50%"}`), c: app(), want: vals{policy.MemoryLow: "536870912"}, notes: []string{"bad-annotation"}},
		{name: "low: v1 notes once, whatever is asked", node: func(n *policy.Node) { n.CgroupVersion = 1 }, pod: ls(), c: app(), want: vals{}, notes: []string{"unsupported memory.low"}},
		{name: "low: bad requests", pod: ls(v1alpha1.AnnotationRequests, `{"containers":{"app":{"memory":"-1"}}}`), c: app(), want: vals{}, notes: []string{"bad-annotation", "unknown-input memory.low"}},

		// oom_score_adj
		{name: "oom: floor", pod: be(), c: app(oom(500)), want: vals{policy.CPUIdle: "1", policy.OOMScoreAdj: "900"}, notes: []string{noBatch}},
		{name: "oom: not asked", pod: be(), c: app(), want: vals{policy.CPUIdle: "1", policy.OOMScoreAdj: "900"}, notes: []string{noBatch}},
		{name: "oom: adopted", pod: be(), c: app(oom(500), state(policy.Adopted)), want: vals{}, notes: []string{noBatch, "kept cpu.idle", "kept oom_score_adj"}},

		// io.max
		{name: "io.max: tier", edit: disks, pod: be(), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.IOMax: "8:0 wbps=50 riops=9\n254:0 wbps=100 riops=9"}, notes: []string{noBatch}},
		{name: "io.max: lower of both", edit: disks, pod: be(v1alpha1.AnnotationIOQoS, `{"max":[{"device":"ssd","wbps":200,"riops":5,"rbps":7}]}`), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.IOMax: "8:0 wbps=50 riops=9\n254:0 rbps=7 wbps=100 riops=5"}, notes: []string{noBatch}},
		{name: "io.max: annotation", pod: be(v1alpha1.AnnotationIOQoS, `{"max":[{"device":"8:0","wiops":5},{"device":"9:9","wiops":5}]}`), c: app(oom(1000)), want: vals{policy.CPUIdle: "1", policy.IOMax: "8:0 wiops=5"}, notes: []string{noBatch, "unknown-input io.max"}},
		{name: "io.max: no disks known", edit: disks, node: func(n *policy.Node) { n.Devices = nil }, pod: be(), c: app(oom(1000)), want: vals{policy.CPUIdle: "1"}, notes: []string{noBatch, "unknown-input io.max", "unknown-input io.max"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := v2()
			if tt.node != nil {
				tt.node(&n)
			}
			d := compile(t, func(s *v1alpha1.QoSPolicySpec) {
				tierOf(s, v1alpha1.BE, func(tp *v1alpha1.TierPolicy) { tp.IO.Priority = v1alpha1.IOPriorityNone }) // see TestIOPriority
				if tt.edit != nil {
					tt.edit(s)
				}
			}).Container(n, tt.pod, tt.c)
			if diff := cmp.Diff(tt.want, values(d)); diff != "" {
				t.Errorf("settings -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tt.notes, codes(d)); diff != "" {
				t.Errorf("notes -want +got:\n%s\n%+v", diff, d.Notes)
			}
			checkForm(t, d, policy.LevelContainer)
		})
	}
}

func TestPod(t *testing.T) {
	p := compile(t, nil)
	side := func(edits ...func(*policy.Container)) policy.Container {
		c := app(edits...)
		c.Name = "side"
		return c
	}
	const both = `{"containers":{"app":{"memory":"1Gi"},"side":{"memory":"64Mi"}}}`
	for _, tt := range []struct {
		name       string
		node       func(*policy.Node)
		pod        policy.Pod
		containers []policy.Container
		want       vals
		notes      []string
	}{
		{name: "no tier", pod: policy.Pod{}, containers: []policy.Container{app(quota(1000))}, want: vals{}},
		{name: "BE", pod: labelled(v1alpha1.BE), containers: []policy.Container{app(quota(100000))}, want: vals{policy.IOWeight: "10"}},
		{name: "SYSTEM", pod: labelled(v1alpha1.SYSTEM), containers: []policy.Container{app(quota(100000))}, want: vals{policy.IOWeight: "200"}},
		{name: "LS before its containers", pod: labelled(v1alpha1.LS), want: vals{policy.IOWeight: "200"}, notes: []string{"kept cpu.max.burst"}},
		{name: "LS all with quotas", pod: labelled(v1alpha1.LS, v1alpha1.AnnotationRequests, both), containers: []policy.Container{app(quota(100000)), side(quota(5000))},
			want: vals{policy.CPUMaxBurst: "105000", policy.MemoryLow: "570425344", policy.IOWeight: "200"}},
		{name: "LS one without quota", pod: labelled(v1alpha1.LS, v1alpha1.AnnotationRequests, both), containers: []policy.Container{app(quota(100000)), side()},
			want: vals{policy.MemoryLow: "570425344", policy.IOWeight: "200"}, notes: []string{"kept cpu.max.burst"}},
		{name: "LS at the kernel's end", pod: labelled(v1alpha1.LS, v1alpha1.AnnotationRequests, both), containers: []policy.Container{app(quota(units.MaxQuota)), side(quota(units.MaxQuota))},
			want: vals{policy.MemoryLow: "570425344", policy.IOWeight: "200"}},
		{name: "LSE", pod: labelled(v1alpha1.LSE, v1alpha1.AnnotationRequests, both), containers: []policy.Container{app(quota(100000))},
			want: vals{policy.MemoryLow: "1073741824", policy.IOWeight: "500"}},
		{name: "LS without burst in the kernel", node: func(n *policy.Node) { n.Features[policy.CPUMaxBurst] = policy.Feature{Support: policy.Unsupported} },
			pod: labelled(v1alpha1.LS, v1alpha1.AnnotationRequests, both), containers: []policy.Container{app(quota(100000))}, want: vals{policy.MemoryLow: "536870912", policy.IOWeight: "200"}},
		{name: "one request unknown", pod: labelled(v1alpha1.LS, v1alpha1.AnnotationRequests, req1Gi), containers: []policy.Container{app(quota(100000)), side(quota(100000))},
			want: vals{policy.CPUMaxBurst: "200000", policy.MemoryLow: "536870912", policy.IOWeight: "200"}, notes: []string{"unknown-input memory.low"}},
		{name: "the kubelet protects already", pod: labelled(v1alpha1.LS, v1alpha1.AnnotationRequests, req1Gi), containers: []policy.Container{app(quota(100000), unified(policy.MemoryLow, "1073741824"))},
			want: vals{policy.CPUMaxBurst: "100000", policy.IOWeight: "200"}},
		{name: "sum overflows", pod: labelled(v1alpha1.LSE, v1alpha1.AnnotationRequests, `{"containers":{"app":{"memory":"7E"},"side":{"memory":"7E"}}}`), containers: []policy.Container{app(quota(100000)), side(quota(100000))},
			want: vals{policy.MemoryLow: "9223372036854771712", policy.IOWeight: "500"}},
		{name: "weight lower", pod: labelled(v1alpha1.BE, v1alpha1.AnnotationIOQoS, `{"weight":5}`), want: vals{policy.IOWeight: "5"}},
		{name: "weight higher", pod: labelled(v1alpha1.BE, v1alpha1.AnnotationIOQoS, `{"weight":11}`), want: vals{policy.IOWeight: "10"}, notes: []string{"bad-annotation"}},
		{name: "v1", node: func(n *policy.Node) { *n = v1() }, pod: labelled(v1alpha1.LS, v1alpha1.AnnotationRequests, both), containers: []policy.Container{app(quota(100000))},
			want: vals{policy.CPUMaxBurst: "100000", policy.IOWeight: "200"}, notes: []string{"unsupported memory.low"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := v2()
			if tt.node != nil {
				tt.node(&n)
			}
			d := p.Pod(n, tt.pod, tt.containers)
			if diff := cmp.Diff(tt.want, values(d)); diff != "" {
				t.Errorf("settings -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tt.notes, codes(d)); diff != "" {
				t.Errorf("notes -want +got:\n%s\n%+v", diff, d.Notes)
			}
			checkForm(t, d, policy.LevelPod)
		})
	}
}

func TestIOPriority(t *testing.T) {
	set := func(tier v1alpha1.Tier, p v1alpha1.IOPriority) func(*v1alpha1.QoSPolicySpec) {
		return func(s *v1alpha1.QoSPolicySpec) {
			tierOf(s, tier, func(tp *v1alpha1.TierPolicy) { tp.IO.Priority = p })
		}
	}
	without := func(n *policy.Node) {
		n.Features[policy.IOPriority] = policy.Feature{Support: policy.Unsupported, Need: "the NRI door"}
	}
	for _, tt := range []struct {
		name string
		edit func(*v1alpha1.QoSPolicySpec)
		node func(*policy.Node)
		tier v1alpha1.Tier
		c    policy.Container
		want string
		note string // of the knob
	}{
		{name: "default", tier: v1alpha1.BE, c: app(), want: "best-effort:7"},
		{name: "idle", edit: set(v1alpha1.BE, "idle"), tier: v1alpha1.BE, c: app(), want: "idle"},
		{name: "off", edit: set(v1alpha1.BE, "none"), tier: v1alpha1.BE, c: app()},
		{name: "left out", edit: set(v1alpha1.BE, ""), tier: v1alpha1.BE, c: app()},
		{name: "none elsewhere", edit: set(v1alpha1.LS, "none"), tier: v1alpha1.LS, c: app()},
		{name: "other tiers have none", tier: v1alpha1.SYSTEM, c: app()},
		{name: "a door that carries none", node: without, tier: v1alpha1.BE, c: app(), note: "ioprio is not supported on this node and not written; it needs the NRI door"},
		{name: "adopted", tier: v1alpha1.BE, c: app(state(policy.Adopted)), note: "ioprio stays the runtime's: it is set when a container is created, and this one was created without us"},
		{name: "missed, and off", edit: set(v1alpha1.BE, "none"), tier: v1alpha1.BE, c: app(state(policy.Missed))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := v2()
			if tt.node != nil {
				tt.node(&n)
			}
			d := compile(t, tt.edit).Container(n, labelled(tt.tier), tt.c)
			if got := values(d)[policy.IOPriority]; got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			got := ""
			for _, n := range d.Notes {
				if n.Knob == policy.IOPriority {
					got += n.Message
				}
			}
			if got != tt.note {
				t.Errorf("note %q, want %q", got, tt.note)
			}
			checkForm(t, d, policy.LevelContainer)
		})
	}
}

// checkForm checks what holds for every decision.
func checkForm(t interface{ Errorf(string, ...any) }, d policy.Decision, level policy.Level) {
	next := 0
	for _, s := range d.Settings {
		at := -1
		for i, k := range policy.Knobs() {
			if k == s.Knob {
				at = i
			}
		}
		if at < next {
			t.Errorf("setting %s is out of order, twice or unknown", s.Knob)
		}
		next = at + 1
		if s.Level != level || s.Rule == "" || s.Reason == "" || s.Value == "" || s.Value == s.Asked {
			t.Errorf("setting is not complete: %+v", s)
		}
		if len(s.Reason)+len(s.Rule) > 1000 {
			t.Errorf("setting is too long: %+v", s)
		}
	}
	for _, n := range d.Notes {
		if n.Code == "" || n.Message == "" || len(n.Message) > 4000 || strings.ContainsAny(n.Message, "\n\x00") {
			t.Errorf("note is not fit to be shown: %q", n)
		}
	}
	if d.Refusal != nil && (len(d.Settings) > 0 || d.Refusal.Key == "" || d.Refusal.Message == "" || len(d.Refusal.Message) > 4000) {
		t.Errorf("refusal is not complete: %+v", d)
	}
	others := slices.ContainsFunc(d.Settings, func(s policy.Setting) bool { return s.Knob != policy.CPUSetCPUs || s.Rule != "untiered" })
	if d.Tier == v1alpha1.None && (others || d.Refusal != nil) {
		t.Errorf("no tier, but %+v", d)
	}
}

func TestRefusal(t *testing.T) {
	const bad = `{"low":"200%"}`
	alias := policy.Pod{Labels: map[string]string{v1alpha1.AliasKoordinatorQoS: "LSR"}, Annotations: map[string]string{
		v1alpha1.AnnotationMemoryQoS: bad, v1alpha1.AnnotationIOQoS: `{"weight":300}`, v1alpha1.AnnotationRequests: req1Gi}}
	pass := compile(t, func(s *v1alpha1.QoSPolicySpec) {
		tierOf(s, v1alpha1.LSR, func(tp *v1alpha1.TierPolicy) { tp.OnError = v1alpha1.Pass })
	})
	for _, tt := range []struct {
		name    string
		p       *policy.Policy
		pod     policy.Pod
		tier    v1alpha1.Tier
		refusal *policy.Refusal
		notes   []string
	}{
		{name: "our label", p: compile(t, nil), pod: labelled(v1alpha1.LSR, v1alpha1.AnnotationMemoryQoS, bad), tier: v1alpha1.LSR,
			refusal: &policy.Refusal{Key: v1alpha1.AnnotationMemoryQoS, Message: `annotation tideline.io/memory-qos: low: "200%"; allowed: a whole percentage from "0%" to "100%"; tier LSR refuses the container rather than run it with other settings than asked (tiers.LSR.onError)`},
			notes:   []string{"bad-annotation"}},
		{name: "asks too much", p: compile(t, nil), pod: labelled(v1alpha1.LSE, v1alpha1.AnnotationIOQoS, `{"weight":501}`), tier: v1alpha1.LSE,
			refusal: &policy.Refusal{Key: v1alpha1.AnnotationIOQoS, Message: `annotation tideline.io/io-qos: weight: 501 is more than tier LSE gives; allowed: up to 500; tier LSE refuses the container rather than run it with other settings than asked (tiers.LSE.onError)`},
			notes:   []string{"bad-annotation"}},
		{name: "our label, policy passes", p: pass, pod: labelled(v1alpha1.LSR, v1alpha1.AnnotationMemoryQoS, bad), tier: v1alpha1.LSR,
			notes: []string{"bad-annotation", "unplaced cpuset.cpus", "unknown-input memory.low"}},
		{name: "alias falls to LS, by whose bounds all is read again", p: compile(t, nil), pod: alias, tier: v1alpha1.LS,
			notes: []string{"bad-annotation", "bad-annotation", "bad-annotation"}},
		{name: "a peer's annotation refuses nobody", p: compile(t, nil), pod: labelled(v1alpha1.LSR, v1alpha1.AliasKoordinatorBatch, `{`), tier: v1alpha1.LSR,
			notes: []string{"bad-annotation", "unplaced cpuset.cpus", "unknown-input memory.low"}},
		{name: "LS is never refused", p: compile(t, nil), pod: labelled(v1alpha1.LS, v1alpha1.AnnotationMemoryQoS, bad), tier: v1alpha1.LS,
			notes: []string{"bad-annotation", "unknown-input memory.low"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := tt.p.Container(v2(), tt.pod, app())
			if d.Tier != tt.tier {
				t.Errorf("tier %s, want %s", d.Tier, tt.tier)
			}
			if diff := cmp.Diff(tt.refusal, d.Refusal); diff != "" {
				t.Errorf("refusal -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tt.notes, codes(d)); diff != "" {
				t.Errorf("notes -want +got:\n%s\n%+v", diff, d.Notes)
			}
			checkForm(t, d, policy.LevelContainer)
			if pd := tt.p.Pod(v2(), tt.pod, nil); (pd.Refusal == nil) != (d.Refusal == nil) || pd.Tier != d.Tier {
				t.Errorf("Pod decides %+v", pd)
			}
		})
	}
}

func TestInertIsCopied(t *testing.T) {
	n := v2()
	n.Features[policy.IOWeight] = policy.Feature{Support: policy.Supported, Inert: "no disk uses bfq or iocost"}
	d := compile(t, nil).Pod(n, labelled(v1alpha1.BE), nil)
	if len(d.Settings) != 1 || d.Settings[0].Inert != "no disk uses bfq or iocost" {
		t.Errorf("%+v", d)
	}
}

func TestPools(t *testing.T) {
	p := compile(t, func(s *v1alpha1.QoSPolicySpec) { s.ReservedCPUs = "0,7,99" })
	if got := p.LSPool(v2()).String(); got != "1-6" {
		t.Errorf("LSPool = %s", got)
	}
	if got := p.BEPool(v2()).String(); got != "1-6" {
		t.Errorf("BEPool = %s", got)
	}
}
