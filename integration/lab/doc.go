// Package lab runs the real programs of a Kubernetes node for tests and for
// the demo: containerd, an image registry, the kubelet, a control plane. They
// live in namespaces of their own, so nothing of them is left when the program
// ends, in whatever way, and the machine's own container runtime, network and
// cgroups are not touched. In a VM of integration/vm the same calls work
// without namespaces.
//
// It never reaches a network, and never builds: what it runs is built before
// it isolates itself.
//
//	func TestMain(m *testing.M) { lab.Isolate(lab.Parts(parts.ContainerRuntime()...)); os.Exit(m.Run()) }
//	l := lab.ForTest(t, "pods"); c, err := l.StartContainerd(ctx, lab.ContainerdOptions{})
//	cri, err := lab.DialCRI(c.Socket())
//
// Lifetimes: the program's first process (the outer one) starts a janitor and
// pid 1 of the namespaces; pid 1 starts the program again (the inside one),
// where Isolate returns and everything else of this package happens.
//
//	event                          pid 1, inside, their children   cgroups, work folder
//	the program ends or panics     killed by the end of pid 1      removed by the janitor
//	a signal to the outer process  passed on, then as above        as above
//	SIGKILL of the outer process   killed as its children          as above
//	Lab.Close                      that lab's only                 that lab's only
//
// What stays on the machine are the parts in .cache, the Debian packages that
// they need, and the empty folders /var/log/containers, /var/lib/kubelet and
// /var/lib/cni; on a machine with cgroup v2 also controllers that the lab
// enabled in the root's cgroup.subtree_control.
package lab
