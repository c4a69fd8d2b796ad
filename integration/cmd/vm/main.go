// Vm runs a Linux program in a small virtual machine with cgroup v2 and, on
// request, several NUMA nodes, prints its output and exits with its status. It
// is package vm for the command line and owns nothing else.
//
//	go run ./cmd/vm run -- /bin/sh -c 'cat /sys/fs/cgroup/cgroup.controllers'
//	go run ./cmd/vm run -numa 2 -cpus 4 -- /bin/ls /sys/devices/system/node
//	go run ./cmd/vm run -file /bin/check=bin/check -results out -- /bin/check -v
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/tideline-io/tideline/integration/vm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	exit := 2
	if err == nil {
		exit, err = vm.Run(ctx, cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		if exit < 0 {
			// Not 1, which many a program in the guest exits with.
			exit = 125
		}
	}
	os.Exit(exit)
}

// parse reads the command line: run [flags] -- program args.
func parse(args []string, usage io.Writer) (vm.Config, error) {
	cfg := vm.Config{Files: map[string]string{}, Ports: map[int]int{}}
	fs := flag.NewFlagSet("vm run", flag.ContinueOnError)
	fs.SetOutput(usage)
	fs.Usage = func() {
		fmt.Fprintln(usage, "usage: vm run [flags] -- /guest/program args")
		fs.PrintDefaults()
	}
	fs.IntVar(&cfg.CPUs, "cpus", 0, "number of CPUs (0: 2)")
	fs.IntVar(&cfg.MemoryMiB, "mem", 0, "memory in MiB (0: 1024)")
	fs.IntVar(&cfg.NUMANodes, "numa", 0, "number of NUMA nodes (0: 1)")
	fs.IntVar(&cfg.ThreadsPerCore, "threads", 0, "CPUs that are one core (0: 1)")
	fs.DurationVar(&cfg.Limit, "limit", 0, "time for the whole run (0: 5m)")
	fs.StringVar(&cfg.Results, "results", "", "`directory` to copy the guest's /results to")
	fs.BoolVar(&cfg.Network, "network", false, "a network in which 10.0.2.2 is this machine")
	fs.Func("file", "`guest=host`: a file or directory for the guest (repeatable)", func(s string) error {
		guest, host, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want guest=host")
		}
		cfg.Files[guest] = host
		return nil
	})
	fs.Func("module", "`name` of a kernel module to load (repeatable)", func(s string) error {
		cfg.Modules = append(cfg.Modules, s)
		return nil
	})
	fs.Func("port", "`host:guest`: a TCP port of the loopback to forward (repeatable)", func(s string) error {
		h, g, _ := strings.Cut(s, ":")
		host, err := strconv.Atoi(h)
		if err != nil {
			return err
		}
		guest, err := strconv.Atoi(g)
		if err != nil {
			return err
		}
		cfg.Ports[host] = guest
		return nil
	})
	if len(args) == 0 || args[0] != "run" {
		fs.Usage()
		if len(args) > 0 && (args[0] == "-h" || args[0] == "--help" || args[0] == "help") {
			return cfg, flag.ErrHelp
		}
		return cfg, errors.New("want the subcommand run")
	}
	if err := fs.Parse(args[1:]); err != nil {
		return cfg, err
	}
	if fs.NArg() == 0 {
		fs.Usage()
		return cfg, errors.New("want a program")
	}
	cfg.Program, cfg.Args = fs.Arg(0), fs.Args()[1:]
	return cfg, nil
}
