// Command tideline is the operator's CLI: it explains what a pod gets and why, checks a node, and talks to the door
// that runs there. Installed as kubectl-tideline it is a plugin of kubectl.
//
//	tideline explain -f pod.yaml
//	tideline check
//	tideline status
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/install"
	"github.com/tideline-io/tideline/internal/obs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	c := &cli{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, width: terminalWidth(os.Stdout),
		color: mayColor(terminalWidth(os.Stdout) > 0),
		name:  filepath.Base(os.Args[0]), root: "/",
		exec: execute, waits: install.DefaultWaits(), resctrlHost: thisHost(terminalWidth(os.Stdout) > 0),
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		c.width = n
	}
	code := c.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// cli is one call of the program with its surroundings.
type cli struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	width          int    // columns of the terminal, 0 when stdout is none
	color          bool   // stdout is a terminal that shows colours
	name           string // as it was called
	root           string // of the file system that facts are read from

	exec  func(ctx context.Context, args []string) (string, error) // runs a command of the node
	waits install.Waits

	resctrlHost resctrlHost

	control string
}

// widthElsewhere is where text wraps that goes to no terminal.
const widthElsewhere = 100

// errSaid ends with exit code 1 after everything was said.
var errSaid = errors.New("said already")

// run is the program: it returns the exit code.
func (c *cli) run(ctx context.Context, args []string) int {
	if c.width == 0 {
		c.width = widthElsewhere
	}
	cmd := c.command()
	cmd.SetArgs(args)
	cmd.SetIn(c.stdin)
	cmd.SetOut(c.stdout)
	cmd.SetErr(c.stderr)
	err := cmd.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errSaid):
	default:
		fmt.Fprintf(c.stderr, "error: %s\n", next(err))
	}
	return 1
}

// next adds what to do to errors that everybody meets.
func next(err error) string {
	text := err.Error()
	switch {
	case errors.Is(err, control.ErrNoDoor):
		return text + "\nStart one (systemctl start tideline-runtime-proxy or tideline-nri-plugin), or name its socket with --control."
	case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
		return text + "\nRun this as root."
	case errors.Is(err, context.Canceled):
		return "interrupted"
	}
	return text
}

func (c *cli) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "tideline",
		Short: "Explain and operate the QoS of pods on a node",
		Long: `tideline explains which CPU, memory and disk settings a pod gets from its tier and why,
checks whether a node is ready, puts a door (the runtime proxy or
the NRI plugin) on it and takes it away, and talks to the door that runs there.`,
		Example: `  # What would this pod get here? No cluster is asked.
  tideline explain -f pod.yaml

  # Is this node ready, and what is to be changed?
  tideline check

  # What do the cgroups of a running pod hold, and who asked for it?
  tideline explain pod shop/cart-0`,
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	if strings.HasPrefix(c.name, "kubectl-") {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl tideline"}
	}
	root.PersistentFlags().IntVar(&c.width, "width", c.width, "columns that text is wrapped at")
	root.AddCommand(c.explain(), c.check(), c.cpus(), c.resctrl(), c.policyCommand(), c.status(), c.bypass(), c.disable(), c.install(), c.uninstall(), c.snapshot(), c.version())
	return root
}

// controlFlag adds --control to a command that talks to a door.
func (c *cli) controlFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.control, "control", control.DefaultSocket, "control socket of the door")
}

func (c *cli) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(c.stdout, "tideline", obs.Version())
			return err
		},
	}
}
