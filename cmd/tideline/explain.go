package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/partition"
	"github.com/tideline-io/tideline/internal/policy"
)

func (c *cli) explain() *cobra.Command {
	var files []string
	var nodeFile, policyFile, output, namespace, driver string
	cmd := &cobra.Command{
		Use:   "explain -f FILE",
		Short: "Explain what pods get from their tier, and why",
		Long: `Explain prints for each pod of a file its tier and what decided it, and for the pod's cgroup and each container
every kernel setting: what the kubelet asks for, the value it gets, the rule and the reason. It asks no cluster and
no runtime and changes nothing.

The file holds YAML documents or JSON: Pods, workloads with a pod template, and Lists of these.

A pod of LSE or LSR is placed as on a node where no other pod has CPUs of its own. Values depend on the machine. They are those of this one, or of the one whose "tideline snapshot" is given with
--node-facts. Where neither can be had, generic facts stand in, and the output says so: cgroup v2, 8 CPUs, 32 GiB,
one SSD, every knob supported.

The policy is that of --policy, else /etc/tideline/policy.yaml where this machine has it, else the built-in one.`,
		Example: `  tideline explain -f pod.yaml
  helm template shop ./chart | tideline explain -f -
  tideline explain -f pod.yaml --node-facts node7.snapshot --policy policy.yaml -o json
  tideline explain pod shop/cart-0`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if len(files) == 0 {
				return errors.New("no file: name a manifest with -f FILE (- is standard input), or ask for a running pod with: tideline explain pod NAMESPACE/NAME")
			}
			node, err := c.node(nodeFile)
			if err != nil {
				return err
			}
			switch kube.CgroupDriver(driver) {
			case kube.Cgroupfs, kube.Systemd:
				node.CgroupDriver = driver
			case "":
				if node.CgroupDriver == "" {
					node.CgroupDriver = string(kube.Cgroupfs)
				}
			default:
				return fmt.Errorf("--cgroup-driver %s: want cgroupfs or systemd", driver)
			}
			spec, err := c.policy(policyFile, nodeFile == "")
			if err != nil {
				return err
			}
			compiled, err := policy.Compile(spec.Spec)
			if err != nil {
				return err
			}
			c.groups(&node, nodeFile, compiled)
			e := Explanation{APIVersion: v1alpha1.APIVersion, Kind: "Explanation", Node: node, Policy: spec.source, Pods: []ExplainedPod{}}
			for _, file := range files {
				found, err := c.manifests(file, namespace)
				if err != nil {
					return fmt.Errorf("%s: %w", file, err)
				}
				for _, w := range found.warnings {
					fmt.Fprintf(c.stderr, "warning: %s: %s\n", file, w)
				}
				for _, s := range found.skipped {
					fmt.Fprintf(c.stderr, "skipped: %s: %s has no pods\n", file, s)
				}
				for _, m := range found.pods {
					e.Pods = append(e.Pods, explainPod(m, compiled, node))
				}
			}
			if len(e.Pods) == 0 {
				return fmt.Errorf("no pod in %s: want a Pod, a workload with a pod template (Deployment, DaemonSet, StatefulSet, ReplicaSet, Job, CronJob) or a List of these", strings.Join(files, ", "))
			}
			if output == "json" {
				return writeJSON(c.stdout, e)
			}
			_, err = io.WriteString(c.stdout, e.text(c.width))
			return err
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&files, "filename", "f", nil, "manifest to explain, - for standard input; may be repeated")
	f.StringVar(&nodeFile, "node-facts", "", `facts of another machine, a file of "tideline snapshot"`)
	f.StringVar(&policyFile, "policy", "", "policy file")
	f.StringVarP(&namespace, "namespace", "n", "default", "namespace of objects that name none")
	f.StringVar(&driver, "cgroup-driver", "", "how the kubelet names cgroups, cgroupfs or systemd (default: as the machine's cgroups are named, else cgroupfs)")
	outputFlag(cmd, &output)
	cmd.AddCommand(c.explainRunning())
	return cmd
}

// groups gives the node the resctrl groups that the policy comes to, where it has resctrl.
func (c *cli) groups(node *NodeSource, nodeFile string, p *policy.Policy) {
	_, r, err := c.resctrlOf(nodeFile)
	if err != nil || r == nil {
		return // the facts say what it lacks
	}
	groups, _, err := partition.Of(r.Files).Keep(context.Background(), p.Partitions(), false)
	if err == nil {
		node.node.Groups = groups
	}
}

// policyWithSource is a policy and where it came from.
type policyWithSource struct {
	v1alpha1.QoSPolicy
	source PolicySource
}

// hostPolicy is where a node keeps its policy.
const hostPolicy = "/etc/tideline/policy.yaml"

// policy reads the policy file; here says that the answer is for this machine, so that its own policy counts.
func (c *cli) policy(file string, here bool) (policyWithSource, error) {
	name := file
	if file == "" {
		name = c.path(hostPolicy)
	}
	if file == "" && !here {
		return builtIn(), nil
	}
	data, err := os.ReadFile(name)
	switch {
	case file == "" && errors.Is(err, fs.ErrNotExist):
		return builtIn(), nil
	case err != nil:
		return policyWithSource{}, fmt.Errorf("read policy: %w", err)
	}
	p, err := v1alpha1.ParsePolicy(data)
	if err != nil {
		return policyWithSource{}, fmt.Errorf("policy %s: %w", name, err)
	}
	return policyWithSource{p, PolicySource{Name: p.Metadata.Name, Source: name, untiered: p.Spec.Untiered}}, nil
}

func builtIn() policyWithSource {
	p := v1alpha1.Default()
	return policyWithSource{p, PolicySource{Name: p.Metadata.Name, Source: "built in", untiered: p.Spec.Untiered}}
}

func (c *cli) manifests(file, namespace string) (parsed, error) {
	if file == "-" {
		return parseManifests(c.stdin, namespace)
	}
	f, err := os.Open(file)
	if err != nil {
		return parsed{}, err
	}
	defer f.Close()
	return parseManifests(f, namespace)
}

func (c *cli) explainRunning() *cobra.Command {
	var output, namespace string
	cmd := &cobra.Command{
		Use:   "pod [NAMESPACE/]NAME",
		Short: "Explain what the cgroups of a running pod hold",
		Long: `Explain pod asks the door on this node about a running pod. For the pod's cgroup and each container it prints on one
line a setting what the kubelet asked, what we want, what the runtime's stored spec holds, what the kernel's file
holds, and what takes effect after the parents.`,
		Example: `  tideline explain pod shop/cart-0
  tideline explain pod cart-0 -n shop -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			ns, name, ok := strings.Cut(args[0], "/")
			if !ok {
				ns, name = namespace, args[0]
			}
			if ns == "" || name == "" {
				return fmt.Errorf("%q: want NAMESPACE/NAME", args[0])
			}
			cgroups, err := control.Dial(c.control).ExplainPod(cmd.Context(), ns, name)
			if errors.Is(err, control.ErrNotFound) {
				return fmt.Errorf("pod %s/%s: %w\nSee that it runs on this node (crictl pods --namespace %s); for a manifest use: tideline explain -f FILE", ns, name, err, ns)
			}
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(c.stdout, cgroups)
			}
			_, err = io.WriteString(c.stdout, runningText(ns, name, cgroups, c.width))
			return err
		},
	}
	c.controlFlag(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace where the name has none")
	outputFlag(cmd, &output)
	return cmd
}

func runningText(namespace, name string, cgroups []control.Explained, width int) string {
	p := &page{width: width}
	p.line(0, 2, fmt.Sprintf("Pod %s/%s", namespace, name))
	if len(cgroups) == 0 {
		p.line(2, 2, "the door knows no cgroup of it yet")
	}
	for i, e := range cgroups {
		if i == 0 {
			p.line(2, 2, runningTier(e.Decision, cgroups))
		}
		p.WriteString("\n")
		title := string(e.Level) + " cgroup"
		if e.Name != "" {
			title = "container " + e.Name
		}
		if e.State != "" {
			title += ", " + string(e.State)
		}
		p.line(2, 2, title)
		if e.Cgroup != "" {
			p.line(4, 2, e.Cgroup)
		}
		if r := e.Decision.Refusal; r != nil {
			p.line(4, 2, fmt.Sprintf("refused: %s (%s)", r.Message, r.Key))
		}
		runningRows(p, e.Rows)
		notes(p, 4, e.Decision.Notes)
	}
	return p.String()
}

func runningTier(d policy.Decision, cgroups []control.Explained) string {
	if d.Tier == v1alpha1.None {
		if slices.ContainsFunc(cgroups, func(e control.Explained) bool { return len(e.Decision.Settings) > 0 }) {
			return "tier: none: the kubelet's values stand, but it leaves the CPUs that pods of LSE and LSR own"
		}
		return "tier: none: nothing of ours is written, the kubelet's values stand"
	}
	switch s := d.Source; s.Kind {
	case policy.FromLabel, policy.FromAlias:
		return fmt.Sprintf("tier: %s by %s %s=%s", d.Tier, s.Kind, s.Key, s.Value)
	case policy.FromRule:
		return fmt.Sprintf("tier: %s by rule %q of the policy", d.Tier, s.Rule)
	}
	return "tier: " + string(d.Tier)
}

// runningRows writes the rows with their reasons in the last column, or below where they do not fit.
func runningRows(p *page, rows []control.Row) {
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, []string{string(r.Knob), dash(r.Asked), dash(r.Wanted), dash(r.Spec), dash(r.Kernel), dash(r.Effective), r.Reason})
	}
	p.table(4, []string{"KNOB", "ASKED", "WANTED", "SPEC", "KERNEL", "EFFECTIVE", "WHY"}, cells)
}
