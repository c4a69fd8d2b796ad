// Command tideline-runtime-proxy is the CRI door: it listens where the kubelet looks for its runtime, relays every call
// to the real runtime, and gives containers the values of their tier on the way. docs/install-node.md says how to put it
// between the two and how to take it away.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/obs"
	"github.com/tideline-io/tideline/runtime-proxy/internal/proxy"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // the heap is a few MiB: collecting it twice as often costs little, and memory is the node's
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg := proxy.Config{Root: "/", Mode: control.ModeEnforce}
	var level, format, mode string
	cmd := &cobra.Command{
		Use:   "tideline-runtime-proxy --listen unix:///PATH --runtime-endpoint unix:///PATH",
		Short: "Give every container the values of its tier, between the kubelet and its container runtime",
		Long: `tideline-runtime-proxy listens on a CRI socket, relays every call to the container runtime, and gives each
container the CPUs, CPU bandwidth, memory protection and disk weight of its pod's tier (label tideline.io/qos). Pods
without a tier pass untouched. Point the kubelet's containerRuntimeEndpoint at --listen; docs/install-node.md has the
steps and the way back.

Stop it at once, from the least to the most:  --mode observe,  tideline bypass on,  tideline disable.`,
		Example: `  tideline-runtime-proxy --listen unix:///run/tideline/cri.sock --runtime-endpoint unix:///run/containerd/containerd.sock
  tideline-runtime-proxy … --mode observe          # decide, count and explain, but change nothing
  tideline-runtime-proxy … --policy /etc/tideline/policy.yaml`,
		Args:          cobra.NoArgs,
		Version:       obs.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch control.Mode(mode) {
			case control.ModeEnforce, control.ModeObserve:
				cfg.Mode = control.Mode(mode)
			default:
				return fmt.Errorf("--mode %q: want enforce or observe", mode)
			}
			lines := obs.NewLines(stderr)
			defer lines.Close()
			log, err := obs.Logger(lines, level, format)
			if err != nil {
				return err
			}
			slog.SetDefault(log)
			return proxy.Run(ctx, cfg, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", "unix:///run/tideline/cri.sock", "socket for the kubelet; one that systemd hands over is taken")
	f.StringVar(&cfg.RuntimeEndpoint, "runtime-endpoint", "unix:///run/containerd/containerd.sock", "socket of the container runtime")
	f.StringVar(&cfg.PolicyFile, "policy", "", "QoSPolicy file, reloaded when it changes; none: the built-in policy")
	f.StringVar(&mode, "mode", string(control.ModeEnforce), "enforce, or observe: decide, count and explain, but change nothing")
	f.BoolVar(&cfg.PassThrough, "pass-through", false, "relay bytes and nothing else: no decisions, no engine, no files written")
	f.StringVar(&cfg.RunDir, "run-dir", control.DefaultRunDir, "folder for the lock, the journal, the records and the control socket; on a tmpfs")
	f.StringVar(&cfg.MetricsAddress, "metrics-address", "", "loopback address (127.0.0.1:9464) that also serves /metrics, /healthz and /readyz; none: the control socket alone")
	f.DurationVar(&cfg.DrainTimeout, "drain-timeout", proxy.DefaultDrainTimeout, "how long running calls may go on after SIGTERM")
	f.DurationVar(&cfg.DecisionBudget, "decision-budget", engine.DefaultDecisionBudget, "what a call waits for its decision; past it the failure policy of its tier holds. More is for emulated machines")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "tideline-runtime-proxy:", err)
		return 1
	}
	return 0
}
