package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/preflight"
	"github.com/tideline-io/tideline/internal/units"
)

// CPUReport is the JSON of `tideline cpus`. Lists of CPUs are as the kernel writes them: "0-3,8". Fields are only ever
// added.
type CPUReport struct {
	APIVersion string         `json:"apiVersion"` // "tideline.io/v1alpha1"
	Kind       string         `json:"kind"`       // "CPUReport"
	Node       NodeSource     `json:"node"`
	Policy     PolicySource   `json:"policy"`
	CPUs       []ReportedCPU  `json:"cpus"`      // the online ones, by ID
	NUMANodes  []ReportedNode `json:"numaNodes"` // the online ones, by ID; none without NUMA
	Offline    string         `json:"offline"`
	Isolated   string         `json:"isolated"`
	Reserved   string         `json:"reserved"` // by policy or kubelet, of those that are online
	ReservedBy ReservedBy     `json:"reservedBy"`
	Pools      ReportedPools  `json:"pools"`
	CPUManager *string        `json:"cpuManager"` // the kubelet's policy, "none" or "static"; null where it is not known
	Kubelet    *string        `json:"kubelet"`    // exclusive CPUs of its static CPU manager; null where they are not known
	Pods       []ReportedPod  `json:"pods"`       // with CPUs of their own; null where no door tells
	Problems   []string       `json:"problems"`   // what is not as it should be, "WHERE: why"

	aboutKubelet, aboutPods string
}

// ReservedBy is who reserves which CPUs, as it is written there.
type ReservedBy struct {
	Policy  string  `json:"policy"`
	Kubelet *string `json:"kubelet"` // reservedSystemCPUs; null where they are not known
}

// ReportedCPU is one CPU. A number that the kernel does not tell is -1.
type ReportedCPU struct {
	ID        int    `json:"id"`
	Socket    int    `json:"socket"`
	Die       int    `json:"die"`
	NUMANode  int    `json:"numaNode"`
	L3        int    `json:"l3"`
	L2        int    `json:"l2"`
	Core      int    `json:"core"` // the least ID of its threads
	Efficient bool   `json:"efficient"`
	Use       use    `json:"use"`
	Pod       string `json:"pod,omitempty"` // NAMESPACE/NAME; where use is "pod" or "idle"
}

// ReportedNode is one memory node.
type ReportedNode struct {
	ID            int         `json:"id"`
	CPUs          string      `json:"cpus"`
	MemTotalBytes int64       `json:"memTotalBytes"` // 0 for none
	Distances     map[int]int `json:"distances"`     // by the ID of the other node; 10 is the node itself
}

// ReportedPools is the CPUs of the tiers that share.
type ReportedPools struct {
	LS string `json:"LS"`
	BE string `json:"BE"`
}

// ReportedPod is a pod with CPUs of its own.
type ReportedPod struct {
	Namespace   string        `json:"namespace"`
	Name        string        `json:"name"`
	Tier        v1alpha1.Tier `json:"tier"`
	CPUs        string        `json:"cpus"`        // that it runs on
	Owned       string        `json:"owned"`       // these, and siblings that are kept idle
	MemoryNodes string        `json:"memoryNodes"` // "" for all
}

// cpusWidth is the width of the drawing, on a wider terminal too: it is made for this.
const cpusWidth = 80

const maxProblems = 5

func (c *cli) cpus() *cobra.Command {
	var nodeFile, policyFile, output, color string
	cmd := &cobra.Command{
		Use: "cpus", Short: "Draw this node's CPUs and who has them",
		Long: `Cpus draws the CPUs of this node by socket, NUMA node, L3 cache and core, each with a sign of its owner, and lists below
what the signs are. It changes nothing.

The machine is this one, or the one whose "tideline snapshot" is given with --node-facts. On this one the door tells which
pods have CPUs of their own, and the pools of the moment. Without a door, with --policy or with --node-facts, it is the
machine as it would be with no such pod: the policy, for reserved CPUs, is that of --policy, else /etc/tideline/policy.yaml
where this machine has it, else the built-in one. What the kubelet reserves and what its CPU manager gave to pods is read
on this machine only: a snapshot does not hold it.`,
		Example: `  tideline cpus
  tideline cpus --color always | less -R
  tideline cpus --node-facts node7.snapshot --policy policy.yaml -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			switch color {
			case "auto", "always", "never":
			default:
				return fmt.Errorf("--color %s: want auto, always or never", color)
			}
			facts, source, err := c.machine(nodeFile)
			if err != nil {
				return err
			}
			spec, err := c.policy(policyFile, nodeFile == "")
			if err != nil {
				return err
			}
			var k *preflight.Kubelet
			if nodeFile == "" {
				read := preflight.ReadKubelet(c.root, "")
				k = &read
			}
			live := told{about: "not known: a snapshot does not hold them"}
			switch {
			case nodeFile != "":
			case policyFile != "":
				live.about = "left out: with --policy the machine is drawn without any"
			default:
				live = c.askCPUs(cmd.Context())
			}
			r, o, err := reportCPUs(facts, source, spec, k, live)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(c.stdout, r)
			}
			s := style{width: min(c.width, cpusWidth), color: color == "always" || color == "auto" && c.color}
			_, err = io.WriteString(c.stdout, r.text(facts.Topology(), o, s))
			return err
		},
	}
	c.controlFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&nodeFile, "node-facts", "", `facts of another machine, a file of "tideline snapshot"`)
	f.StringVar(&policyFile, "policy", "", "policy file")
	f.StringVar(&color, "color", "auto", "auto (on a terminal, unless NO_COLOR is set), always or never")
	outputFlag(cmd, &output)
	return cmd
}

// mayColor says whether text for this terminal may be coloured; see https://no-color.org.
func mayColor(terminal bool) bool {
	return terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// machine reads the facts of a file or of this machine. There is no generic machine to draw.
func (c *cli) machine(file string) (hostfs.Facts, NodeSource, error) {
	source := "this machine"
	var f hostfs.Facts
	var err error
	if file != "" {
		source = file
		f, err = readNodeFacts(file)
	} else {
		f, err = hostfs.Open(c.root).ReadFacts()
	}
	if err == nil && f.Node.Online.IsEmpty() {
		why := "no CPU is online"
		if problems := topologyProblems(f); len(problems) > 0 {
			why = problems[0]
		}
		err = fmt.Errorf("%s does not tell its CPUs: %s\nTake the facts of a node with tideline snapshot -o FILE, and give them with --node-facts FILE", source, why)
	}
	if err != nil {
		return hostfs.Facts{}, NodeSource{}, err
	}
	return f, nodeSource(source, f), nil
}

// topologyProblems are those of the files that a topology is read from.
func topologyProblems(f hostfs.Facts) []string {
	problems := []string{}
	for _, p := range f.Problems {
		if strings.HasPrefix(p, "sys/devices/") {
			problems = append(problems, p)
		}
	}
	return problems
}

// reportCPUs puts the topology, what the policy gives, what the kubelet took and what a door tells together; k is nil for a
// machine that is not this one.
func reportCPUs(f hostfs.Facts, source NodeSource, spec policyWithSource, k *preflight.Kubelet, live told) (CPUReport, owners, error) {
	p, err := policy.Compile(spec.Spec)
	if err != nil {
		return CPUReport{}, owners{}, err
	}
	limits := p.Limits()
	reserved := limits.Reserved
	kubelet := readKubeletCPUs(k)
	problems := kubelet.problems(f.Node.Online, reserved)
	if kubelet.reserved != nil {
		limits.Reserved = limits.Reserved.Union(*kubelet.reserved)
	}
	if kubelet.exclusive != nil {
		limits.Foreign = *kubelet.exclusive
	}
	m, err := placement.New(f.Topology(), limits)
	if err != nil {
		return CPUReport{}, owners{}, err
	}
	pools := m.Pools(nil)
	o := owners{reserved: limits.Reserved.Intersection(f.Node.Online), foreign: limits.Foreign, ls: pools.LS, be: pools.BE}
	if live.CPUs != nil {
		var more []string
		if o, more, err = live.owners(); err != nil {
			return CPUReport{}, owners{}, err
		}
		problems = append(more, problems...)
	}
	r := newCPUReport(f.Topology(), o)
	r.aboutPods = live.about
	r.Node, r.Policy, r.Problems = source, spec.source, append(problems, topologyProblems(f)...)
	r.ReservedBy = ReservedBy{Policy: units.FormatCPUs(reserved), Kubelet: listOf(kubelet.reserved)}
	r.Kubelet, r.aboutKubelet = listOf(kubelet.exclusive), kubelet.describe()
	if kubelet.manager != "" {
		r.CPUManager = &kubelet.manager
	}
	if lost := reserved.Difference(f.Node.Online); !lost.IsEmpty() {
		r.Problems = append(r.Problems, fmt.Sprintf("spec.reservedCPUs of the policy: CPUs %s are not online", lost))
	}
	for _, n := range f.NUMANodes {
		for i := range r.NUMANodes {
			if r.NUMANodes[i].ID == n.ID {
				r.NUMANodes[i].CPUs, r.NUMANodes[i].MemTotalBytes = n.CPUs.String(), n.MemTotalBytes
			}
		}
	}
	return r, o, nil
}

// told is what a door tells of the pods.
type told struct {
	*control.CPUs        // nil where none does
	about         string // for people
}

func (c *cli) askCPUs(ctx context.Context) told {
	cpus, err := control.Dial(c.control).CPUs(ctx)
	if err != nil {
		return told{about: "not known: " + err.Error()}
	}
	return told{CPUs: &cpus, about: fmt.Sprintf("%s with CPUs of their own, as the door has them", plural(len(cpus.Pods), "pod", "pods"))}
}

// owners is what the door tells, and what of it is not as it should be.
func (c told) owners() (o owners, problems []string, err error) {
	read := func(list string) cpuset.CPUSet {
		set, perr := units.ParseCPUs(list)
		err = errors.Join(err, perr)
		return set
	}
	o = owners{reserved: read(c.Reserved), foreign: read(c.Foreign), ls: read(c.Pools.LS), be: read(c.Pools.BE), assigned: []assignment{}}
	for _, p := range c.Pods {
		o.assigned = append(o.assigned, assignment{
			namespace: cmp.Or(p.Namespace, "?"), name: cmp.Or(p.Name, p.UID), tier: p.Tier, cpus: read(p.CPUs), owned: read(p.Owned), nodes: read(p.Mems),
		})
	}
	if c.Pools.Short != "" {
		problems = append(problems, c.Pools.Short)
	}
	for _, p := range c.Unplaced {
		problems = append(problems, fmt.Sprintf("pod %s/%s of tier %s has no CPUs of its own: %s", p.Namespace, p.Name, p.Tier, p.Why))
	}
	if err != nil {
		err = fmt.Errorf("read what the door tells: %w", err)
	}
	return o, problems, err
}

func listOf(set *cpuset.CPUSet) *string {
	if set == nil {
		return nil
	}
	list := units.FormatCPUs(*set)
	return &list
}

// kubeletCPUs is what the kubelet has of the CPUs; nil is not known.
type kubeletCPUs struct {
	here      bool   // it is this machine's
	manager   string // the configured policy of its CPU manager, "" where it is not known
	why       string // why what is not known is so
	state     preflight.CPUManager
	where     string // what set reserved
	reserved  *cpuset.CPUSet
	exclusive *cpuset.CPUSet
}

func readKubeletCPUs(k *preflight.Kubelet) kubeletCPUs {
	if k == nil {
		return kubeletCPUs{why: "a snapshot does not hold it"}
	}
	out := kubeletCPUs{here: true, why: k.Error, state: k.Manager}
	switch m := k.Manager; {
	case m.Error != "":
		out.why = m.Error
	case m.Exists || k.Error == "": // without a state file it gave nothing away
		out.exclusive = &m.State.Exclusive
	}
	if k.Error != "" {
		return out
	}
	out.manager = k.ManagerPolicy()
	reserved, where, err := k.Reserved()
	if err != nil {
		out.why = err.Error()
		return out
	}
	out.reserved, out.where = &reserved, where
	return out
}

// describe is a line for people.
func (k kubeletCPUs) describe() string {
	text := "not known: " + k.why
	if k.manager != "" {
		text = "CPU manager " + k.manager
	} else if k.exclusive == nil {
		return text
	}
	if k.exclusive != nil && !k.exclusive.IsEmpty() {
		text += fmt.Sprintf(", gave CPUs %s to %s", briefList(*k.exclusive), plural(k.state.State.Pods, "pod", "pods"))
	}
	if k.reserved != nil {
		text += ", reserves " + cmp.Or(briefList(*k.reserved), "no CPUs")
	}
	return text
}

// briefList is the begin of a list in a sentence. The drawing has all of it.
func briefList(set cpuset.CPUSet) string {
	lines := fold(shortList(set), 40)
	if len(lines) > 1 {
		lines[0] += "…"
	}
	return lines[0]
}

// problems are where the kubelet and the policy disagree.
func (k kubeletCPUs) problems(online, reserved cpuset.CPUSet) []string {
	list := []string{}
	add := func(format string, cpus cpuset.CPUSet) {
		if !cpus.IsEmpty() {
			list = append(list, fmt.Sprintf(format, briefList(cpus)))
		}
	}
	if k.here && k.why != "" && (k.manager != "" || k.state.Exists) {
		list = append(list, k.why)
	}
	if s := k.state.State; k.manager != "" && s.Policy != "" && s.Policy != k.manager {
		list = append(list, fmt.Sprintf("%s: of CPU manager policy %s, and %s is configured", k.state.Path, units.Quote(s.Policy), k.manager))
	}
	if k.reserved != nil && k.manager != "none" {
		add("spec.reservedCPUs of the policy: the kubelet's reservedSystemCPUs lack CPUs %s, so it may give them to pods", reserved.Intersection(online).Difference(*k.reserved))
	}
	if k.exclusive != nil {
		add(k.state.Path+": CPUs %s are given to pods, and the policy reserves them", k.exclusive.Intersection(reserved))
		add(k.state.Path+": CPUs %s are given to pods, and are not online", k.exclusive.Difference(online))
	}
	return list
}

// newCPUReport fills in what topology and owners tell.
func newCPUReport(t placement.Topology, o owners) CPUReport {
	r := CPUReport{
		APIVersion: v1alpha1.APIVersion, Kind: "CPUReport", CPUs: []ReportedCPU{}, NUMANodes: []ReportedNode{},
		Offline: t.Offline.String(), Isolated: t.Isolated.String(), Reserved: o.reserved.String(), Pools: ReportedPools{LS: o.ls.String(), BE: o.be.String()},
		Problems: []string{},
	}
	m := mapCPUs(t, o)
	for _, c := range t.CPUs {
		cpu := ReportedCPU{ID: c.ID, Socket: c.Socket, Die: c.Die, NUMANode: c.NUMANode, L3: c.L3, L2: c.L2, Core: c.Core, Efficient: c.Efficient, Use: m[c.ID].use}
		if pod := m[c.ID].pod; pod != nil {
			cpu.Pod = pod.pod()
		}
		r.CPUs = append(r.CPUs, cpu)
	}
	for _, n := range t.Nodes {
		r.NUMANodes = append(r.NUMANodes, ReportedNode{ID: n.ID, Distances: n.Distances})
	}
	if o.assigned != nil {
		r.Pods = []ReportedPod{}
	}
	for _, a := range o.sorted() {
		r.Pods = append(r.Pods, ReportedPod{
			Namespace: a.namespace, Name: a.name, Tier: a.tier, CPUs: a.cpus.String(), Owned: a.owned.String(), MemoryNodes: a.nodes.String(),
		})
	}
	return r
}

// text writes a report for people.
func (r CPUReport) text(t placement.Topology, o owners, s style) string {
	p := &page{width: s.width}
	p.labelled("node", 8, r.Node.describe())
	p.labelled("policy", 8, fmt.Sprintf("%s (%s)", dash(r.Policy.Name), r.Policy.Source))
	p.labelled("kubelet", 8, r.aboutKubelet)
	p.labelled("pods", 8, r.aboutPods)
	for i, problem := range r.Problems { // one a CPU, where /sys is hidden
		if i == maxProblems {
			p.line(0, 2, fmt.Sprintf("! and %d more, see -o json", len(r.Problems)-i))
			break
		}
		p.line(0, 2, "! "+problem)
	}
	p.WriteString("\n")
	memory := map[int]int64{}
	for _, n := range r.NUMANodes {
		memory[n.ID] = n.MemTotalBytes
	}
	p.WriteString(drawCPUs(t, o, memory, s))
	return p.String()
}
