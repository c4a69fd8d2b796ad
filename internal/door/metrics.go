package door

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/resctrl"
)

func (d *Door) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(d.cfg.Collectors...)
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if d.cfg.Connect != nil {
		reg.MustRegister(engineCollector{d}, resctrlCollector{d})
	}
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorHandling: promhttp.ContinueOnError})
}

// engineCollector turns the status of a door into metrics.
type engineCollector struct{ d *Door }

// Descriptions of what engineCollector tells; docs/metrics.md has the same list.
var (
	descInfo       = prometheus.NewDesc("tideline_door_info", "The door, its mode, and the runtime behind it; always 1.", []string{"door", "version", "mode", "runtime", "runtime_version"}, nil)
	descConnected  = prometheus.NewDesc("tideline_runtime_connected", "1 while the runtime answers on the door's own connection.", nil, nil)
	descContainers = prometheus.NewDesc("tideline_containers", "Known containers by state.", []string{"state"}, nil)
	descTiers      = prometheus.NewDesc("tideline_tier_containers", "Known containers by tier; tier none is no tier.", []string{"tier"}, nil)
	descDecisions  = prometheus.NewDesc("tideline_decisions_total", "Decisions on containers.", nil, nil)
	descChanged    = prometheus.NewDesc("tideline_messages_changed_total", "Messages to the runtime that were changed.", nil, nil)
	descRefused    = prometheus.NewDesc("tideline_refusals_total", "Creations that were refused.", nil, nil)
	descFailedOpen = prometheus.NewDesc("tideline_failed_open_total", "Hooked calls that passed unmodified after a fault of ours.", nil, nil)
	descBadInput   = prometheus.NewDesc("tideline_bad_input_total", "Messages, labels and annotations that could not be read.", nil, nil)
	descWrites     = prometheus.NewDesc("tideline_kernel_writes_total", "Kernel files written.", nil, nil)
	descWriteFails = prometheus.NewDesc("tideline_kernel_write_failures_total", "Writes that failed, by cgroup.", nil, nil)
	descRepairs    = prometheus.NewDesc("tideline_repairs_total", "Values of containers that somebody else had changed, and that were put right.", nil, nil)
	descJournal    = prometheus.NewDesc("tideline_journal_cgroups", "Cgroups with values that disable would put back.", nil, nil)
	descPolicyGen  = prometheus.NewDesc("tideline_policy_generation", "Policies taken since the start.", nil, nil)
	descPolicyBad  = prometheus.NewDesc("tideline_policy_error", "1 while a changed policy file is not taken because it is invalid.", nil, nil)
	descDegraded   = prometheus.NewDesc("tideline_degraded", "1 for each thing that does not work as it should; tideline status says why.", []string{"what"}, nil)
)

func (c engineCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descInfo, descConnected, descContainers, descTiers, descDecisions, descChanged, descRefused, descFailedOpen,
		descBadInput, descWrites, descWriteFails, descRepairs, descJournal, descPolicyGen, descPolicyBad, descDegraded} {
		ch <- d
	}
}

func (c engineCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	st, err := c.d.status(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(descInfo, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	n := st.Counts
	gauge(descInfo, 1, st.Door, st.Version, string(st.Mode), st.Runtime.Name, st.Runtime.Version)
	gauge(descConnected, number(st.Runtime.Connected))
	for _, s := range []policy.State{policy.Managed, policy.Adopted, policy.Missed} {
		gauge(descContainers, float64(n.Containers[s]), string(s))
	}
	for _, t := range append(v1alpha1.Tiers(), v1alpha1.None) {
		name := string(t)
		if name == "" {
			name = "none"
		}
		gauge(descTiers, float64(n.Tiers[t]), name)
	}
	count(descDecisions, n.Decisions)
	count(descChanged, n.Changed)
	count(descRefused, n.Refused)
	count(descFailedOpen, n.FailedOpen)
	count(descBadInput, n.BadInput)
	count(descWrites, n.Writes)
	count(descWriteFails, n.WriteFails)
	count(descRepairs, n.Repairs)
	gauge(descJournal, float64(st.Cgroup.Journal))
	gauge(descPolicyGen, float64(st.Policy.Generation))
	gauge(descPolicyBad, number(st.Policy.Error != ""))
	degraded := map[string]control.Degraded{}
	for _, d := range st.Degraded {
		degraded[d.What] = d
	}
	for _, what := range slices.Sorted(maps.Keys(degraded)) {
		gauge(descDegraded, 1, what)
	}
}

// resctrlCollector reads the resctrl groups when it is asked.
type resctrlCollector struct{ d *Door }

// Descriptions of what resctrlCollector tells; docs/metrics.md has the same list.
var (
	descCLOSIDs   = prometheus.NewDesc("tideline_resctrl_closids", "Control groups that resctrl can have, the root group among them.", nil, nil)
	descGroups    = prometheus.NewDesc("tideline_resctrl_groups", "Control groups by owner: root, tideline, other.", []string{"owner"}, nil)
	descTasks     = prometheus.NewDesc("tideline_resctrl_group_tasks", "Threads in a control group; / is the root group.", []string{"group"}, nil)
	descOccupancy = prometheus.NewDesc("tideline_resctrl_llc_occupancy_bytes", "Cache that a control group has in a domain at the moment.", []string{"group", "domain"}, nil)
	descBandwidth = prometheus.NewDesc("tideline_resctrl_memory_bytes_total", "Memory traffic of a control group through a domain, all of it (total) or to its own node (local).", []string{"group", "domain", "kind"}, nil)
)

func (c resctrlCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descCLOSIDs, descGroups, descTasks, descOccupancy, descBandwidth} {
		ch <- d
	}
}

// Collect tells nothing where there is no resctrl, and leaves out what the kernel has no value of at the moment.
func (c resctrlCollector) Collect(ch chan<- prometheus.Metric) {
	core := c.d.core.Load()
	if core == nil {
		return
	}
	u, err := core.partitions.Usage()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(descCLOSIDs, err)
		return
	}
	if u.CLOSIDs == 0 && len(u.Groups) == 0 {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descCLOSIDs, float64(u.CLOSIDs))
	owners := map[string]int{"root": 0, "tideline": 0, "other": 0}
	for _, g := range u.Groups {
		name, owner := strings.ToValidUTF8(g.Name, "?"), "other"
		switch {
		case name == "":
			name, owner = "/", "root"
		case g.Ours:
			owner = "tideline"
		}
		owners[owner]++
		gauge(descTasks, float64(g.Tasks), name)
		for _, d := range g.Counters {
			if d.Sub || d.Resource != "L3" {
				continue
			}
			domain := strconv.Itoa(d.ID)
			for _, event := range d.Events {
				if event.State != resctrl.Counted {
					continue
				}
				switch event.Event {
				case "llc_occupancy":
					gauge(descOccupancy, float64(event.Value), name, domain)
				case "mbm_total_bytes":
					ch <- prometheus.MustNewConstMetric(descBandwidth, prometheus.CounterValue, float64(event.Value), name, domain, "total")
				case "mbm_local_bytes":
					ch <- prometheus.MustNewConstMetric(descBandwidth, prometheus.CounterValue, float64(event.Value), name, domain, "local")
				}
			}
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		gauge(descGroups, float64(owners[owner]), owner)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
