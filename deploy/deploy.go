// Package deploy holds the files that go onto a node: systemd units with their arguments, and drop-ins for the kubelet
// and the runtimes. `tideline install` writes them from here, so there is one copy of each. It decides nothing.
//
//	unit, err := deploy.Files.ReadFile("systemd/tideline-runtime-proxy.service")
package deploy

import "embed"

// Files has the paths of this folder.
//
//go:embed systemd containerd crio
var Files embed.FS
