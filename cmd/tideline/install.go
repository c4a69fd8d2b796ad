package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/install"
)

func (c *cli) install() *cobra.Command {
	var o install.Options
	var door, mode string
	var dryRun bool
	cmd := &cobra.Command{
		Use: "install --door cri|nri", Short: "Put a door on this node, or switch it to the other door",
		Long: `Install puts a door on this node that systemd runs: its units, its arguments, a policy file where there is none, and one
drop-in. The kubelet's and the runtime's own files are never written. Pods go on running.

  cri  the runtime proxy; a drop-in in the kubelet's --config-dir points the kubelet at it, the kubelet is restarted
  nri  the NRI plugin; where the runtime has NRI off, a drop-in turns it on and the runtime is restarted

It shows the plan, carries it out step by step, and checks that the door answers before the kubelet is pointed at it. A
step that fails ends it; run it again to go on. The programs have to be in /usr/local/bin. What was changed is remembered
in ` + install.StateFile + `; "tideline uninstall" takes it back.

With the other door on the node it switches. Only one can run: between the stop of the old one and the start of the new
one, containers are created without values, and get them with their next update.

A new door only observes, one that replaces another keeps its mode. Arguments in /etc/tideline that were edited stay.`,
		Example: `  tideline install --door cri --dry-run
  tideline install --door cri
  tideline install --door cri --mode enforce
  tideline install --door nri`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Door, o.Mode = install.Door(door), control.Mode(mode)
			if !o.Door.Valid() {
				return fmt.Errorf("--door %q: want cri or nri", door)
			}
			return c.change(cmd.Context(), o, install.Install, dryRun)
		},
	}
	f := cmd.Flags()
	f.StringVar(&door, "door", "", "cri or nri")
	f.StringVar(&mode, "mode", "", "observe or enforce (default: that of the door that is there, else observe)")
	f.BoolVar(&o.Force, "force", false, "replace files of ours that somebody has edited")
	f.BoolVar(&dryRun, "dry-run", false, "print the plan and change nothing; needs no root")
	c.controlFlag(cmd)
	return cmd
}

func (c *cli) uninstall() *cobra.Command {
	var o install.Options
	var dryRun bool
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Take back what install did, and every kernel value",
		Long: `Uninstall asks the door to put every kernel value back, points the kubelet at its runtime again, stops and removes the
door, and removes each file that "tideline install" wrote. Pods go on running. It can be called again at any time.

Where no door answers, nobody can put values back: start it, or leave them with --keep-values until containers are made
anew or the node reboots. A drop-in or unit that was edited since stops it; --force removes it. Files in /etc/tideline that
were edited stay.`,
		Example: `  tideline uninstall --dry-run
  tideline uninstall`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.change(cmd.Context(), o, install.Uninstall, dryRun)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.KeepValues, "keep-values", false, "leave kernel values as they are")
	f.BoolVar(&o.Force, "force", false, "remove files of ours that somebody has edited")
	f.BoolVar(&dryRun, "dry-run", false, "print the plan and change nothing; needs no root")
	c.controlFlag(cmd)
	return cmd
}

// change plans, shows the plan, and carries it out.
func (c *cli) change(ctx context.Context, o install.Options, decide func(install.Facts, install.Options) (install.Plan, error), dryRun bool) error {
	node := install.Node{
		Root: c.root, Run: c.exec, Door: control.Dial(c.control), Wait: c.waits,
		Say: func(line string) { fmt.Fprintln(c.stdout, line) },
	}
	facts, err := install.ReadFacts(ctx, node)
	if err != nil {
		return err
	}
	plan, err := decide(facts, o)
	if err != nil {
		return err
	}
	fmt.Fprint(c.stdout, plan)
	if dryRun || len(plan.Steps) == 0 {
		return nil
	}
	fmt.Fprintln(c.stdout)
	if err := install.Apply(ctx, node, plan); err != nil {
		stopped, ok := errors.AsType[*install.StepError](err)
		if !ok {
			return err
		}
		fmt.Fprintf(c.stderr, "error: %s\n%s", next(err), remains(stopped))
		return errSaid
	}
	fmt.Fprintf(c.stdout, "\nDone. %s\n", plan.Next)
	return nil
}

// remains says what was done and what was not.
func remains(e *install.StepError) string {
	var b strings.Builder
	if e.At > 0 {
		fmt.Fprintf(&b, "Steps 1 to %d are done. Not done:\n", e.At)
	} else {
		b.WriteString("Nothing was done:\n")
	}
	for i, s := range e.Plan.Steps[e.At:] {
		fmt.Fprintf(&b, "%3d. %s\n", e.At+i+1, s)
	}
	if slices.ContainsFunc(e.Plan.Steps[:e.At], func(s install.Step) bool { return s.Op == install.Forget }) {
		b.WriteString("Everything of Tideline is gone; this check alone failed.\n")
		return b.String()
	}
	b.WriteString("Repair the cause and run the same command again; it goes on from here. Or take everything back: tideline uninstall\n")
	return b.String()
}

// execute runs a command of the node; its error has what the command said.
func execute(ctx context.Context, args []string) (string, error) {
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if said := strings.TrimSpace(stderr.String()); err != nil && said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return stdout.String(), err
}
