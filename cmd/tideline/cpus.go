package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
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
	Reserved   string         `json:"reserved"` // of those that are online
	Pools      ReportedPools  `json:"pools"`
	Kubelet    *string        `json:"kubelet"`  // exclusive CPUs of its static CPU manager; null where they are not known
	Pods       []ReportedPod  `json:"pods"`     // with CPUs of their own; null where they are not known
	Problems   []string       `json:"problems"` // what is not as it should be, "WHERE: why"
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
what the signs are. It asks no door and changes nothing.

The machine is this one, or the one whose "tideline snapshot" is given with --node-facts. The policy, for reserved CPUs
and pools, is that of --policy, else /etc/tideline/policy.yaml where this machine has it, else the built-in one.

Pods with CPUs of their own are not shown yet: nothing places them.`,
		Example: `  tideline cpus
  tideline cpus --color always | less -R
  tideline cpus --node-facts node7.snapshot --policy policy.yaml -o json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
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
			r, o, err := reportCPUs(facts, source, spec)
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

// reportCPUs puts the topology and what the policy gives together. Placements are nobody's yet.
func reportCPUs(f hostfs.Facts, source NodeSource, spec policyWithSource) (CPUReport, owners, error) {
	p, err := policy.Compile(spec.Spec)
	if err != nil {
		return CPUReport{}, owners{}, err
	}
	reserved, err := units.ParseCPUs(spec.Spec.ReservedCPUs)
	if err != nil {
		return CPUReport{}, owners{}, err
	}
	o := owners{reserved: reserved.Intersection(f.Node.Online), ls: p.LSPool(f.Node), be: p.BEPool(f.Node)}
	r := newCPUReport(f.Topology(), o)
	r.Node, r.Policy, r.Problems = source, spec.source, topologyProblems(f)
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
	if r.Pods == nil {
		p.labelled("pods", 8, "none is shown: nothing places them on CPUs of their own yet")
	}
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
