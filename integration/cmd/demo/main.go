// Command demo shows Tideline's main job on real parts; `make demo` runs it. With -cgroup v2 the same happens in a VM.
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

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/guest"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/integration/parts"
)

func main() {
	version := flag.String("cgroup", "v1", "v1: on this machine; v2: in a VM")
	door := flag.String("door", node.CRI, "cri: the proxy; nri: the plugin")
	manifests := flag.String("manifests", "", "folder with the manifests; default deploy/examples/demo")
	flag.Parse()
	if *version == "v2" && os.Getenv(lab.Env) == "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		exit, err := guest.Run(ctx, guest.Config{Args: []string{"-cgroup", "v2", "-door", *door, "-manifests", guest.Manifests}, Limit: 15 * time.Minute})
		if err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			exit = 1
		}
		os.Exit(exit)
	}
	lab.Isolate(lab.Parts(parts.ContainerRuntime()...), own.Prepare)
	os.Exit(run(*door, *manifests))
}

func run(door, manifests string) int {
	start := time.Now()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	if manifests == "" {
		root, err := own.Root()
		if err != nil {
			return fail(err)
		}
		manifests = filepath.Join(root, "deploy", "examples", "demo")
	}
	l, err := lab.New("demo")
	if err != nil {
		return fail(err)
	}
	progress := func(s string) { fmt.Fprintf(os.Stderr, "demo: %5.1f s  %s\n", time.Since(start).Seconds(), s) }
	bad, err := demo.Run(ctx, l, os.Stdout, demo.Options{Manifests: manifests, Door: door, Progress: progress})
	if err != nil || len(bad) > 0 {
		fmt.Fprintln(os.Stderr, l.LogTails(20))
	}
	progress("removing everything")
	if cerr := l.Close(); cerr != nil && err == nil {
		err = cerr
	}
	if err != nil {
		return fail(err)
	}
	fmt.Println()
	for _, b := range bad {
		fmt.Println("differs:", b)
	}
	if len(bad) > 0 {
		fmt.Printf("demo: FAILED: %d differences\n", len(bad))
		return 1
	}
	fmt.Printf("demo: passed in %.1f s: what was decided, what explain says and what the kernel has are the same\n", time.Since(start).Seconds())
	return 0
}
