// Command tideline-nri-plugin is the NRI door: a plugin of the container runtime that gives containers the values of
// their tier. docs/install-node.md says how to run it and how to take it away.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"syscall"

	"github.com/containerd/nri/pkg/api"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/door"
	"github.com/tideline-io/tideline/internal/obs"
	"github.com/tideline-io/tideline/nri-plugin/internal/plugin"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // the heap is a few MiB: collecting it twice as often costs little, and memory is the node's
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, "/", os.Args[1:], os.Stdout, os.Stderr))
}

// launchedPolicy is the policy of a plugin that its runtime starts, which passes no arguments.
const launchedPolicy = "/etc/tideline/policy.yaml"

func run(ctx context.Context, root string, args []string, stdout, stderr io.Writer) int {
	cfg := door.Config{Name: "nri", Root: root, Recheck: true}
	pc := plugin.Config{Name: "tideline"}
	var level, format, mode string
	cmd := &cobra.Command{
		Use:   "tideline-nri-plugin [--nri-socket PATH]",
		Short: "Give every container the values of its tier, from inside the container runtime",
		Long: `tideline-nri-plugin registers with containerd or CRI-O over NRI and gives each container the CPUs, CPU bandwidth, memory
protection and disk weight of its pod's tier (label tideline.io/qos). Pods without a tier are left alone. It connects
again whenever the runtime has gone, and needs no change of the kubelet.

A runtime that finds it as NN-tideline in its plugin folder starts it by itself, without flags: NN is its index, and
/etc/tideline/policy.yaml, where there is one, its policy.

Stop it at once, from the least to the most:  --mode observe,  tideline bypass on,  tideline disable.`,
		Example: `  tideline-nri-plugin
  tideline-nri-plugin --mode observe               # decide, count and explain, but change nothing
  tideline-nri-plugin --policy /etc/tideline/policy.yaml`,
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
			if !regexp.MustCompile(`^[0-9][0-9]$`).MatchString(pc.Index) {
				return fmt.Errorf("--index %q: want two digits; plugins are called in this order", pc.Index)
			}
			if !filepath.IsAbs(pc.Socket) || len(pc.Socket) > 107 {
				return fmt.Errorf("--nri-socket %q: want an absolute path of at most 107 bytes", pc.Socket)
			}
			lines := obs.NewLines(stderr)
			defer lines.Close()
			log, err := obs.Logger(lines, level, format)
			if err != nil {
				return err
			}
			if plugin.Launched() {
				pc.Index = os.Getenv(api.PluginIdxEnvVar)
				path := filepath.Join(root, launchedPolicy)
				if _, err := os.Stat(path); cfg.PolicyFile == "" && !errors.Is(err, fs.ErrNotExist) {
					cfg.PolicyFile = path // one that can't be read is an error, and not the built-in policy
				}
			}
			cfg.Log, pc.Log, cfg.Listen, cfg.Endpoint, pc.Budget = log, log, pc.Socket, pc.Socket, cfg.DecisionBudget
			cfg.Connect = func(version int) (door.Link, error) {
				_, err := os.Stat(filepath.Join(root, "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"))
				pc.NoSwap = version == 1 && errors.Is(err, fs.ErrNotExist)
				return plugin.New(pc, version), nil
			}
			d, err := door.Open(cfg)
			if err != nil {
				return err
			}
			defer d.Close()
			d.Notify(daemon.SdNotifyReady)
			log.Info("plugin", "socket", pc.Socket, "index", pc.Index, "mode", cfg.Mode, "runDir", cfg.RunDir)
			err = d.Run(ctx)
			d.Notify(daemon.SdNotifyStopping)
			log.Info("stopped")
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&pc.Socket, "nri-socket", api.DefaultSocketPath, "socket of NRI in the container runtime")
	f.StringVar(&pc.Index, "index", "90", "two digits: plugins are called in this order")
	f.StringVar(&cfg.PolicyFile, "policy", "", "QoSPolicy file, reloaded when it changes; none: the built-in policy")
	f.StringVar(&mode, "mode", string(control.ModeEnforce), "enforce, or observe: decide, count and explain, but change nothing")
	f.StringVar(&cfg.RunDir, "run-dir", control.DefaultRunDir, "folder for the lock, the journal, the records and the control socket; on a tmpfs")
	f.StringVar(&cfg.MetricsAddress, "metrics-address", "", "loopback address (127.0.0.1:9464) that also serves /metrics, /healthz and /readyz; none: the control socket alone")
	f.DurationVar(&cfg.DecisionBudget, "decision-budget", plugin.DefaultBudget, "what a hook waits for its decision; past it the failure policy of its tier holds. Runtimes drop a plugin after 2 s")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "tideline-nri-plugin:", err)
		return 1
	}
	return 0
}
