package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/preflight"
)

// path is a place on the node as this process sees it.
func (c *cli) path(name string) string { return filepath.Join(c.root, name) }

// node tells the machine to explain for: that of a snapshot, this one, or a generic one where this one can't be read.
func (c *cli) node(file string) (NodeSource, error) {
	if file != "" {
		f, err := readNodeFacts(file)
		if err != nil {
			return NodeSource{}, err
		}
		return nodeSource(file, f), nil
	}
	f, err := hostfs.Open(c.root).ReadFacts()
	if err == nil && f.Node.CgroupVersion == 0 {
		err = errors.New("it shows no cgroup controllers")
	}
	if err != nil {
		n := nodeSource("generic", genericFacts())
		n.Why = fmt.Sprintf("this machine can't tell its own facts (%v), take those of a node with tideline snapshot", err)
		return n, nil
	}
	n := nodeSource("this machine", f)
	if k := preflight.ReadKubelet(c.root, ""); k.Error == "" {
		n.reserved, _, _ = k.Reserved() // what can't be read is for check to say
	}
	return n, nil
}

// readNodeFacts reads the file of --node-facts.
func readNodeFacts(file string) (hostfs.Facts, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return hostfs.Facts{}, fmt.Errorf("read node facts: %w", err)
	}
	f, err := hostfs.FromSnapshot(data)
	if err != nil {
		return hostfs.Facts{}, fmt.Errorf("node facts %s: %w\nTake them on the node with: tideline snapshot -o FILE", file, err)
	}
	return f, nil
}

func nodeSource(source string, f hostfs.Facts) NodeSource {
	f.Node.PageSize = f.PageSizeBytes
	return NodeSource{
		Source: source, Kernel: f.Kernel, CgroupVersion: f.Node.CgroupVersion, CPUs: f.Node.Online.Size(),
		MemTotalBytes: f.MemTotalBytes, CgroupDriver: f.CgroupDriver, node: f.Node, topology: f.Topology(),
	}
}

// genericFacts are those of a node as most are: the help text of explain names them.
func genericFacts() hostfs.Facts {
	features := map[policy.Knob]policy.Feature{}
	for _, k := range policy.Knobs() {
		features[k] = policy.Feature{Support: policy.Supported}
	}
	var cpus []hostfs.CPU
	for i := range 8 {
		cpus = append(cpus, hostfs.CPU{ID: i, Core: i, Siblings: cpuset.New(i)})
	}
	return hostfs.Facts{
		PageSizeBytes: 4096, MemTotalBytes: 32 << 30, CPUs: cpus,
		Node: policy.Node{
			CgroupVersion: 2, Online: cpuset.New(0, 1, 2, 3, 4, 5, 6, 7), Features: features,
			Devices: []policy.Device{{Name: "sda", Number: "8:0"}},
		},
	}
}

func (c *cli) snapshot() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "snapshot", Short: "Write the facts of this machine to a text file",
		Long: `Snapshot writes what Tideline reads of this machine (kernel, CPUs, memory, disks, cgroup files, resctrl) as text, so that
another machine can explain for it with --node-facts. It holds no host name, no addresses and no processes, and names of
resctrl groups that are not ours are replaced.`,
		Example: `  tideline snapshot -o node7.snapshot
  tideline explain -f pod.yaml --node-facts node7.snapshot`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) (err error) {
			if file == "" || file == "-" {
				return hostfs.Snapshot(hostfs.Open(c.root), c.stdout)
			}
			return writeFile(file, func(w io.Writer) error { return hostfs.Snapshot(hostfs.Open(c.root), w) })
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write, - or none for standard output")
	return cmd
}

// writeFile writes a file whole or not at all.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // after the rename there is none
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
