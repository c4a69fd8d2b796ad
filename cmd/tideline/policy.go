package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
)

func (c *cli) policyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Look at policies"}
	cmd.AddCommand(c.policyDiff())
	return cmd
}

func (c *cli) policyDiff() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "diff FILE", Short: "List what a policy would change of what runs on this node",
		Long: `Diff asks the door of this node what would change if the policy in FILE were put in force, for each container, each pod and
the cgroups above them. Nothing is changed.

"at once" is what running containers and pods would have within seconds, "next update" what they would have with the next update that
the kubelet sends (a resize, a restart of the kubelet with its CPU manager), "next container" what only a new container gets.`,
		Example: `  tideline policy diff policy.yaml
  tideline policy diff policy.yaml -o json
  kubectl get configmap -n kube-system tideline-policy -o jsonpath='{.data.policy\.yaml}' | tideline policy diff -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			data, err := c.readPolicy(args[0])
			if err != nil {
				return err
			}
			if _, err := v1alpha1.ParsePolicy(data); err != nil { // the door says the same, with less of a place
				return fmt.Errorf("policy %s: %w", args[0], err)
			}
			changes, err := control.Dial(c.control).PolicyDiff(cmd.Context(), data)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(c.stdout, changes)
			}
			_, err = io.WriteString(c.stdout, policyDiffText(args[0], changes, c.width))
			return err
		},
	}
	c.controlFlag(cmd)
	outputFlag(cmd, &output)
	return cmd
}

// readPolicy reads a file, or standard input for "-".
func (c *cli) readPolicy(name string) ([]byte, error) {
	in := c.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err // it names the file
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, v1alpha1.MaxPolicySize+1))
	if err != nil {
		return nil, fmt.Errorf("read policy %s: %w", name, err)
	}
	return data, nil
}

// policyDiffText is a table for each pod, and one for the cgroups above the pods.
func policyDiffText(name string, changes []control.PolicyChange, width int) string {
	p := &page{width: width}
	if len(changes) == 0 {
		p.line(0, 0, "Policy "+name+" changes nothing of what runs here.")
		return p.String()
	}
	pods, values := map[string]bool{}, 0
	for _, c := range changes {
		if c.Knob != "" {
			values++
		}
		if c.Pod != "" {
			pods[c.Namespace+"/"+c.Pod] = true
		}
	}
	p.line(0, 2, fmt.Sprintf("Policy %s would change %s, of %s.", name, plural(values, "value", "values"), plural(len(pods), "pod", "pods")))
	for len(changes) > 0 {
		head := subject(changes[0])
		n := 1
		for n < len(changes) && subject(changes[n]) == head {
			n++
		}
		p.line(0, 0, "")
		title := head
		if c := changes[0]; c.Pod != "" {
			title = "Pod " + head + ", " + tierName(c.Tier)
			if c.NextTier != c.Tier {
				title += ", would be " + tierName(c.NextTier)
			}
		}
		p.line(0, 2, title)
		var rows [][]string
		for _, c := range changes[:n] {
			if c.Knob == "" {
				continue
			}
			of := c.Container
			if of == "" {
				of = "(pod)"
			}
			if c.Class != "" {
				of = "(class)"
			}
			rows = append(rows, []string{of, string(c.Knob), oneLine(c.Now), oneLine(c.Next), string(c.When)})
		}
		p.table(2, []string{"CONTAINER", "KNOB", "NOW", "NEW", "WHEN"}, rows)
		changes = changes[n:]
	}
	return p.String()
}

func subject(c control.PolicyChange) string {
	if c.Class != "" {
		return "Cgroup " + c.Class
	}
	return c.Namespace + "/" + c.Pod
}

func tierName(t v1alpha1.Tier) string {
	if t == v1alpha1.None {
		return "no tier"
	}
	return "tier " + string(t)
}

// oneLine shows a value of several lines in one, and none as a dash.
func oneLine(v string) string { return dash(strings.ReplaceAll(v, "\n", "; ")) }
