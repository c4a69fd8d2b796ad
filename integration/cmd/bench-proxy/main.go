// Command bench-proxy measures what the proxy costs, and prints each measure with its bar; `make bench-proxy` runs it. It
// ends with status 0 whatever it measured, since a busy machine measures itself, and with 1 where it could not measure.
//
// Pods on a real containerd need root; without it the rest is measured.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tideline-io/tideline/integration/bench"
	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/integration/parts"
)

func main() {
	if bench.Role(os.Args) {
		return
	}
	runs := flag.Int("runs", 5, "the median of so many runs is shown")
	rounds := flag.Int("rounds", 1000, "rounds of the small calls in a run")
	pairs := flag.Int("pods", 30, "pods that are made direct, and as many through the proxy")
	quick := flag.Bool("quick", false, "few rounds: shows that it works, measures little")
	flag.Parse()
	if *quick {
		*runs, *rounds, *pairs = 2, 100, 3
	}
	if os.Geteuid() == 0 {
		lab.Isolate(lab.Parts(parts.ContainerRuntime()...), own.Prepare)
	}
	if err := run(*runs, *rounds, *pairs); err != nil {
		fmt.Fprintln(os.Stderr, "bench-proxy:", err)
		os.Exit(1)
	}
}

func run(runs, rounds, pairs int) (err error) {
	begin := time.Now()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	progress := func(s string) { fmt.Fprintf(os.Stderr, "bench-proxy: %5.1f s  %s\n", time.Since(begin).Seconds(), s) }
	programs := own.Dir // built before the lab
	if os.Geteuid() != 0 {
		programs = func() (string, error) { return own.Build(ctx, os.Stderr) }
	}
	bin, err := programs()
	if err != nil {
		return err
	}
	cfg := bench.Config{Proxy: filepath.Join(bin, own.Proxy), Runs: runs, Rounds: rounds, Relists: max(rounds, 200), Known: 500, Parent: "/tideline-bench/kubepods", Progress: progress}
	var l *lab.Lab
	if os.Geteuid() == 0 {
		if l, err = lab.New("bench"); err != nil {
			return err
		}
		defer func() {
			progress("removing everything")
			if cerr := l.Close(); cerr != nil && err == nil {
				err = cerr
			}
		}()
		// As on a node, the pods' cgroups exist, and what is decided for them is written.
		cfg.Dir, cfg.Parent, cfg.PodDir = filepath.Join(l.Dir(), "fake"), l.CgroupParent()+"/fake/kubepods", lab.MakeCgroup
		cfg.RunDir = filepath.Join("/run", "tideline-bench") // the lab's own tmpfs
		if err := os.Mkdir(cfg.Dir, 0o755); err != nil {
			return err
		}
	} else {
		if cfg.Dir, err = os.MkdirTemp("", "tideline-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(cfg.Dir)
		if cfg.RunDir, err = os.MkdirTemp("/dev/shm", "tideline-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(cfg.RunDir)
	}
	report, err := bench.Run(ctx, cfg)
	if err != nil {
		return err
	}
	if l == nil {
		report.NoPods = "it needs root"
		return report.Print(os.Stdout)
	}
	root, err := own.Root()
	if err != nil {
		return err
	}
	spec, err := demo.Manifest(filepath.Join(root, "deploy", "examples", "demo", "be.yaml"), 0)
	if err != nil {
		return err
	}
	if report.Pods, err = bench.Pods(ctx, l, spec, pairs, progress); err != nil {
		fmt.Fprintln(os.Stderr, l.LogTails(20))
		return err
	}
	return report.Print(os.Stdout)
}
