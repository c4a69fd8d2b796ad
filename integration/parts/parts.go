// Package parts builds the real programs that the integration tests run
// (containerd, runc, the kubelet and so on) from pinned sources, and keeps
// each in the folder .cache/parts of the repository under a key of
// everything that its bytes depend on. A part whose key is there is never
// built again, and costs a few file reads.
//
// It never downloads a built program other than a Debian package, and never
// runs what it built.
//
//	store, err := parts.Open(os.Stderr)
//	paths, err := store.Build(ctx, parts.ContainerRuntime()...)
//	cmd := exec.Command(paths["containerd"], "--version")
package parts

import (
	"fmt"
	"slices"
	"strings"
)

// A Part is one program, and how to make it. Every field takes part in the
// key of the program.
type Part struct {
	// Name is the name of the program, unique in the table.
	Name string
	// Project is the folder below integration/tools whose go.mod pins the
	// sources; empty for what is not made from a tools module.
	Project string
	// Module is the module in that go.mod whose version is the part's.
	Module string
	// Package is the main package.
	Package string
	// TestBinary says that the program is the package's test binary.
	TestBinary bool
	// Folder is the folder below integration with the sources of a program
	// of this repository that uses the standard library only.
	Folder string
	// CFolder is a folder of Module with the C sources of a program, in place
	// of Package. A field that most parts lack is left out of the key, or all
	// parts would be built anew.
	CFolder string `json:",omitempty"`
	// Cgo says that the program needs a C compiler.
	Cgo bool
	// Tags are build tags.
	Tags string
	// LDFlags are linker flags. VERSION, MAJOR and MINOR in them stand for
	// the version of Module without its v.
	LDFlags string
	// DebianFile is a file of the Debian package DebianPackage, without its
	// leading slash, that is the program: it is unpacked, not installed.
	DebianFile    string
	DebianPackage string
	// NeedsToBuild and NeedsToRun name the Debian packages that have to be
	// installed to make the program and to use it.
	NeedsToBuild []string
	NeedsToRun   []string
	// Cold says how long a first build takes, for the one who waits.
	Cold string
}

const (
	containerdCmd = "github.com/containerd/containerd/v2/cmd/"
	cniPlugins    = "github.com/containernetworking/plugins/plugins/"
	kubernetesCmd = "k8s.io/kubernetes/cmd/"
	crioModule    = "github.com/cri-o/cri-o"

	containerdFlags = "-X github.com/containerd/containerd/v2/version.Version=VERSION"
	cniFlags        = "-X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=vVERSION"
	// Without these a node reports version v0.0.0-master, and the API server
	// and the kubelet compute feature gates for it.
	kubernetesFlags = "-X k8s.io/component-base/version.gitVersion=vVERSION" +
		" -X k8s.io/component-base/version.gitMajor=MAJOR -X k8s.io/component-base/version.gitMinor=MINOR"
)

// All returns the table of parts, cheap ones first.
func All() []Part {
	containerd := func(name, cold string) Part {
		return Part{Name: name, Project: "containerd", Module: "github.com/containerd/containerd/v2",
			Package: containerdCmd + name, LDFlags: containerdFlags, Cold: cold}
	}
	cni := func(kind, name string, needs ...string) Part {
		return Part{Name: name, Project: "cni", Module: "github.com/containernetworking/plugins",
			Package: cniPlugins + kind + "/" + name, LDFlags: cniFlags, NeedsToRun: needs, Cold: "15 s"}
	}
	kubernetes := func(name, cold string, needs ...string) Part {
		return Part{Name: name, Project: "kubernetes", Module: "k8s.io/kubernetes",
			Package: kubernetesCmd + name, LDFlags: kubernetesFlags, NeedsToRun: needs, Cold: cold}
	}
	own := func(name string) Part {
		return Part{Name: name, Folder: "images/programs/" + name, Package: "./images/programs/" + name, Cold: "10 s"}
	}
	return []Part{
		{Name: "busybox", DebianPackage: "busybox-static", DebianFile: "bin/busybox", Cold: "5 s"},
		own("pause"),
		own("websrv"),
		own("nnp"),
		containerd("containerd", "3 min"),
		containerd("containerd-shim-runc-v2", "10 s"),
		// A static runc runs in a VM that has no C library. The nsexec part
		// of runc is C, so there is no way around cgo.
		{Name: "runc", Project: "runc", Module: "github.com/opencontainers/runc",
			Package: "github.com/opencontainers/runc", Cgo: true, Tags: "seccomp netgo osusergo",
			LDFlags:      "-extldflags -static -X main.version=VERSION",
			NeedsToBuild: []string{"gcc", "libc6-dev", "libseccomp-dev", "pkg-config"}, Cold: "45 s"},
		containerd("ctr", "10 s"),
		cni("main", "bridge", "iptables"),
		cni("main", "loopback"),
		cni("ipam", "host-local"),
		cni("meta", "portmap", "iptables", "nftables"),
		{Name: "crictl", Project: "cri-tools", Module: "sigs.k8s.io/cri-tools",
			Package: "sigs.k8s.io/cri-tools/cmd/crictl",
			LDFlags: "-X sigs.k8s.io/cri-tools/pkg/version.Version=VERSION", Cold: "1 min"},
		{Name: "critest", Project: "cri-tools", Module: "sigs.k8s.io/cri-tools",
			Package: "sigs.k8s.io/cri-tools/cmd/critest", TestBinary: true, Cold: "1 min"},
		// Static as runc is. The tags leave out libraries that Debian has and
		// no test needs: gpgme (signatures), btrfs, ostree.
		{Name: "crio", Project: "cri-o", Module: crioModule, Package: crioModule + "/cmd/crio", Cgo: true,
			Tags: "containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs btrfs_noversion" +
				" exclude_graphdriver_devicemapper seccomp sqlite_omit_load_extension netgo osusergo",
			LDFlags:      "-extldflags -static",
			NeedsToBuild: []string{"gcc", "libc6-dev", "libseccomp-dev", "pkg-config"}, Cold: "6 min"},
		{Name: "pinns", Project: "cri-o", Module: crioModule, CFolder: "pinns/src",
			NeedsToBuild: []string{"gcc", "libc6-dev"}, Cold: "10 s"},
		{Name: "conmon", DebianPackage: "conmon", DebianFile: "usr/bin/conmon",
			NeedsToRun: []string{"libglib2.0-0", "libsystemd0"}, Cold: "5 s"},
		kubernetes("kubelet", "6 min", "iptables", "mount"),
		{Name: "etcd", Project: "etcd", Module: "go.etcd.io/etcd/server/v3",
			Package: "go.etcd.io/etcd/server/v3", Cold: "1 min"},
		kubernetes("kube-apiserver", "3 min"),
		kubernetes("kube-scheduler", "20 s"),
		kubernetes("kube-controller-manager", "1 min"),
	}
}

// ContainerRuntime names what a node needs to run pods through CRI: containerd
// with runc, the plugins of a bridge network, ctr to import images, and the
// programs inside the images.
func ContainerRuntime() []string {
	return append([]string{"containerd", "containerd-shim-runc-v2", "runc", "ctr",
		"bridge", "loopback", "host-local", "portmap"}, Images()...)
}

// CRIO names what a node needs to run pods through CRI-O, with the programs
// inside the images.
func CRIO() []string {
	return append([]string{"crio", "pinns", "conmon", "runc", "bridge", "loopback", "host-local", "portmap"}, Images()...)
}

// Images names the programs inside the local images.
func Images() []string { return []string{"busybox", "pause", "websrv", "nnp"} }

// ControlPlane names what an API server with a scheduler needs.
func ControlPlane() []string { return []string{"etcd", "kube-apiserver", "kube-scheduler"} }

// find returns the part called name.
func find(name string) (Part, error) {
	all := All()
	i := slices.IndexFunc(all, func(p Part) bool { return p.Name == name })
	if i < 0 {
		var names []string
		for _, p := range all {
			names = append(names, p.Name)
		}
		return Part{}, fmt.Errorf("find part %q: want one of %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}
