package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/preflight"
	"github.com/tideline-io/tideline/internal/units"
)

// Report is the JSON of `tideline check`. Fields are only ever added.
type Report struct {
	Ready bool             `json:"ready"` // no line is a fix
	Lines []preflight.Line `json:"lines"`
}

func (c *cli) check() *cobra.Command {
	cfg := preflight.Config{Root: c.root}
	var output, runDir, wanted, policyFile string
	cmd := &cobra.Command{
		Use: "check", Short: "Check whether this node is ready, and say what to change",
		Long: `Check reads this node and judges it line by line:

  ok        as it should be
  degraded  Tideline works, a part of it does not or less well
  fix       to be changed first; the line below says how

It changes nothing. It exits with 0 when there is no fix line, else with 1. Run it as root.`,
		Example: `  tideline check
  tideline check --door nri          # before the plugin is installed
  tideline check --kubelet-config /etc/kubernetes/kubelet.yaml -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if wanted != "" && wanted != "cri" && wanted != "nri" {
				return fmt.Errorf("--door %q: want cri or nri", wanted)
			}
			ctx := cmd.Context()
			door, doorErr := control.Dial(c.control).Status(ctx)
			which := cmp.Or(wanted, door.Door)
			if doorErr == nil && !cmd.Flags().Changed("proxy-endpoint") && door.Door == "cri" && door.Listen != "" {
				cfg.ProxyEndpoint = "unix://" + preflight.SocketPath(door.Listen)
			}
			cfg.JournalDir = filepath.Join(runDir, "journal")
			facts := preflight.Gather(cfg)
			facts.Policy = c.policyFacts(policyFile)
			facts.Door = doorErr == nil && (wanted == "" || wanted == door.Door)
			if which == "nri" {
				facts.NRI = pluginFacts(door)
			}
			if s := facts.Runtime.Socket; s.IsSocket {
				facts.Runtime = askRuntime(ctx, c.path(s.Path), facts.Runtime)
			}
			lines := preflight.Check(facts)
			report := Report{Ready: !preflight.NeedsFix(lines), Lines: lines}
			if output == "json" {
				if err := writeJSON(c.stdout, report); err != nil {
					return err
				}
			} else if _, err := io.WriteString(c.stdout, report.text(c.width)); err != nil {
				return err
			}
			if !report.Ready {
				return errSaid
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.KubeletConfig, "kubelet-config", "", "the kubelet's configuration file (default: that of the running kubelet, else "+preflight.DefaultKubeletConfig+")")
	f.StringVar(&policyFile, "policy", "", "policy file (default: "+hostPolicy+", else the built-in policy)")
	f.StringVar(&cfg.RuntimeEndpoint, "runtime-endpoint", "unix:///run/containerd/containerd.sock", "CRI socket of the runtime")
	f.StringVar(&cfg.ProxyEndpoint, "proxy-endpoint", "unix://"+control.DefaultRunDir+"/cri.sock", "CRI socket of the proxy, where no door tells its own")
	f.StringVar(&wanted, "door", "", "cri or nri: the door that this node is to have (default: the one that runs, else cri)")
	f.StringVar(&runDir, "run-dir", control.DefaultRunDir, "run directory of the door")
	c.controlFlag(cmd)
	outputFlag(cmd, &output)
	return cmd
}

// policyFacts tells what the policy reserves.
func (c *cli) policyFacts(file string) preflight.Policy {
	spec, err := c.policy(file, true)
	if err != nil {
		return preflight.Policy{Error: err.Error()}
	}
	reserved, err := units.ParseCPUs(spec.Spec.ReservedCPUs)
	if err != nil {
		return preflight.Policy{Error: err.Error()}
	}
	return preflight.Policy{Source: spec.source.Source, Reserved: reserved}
}

// askRuntime calls Version and RuntimeConfig; a runtime that lacks the latter (containerd before 2.0) leaves the driver out.
func askRuntime(ctx context.Context, path string, r preflight.Runtime) preflight.Runtime {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	r.Asked = true
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.Error = err.Error()
		return r
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	v, err := client.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		r.Error = "it does not answer CRI: " + err.Error()
		return r
	}
	r.Name, r.Version = v.GetRuntimeName(), v.GetRuntimeVersion()
	if c, err := client.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}); err == nil && c.GetLinux() != nil {
		r.CgroupDriver = map[runtimeapi.CgroupDriver]string{
			runtimeapi.CgroupDriver_SYSTEMD: "systemd", runtimeapi.CgroupDriver_CGROUPFS: "cgroupfs",
		}[c.GetLinux().GetCgroupDriver()]
	}
	return r
}

func (r Report) text(width int) string {
	p := &page{width: width}
	count := map[preflight.Level]int{}
	var rows [][]string
	for _, l := range r.Lines {
		count[l.Level]++
		found := strings.Join(append([]string{l.Found}, l.More...), "\n  ")
		if l.Change != "" {
			found += "\n-> " + l.Change
		}
		rows = append(rows, []string{string(l.Level), l.Check, found})
	}
	p.table(0, []string{"", "CHECK", "FOUND"}, rows)
	p.WriteString("\n")
	verdict := "This node is ready"
	if !r.Ready {
		verdict = "This node is not ready"
	}
	p.line(0, 0, fmt.Sprintf("%s: %d to fix, %d degraded, %d ok.", verdict, count[preflight.Fix], count[preflight.Degraded], count[preflight.OK]))
	return p.String()
}

// pluginFacts tells what a running plugin knows of its runtime.
func pluginFacts(door control.Status) *preflight.NRI {
	rt := door.Runtime
	n := &preflight.NRI{Connected: rt.Connected, Runtime: rt.Name + " " + rt.Version, Error: rt.Error}
	if rt.NRI != nil {
		n.Version, n.RequestTimeout, n.Updates = rt.NRI.Version, rt.NRI.RequestTimeout, rt.NRI.Updates
	}
	return n
}
