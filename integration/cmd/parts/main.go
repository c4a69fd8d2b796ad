// Command parts builds, lists and finds the real programs of the integration
// tests.
//
//	go run ./cmd/parts build all
//	go run ./cmd/parts list
//	$(go run ./cmd/parts path containerd) --version
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"github.com/tideline-io/tideline/integration/parts"
)

const usage = `usage:
  parts build all|NAME...   build what is missing
  parts list                all parts, their versions, and where each is
  parts path NAME           print the path of a part, building it if missing
  parts prune               remove what the present sources no longer lead to
`

var errUsage = errors.New("wrong arguments")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	store, err := parts.Open(stderr)
	if err != nil {
		return err
	}
	verb, names := args[0], args[1:]
	switch {
	case verb == "build" && len(names) > 0:
		if len(names) == 1 && names[0] == "all" {
			names = nil
			for _, p := range parts.All() {
				names = append(names, p.Name)
			}
		}
		_, err := store.Build(ctx, names...)
		return err
	case verb == "path" && len(names) == 1:
		paths, err := store.Build(ctx, names[0])
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(stdout, paths[names[0]])
		return err
	case verb == "list" && len(names) == 0:
		return list(store, stdout)
	case verb == "prune" && len(names) == 0:
		removed, err := store.Prune()
		for _, dir := range removed {
			fmt.Fprintln(stdout, "removed", dir)
		}
		return err
	}
	return errUsage
}

func list(store *parts.Store, w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, p := range parts.All() {
		version, err := store.Version(p.Name)
		if err != nil {
			return err
		}
		path, err := store.Path(p.Name)
		if errors.Is(err, os.ErrNotExist) {
			path, err = "not built, takes about "+p.Cold, nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", p.Name, version, path)
	}
	return tw.Flush()
}
