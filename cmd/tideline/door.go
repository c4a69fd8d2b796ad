package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
)

func (c *cli) status() *cobra.Command {
	var output string
	var ready bool
	cmd := &cobra.Command{
		Use: "status", Short: "Show the state of the door on this node",
		Example: `  tideline status
  tideline status -o json
  tideline status --ready    # for a probe: ends with 1 while the door decides nothing or its runtime is away`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			s, err := control.Dial(c.control).Status(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				err = writeJSON(c.stdout, s)
			} else {
				_, err = io.WriteString(c.stdout, statusText(s, c.width))
			}
			if err == nil && ready && !s.Runtime.Connected { // a door that can't decide connects to none
				err = errSaid
			}
			return err
		},
	}
	c.controlFlag(cmd)
	outputFlag(cmd, &output)
	cmd.Flags().BoolVar(&ready, "ready", false, "end with 1 unless the door decides and its runtime is connected")
	return cmd
}

// statusText writes one subject a line; times are absolute, so that the text of a status never changes.
func statusText(s control.Status, width int) string {
	p := &page{width: width}
	const label = 12
	put := func(name, format string, args ...any) {
		p.labelled(name, label, fmt.Sprintf(format, args...))
	}
	put("door", "%s %s, process %d, since %s", s.Door, s.Version, s.PID, s.StartedAt.Format(time.RFC3339))
	mode := string(s.Mode)
	if s.Mode != s.StartMode {
		mode += fmt.Sprintf(" (started to %s)", s.StartMode)
	}
	if s.ModeWhy != "" {
		mode += ": " + s.ModeWhy
	}
	put("mode", "%s", mode)
	put("listens at", "%s", s.Listen)
	runtime := strings.TrimSpace(s.Runtime.Name+" "+s.Runtime.Version) + " at " + s.Runtime.Endpoint
	switch {
	case s.Runtime.Connected:
		runtime += ", connected"
	case s.Runtime.Error != "":
		runtime += ", not connected: " + s.Runtime.Error
	default:
		runtime += ", not connected"
	}
	put("runtime", "%s", strings.TrimSpace(runtime))
	if n := s.Runtime.NRI; n != nil {
		put("", "NRI %s, since %s; drops a plugin that answers no hook in %s", n.Version, n.Since.Format(time.RFC3339), n.RequestTimeout)
	}
	put("policy", "%s (%s), generation %d, loaded %s", dash(s.Policy.Name), s.Policy.Source, s.Policy.Generation, s.Policy.LoadedAt.Format(time.RFC3339))
	if s.Policy.Error != "" {
		put("", "a newer file was not taken: %s", s.Policy.Error)
	}
	put("cgroups", "version %d, %s with values that disable would put back", s.Cgroup.Version, plural(s.Cgroup.Journal, "cgroup", "cgroups"))
	for _, k := range policy.Knobs() {
		switch f, known := s.Cgroup.Features[k]; {
		case !known:
		case f.Support == policy.Unsupported:
			put("", "%s missing, needs %s", k, f.Need)
		case f.Inert != "":
			put("", "%s without effect: %s", k, f.Inert)
		}
	}
	n := s.Counts
	put("containers", "%d managed, %d adopted, %d missed", n.Containers[policy.Managed], n.Containers[policy.Adopted], n.Containers[policy.Missed])
	put("by tier", "%s", tiersText(n.Tiers))
	put("messages", "%d decisions, %d changed, %d refused, %d failed open, %d with bad input", n.Decisions, n.Changed, n.Refused, n.FailedOpen, n.BadInput)
	put("files", "%d written, %d failed, %d repaired after others", n.Writes, n.WriteFails, n.Repairs)
	for i, d := range s.Degraded {
		name := ""
		if i == 0 {
			name = "degraded"
		}
		put(name, "%s: %s (since %s)", d.What, d.Why, d.Since.Format(time.RFC3339))
	}
	return p.String()
}

func tiersText(tiers map[v1alpha1.Tier]int) string {
	var parts []string
	for _, t := range v1alpha1.Tiers() {
		if tiers[t] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", tiers[t], t))
		}
	}
	if n := tiers[v1alpha1.None]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d none", n))
	}
	for _, t := range slices.Sorted(maps.Keys(tiers)) { // a newer door may know more
		if t != v1alpha1.None && !slices.Contains(v1alpha1.Tiers(), t) {
			parts = append(parts, fmt.Sprintf("%d %s", tiers[t], t))
		}
	}
	return dash(strings.Join(parts, ", "))
}

func (c *cli) bypass() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bypass on|off", Short: "Let the door pass everything on, or end that",
		Long: `Bypass on makes the door pass every call on at once, deciding nothing; it remembers that over a restart. Values that
stand in the kernel stay: "tideline disable" puts them back too. Bypass off goes back to the mode it was started with.`,
		Example: `  tideline bypass on
  tideline bypass off`,
		Args: cobra.ExactArgs(1), ValidArgs: []string{"on", "off"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != "on" && args[0] != "off" {
				return fmt.Errorf("bypass %q: want on or off", args[0])
			}
			s, err := control.Dial(c.control).Bypass(cmd.Context(), args[0] == "on")
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.stdout, "mode: %s\n", s.Mode)
			return err
		},
	}
	c.controlFlag(cmd)
	return cmd
}

func (c *cli) disable() *cobra.Command {
	cmd := &cobra.Command{
		Use: "disable", Short: "Bypass, and put every kernel value back",
		Long: `Disable turns bypass on and puts every kernel value that the door overwrote back to what stood there, so that a later
update by anybody brings none of ours back. Pods go on running. "tideline bypass off" starts the door's work again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := control.Dial(c.control).Disable(cmd.Context())
			if errors.Is(err, control.ErrNoDoor) {
				return noDoor{err}
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "%s put back, the kubelet's resources sent again for %s\n", plural(r.Restored, "kernel value", "kernel values"), plural(r.Updated, "container", "containers"))
			if r.Groups > 0 {
				fmt.Fprintf(c.stdout, "%s removed\n", plural(r.Groups, "resctrl group", "resctrl groups"))
			}
			for _, e := range r.Errors {
				fmt.Fprintf(c.stderr, "error: %s\n", e)
			}
			if len(r.Errors) > 0 {
				fmt.Fprintln(c.stderr, "Not everything is back: call tideline disable again, it goes on where it stopped.")
				return errSaid
			}
			fmt.Fprintln(c.stdout, "The door passes everything on now; tideline bypass off starts its work again.")
			return nil
		},
	}
	c.controlFlag(cmd)
	return cmd
}

// noDoor says what disable can't do without a door.
type noDoor struct{ err error }

func (e noDoor) Error() string {
	return e.err.Error() + "\nNothing was put back. Start a door (systemctl start tideline-runtime-proxy; it reads the journal) and call tideline disable\nagain, or name its socket with --control. A reboot too removes every value."
}
