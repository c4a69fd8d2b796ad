// Package node puts a node together in a lab: containerd, one of our doors, and something that creates pods as a kubelet
// does. Everything ends with the lab.
//
//	n, err := node.Start(ctx, l, node.Options{})
//	pod, err := n.Kubelet.RunPod(ctx, manifest)
//	views, err := n.Control.Containers(ctx)
package node

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/internal/control"
)

// Options of a node.
type Options struct {
	Policy string   // content of the policy file; "" for the built-in policy
	Mode   string   // "" for enforce
	Door   string   // CRI or NRI; "" for CRI
	CRIO   bool     // CRI-O in place of containerd; the door is NRI
	Args   []string // further arguments of the door
	Env    []string // environment of the door
}

// Doors.
const (
	CRI = "cri" // the proxy
	NRI = "nri" // the plugin
)

// Runtime is what a door belongs to: the lab's containerd or CRI-O.
type Runtime interface {
	Socket() string
	NRISocket() string
}

// Node is a running node.
type Node struct {
	Lab        *lab.Lab
	Containerd *lab.Containerd // or
	CRIO       *lab.CRIO
	Kubelet    *Kubelet // talks to the proxy, or to the runtime where the door is NRI
	Direct     *lab.CRI // talks to the runtime
	Control    *control.Client

	runtime Runtime
	opts    Options
	dir     string
	proxy   *lab.Process
}

// Start starts the runtime and the door.
func Start(ctx context.Context, l *lab.Lab, opts Options) (*Node, error) {
	var r Runtime
	var err error
	if opts.CRIO {
		r, err = l.StartCRIO(ctx)
	} else {
		r, err = l.StartContainerd(ctx, lab.ContainerdOptions{})
	}
	if err != nil {
		return nil, err
	}
	n, err := Behind(ctx, l, r, opts)
	if err != nil {
		return nil, err
	}
	cri, err := lab.DialCRI(n.Socket())
	if err != nil {
		return nil, err
	}
	n.Kubelet, err = newKubelet(l, cri)
	return n, err
}

// Behind starts the door of a runtime that runs already, for a real kubelet: there is no Node.Kubelet.
func Behind(ctx context.Context, l *lab.Lab, r Runtime, opts Options) (*Node, error) {
	n := &Node{Lab: l, runtime: r, opts: opts, dir: filepath.Join(l.Dir(), "tideline")}
	n.Containerd, _ = r.(*lab.Containerd)
	n.CRIO, _ = r.(*lab.CRIO)
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the proxy's folder: %w", err)
	}
	if opts.Policy != "" {
		if err := n.SetPolicy(opts.Policy); err != nil {
			return nil, err
		}
	}
	n.Control = control.Dial(n.ControlSocket())
	if err := n.StartProxy(ctx); err != nil {
		return nil, err
	}
	var err error
	n.Direct, err = lab.DialCRI(r.Socket())
	return n, err
}

// Socket is where a kubelet finds its runtime.
func (n *Node) Socket() string {
	if n.opts.Door == NRI {
		return n.runtime.Socket()
	}
	return filepath.Join(n.dir, "cri.sock")
}

// ControlSocket is the proxy's control socket.
func (n *Node) ControlSocket() string { return filepath.Join(n.RunDir(), "control.sock") }

// RunDir is the proxy's run directory.
func (n *Node) RunDir() string { return filepath.Join(n.dir, "run") }

// PolicyFile is the file of the policy, whether or not there is one.
func (n *Node) PolicyFile() string { return filepath.Join(n.dir, "policy.yaml") }

// SetPolicy writes the policy file.
func (n *Node) SetPolicy(text string) error {
	if err := os.WriteFile(n.PolicyFile(), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the policy: %w", err)
	}
	return nil
}

// StartProxy starts the door, for the first time or after its end.
func (n *Node) StartProxy(ctx context.Context) error {
	dir, err := own.Dir()
	if err != nil {
		return err
	}
	name, program := "proxy", own.Proxy
	args := []string{"--run-dir", n.RunDir(), "--log-level", "debug"}
	if n.opts.Door == NRI {
		name, program = "plugin", own.Plugin
		args = append(args, "--nri-socket", n.runtime.NRISocket())
	} else {
		args = append(args, "--listen", "unix://"+n.Socket(), "--runtime-endpoint", "unix://"+n.runtime.Socket())
	}
	if n.opts.Policy != "" {
		args = append(args, "--policy", n.PolicyFile())
	}
	if n.opts.Mode != "" {
		args = append(args, "--mode", n.opts.Mode)
	}
	if lab.Unified() && n.opts.Door != NRI { // an emulated machine is 25 times slower
		args = append(args, "--decision-budget", "3s")
	}
	ready := func(ctx context.Context) error {
		st, err := n.Control.Status(ctx)
		if err == nil && !st.Runtime.Connected && st.ModeWhy != "--pass-through" {
			err = fmt.Errorf("the runtime is away: %s", st.Runtime.Error)
		}
		return err
	}
	n.proxy, err = n.Lab.StartProcess(ctx, lab.ProcessSpec{Name: name, Path: filepath.Join(dir, program), Args: append(args, n.opts.Args...), Env: n.opts.Env, Ready: ready})
	return err
}

// Proxy is the process of the door.
func (n *Node) Proxy() *lab.Process { return n.proxy }

// StopProxy ends the door with a signal and waits for its end.
func (n *Node) StopProxy(ctx context.Context, s syscall.Signal) error {
	if err := n.proxy.Signal(s); err != nil {
		return err
	}
	select {
	case <-n.proxy.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the door's end: %w", ctx.Err())
	}
}

// RestartProxy ends the door with a signal and starts it again.
func (n *Node) RestartProxy(ctx context.Context, s syscall.Signal) error {
	if err := n.StopProxy(ctx, s); err != nil {
		return err
	}
	return n.StartProxy(ctx)
}

// Switch ends the door and starts the other one, and points the kubelet at its runtime anew.
func (n *Node) Switch(ctx context.Context, door string) error {
	if err := n.StopProxy(ctx, syscall.SIGTERM); err != nil {
		return err
	}
	n.opts.Door = door
	if err := n.StartProxy(ctx); err != nil {
		return err
	}
	cri, err := lab.DialCRI(n.Socket())
	if err == nil {
		n.Kubelet.CRI = cri
	}
	return err
}

// Get reads a path of the control socket as text.
func (n *Node) Get(ctx context.Context, path string) (int, string, error) {
	return get(ctx, n.ControlSocket(), path, http.MethodGet)
}
