package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// NodeName is the name of the lab's node.
const NodeName = "node1"

// nodeAddress is the node's address. It lies on the loopback interface, and
// outside of 127.0.0.0/8, which the kubelet refuses.
var nodeAddress = netip.AddrFrom4([4]byte{10, 99, 0, 1})

// KubeletOptions say how the kubelet differs from the usual one of a lab.
type KubeletOptions struct {
	// Runtime is the path of the socket that serves CRI.
	Runtime string
	// Kubeconfig is the path of the file that leads to an API server; empty
	// for a kubelet that runs the pods of ManifestDir only.
	Kubeconfig string
	// Config has fields of KubeletConfiguration in place of the lab's.
	Config map[string]any
	// Args are more arguments.
	Args []string
	// Verbosity is the log level, 2 by default.
	Verbosity int
}

// Kubelet is the lab's kubelet. After Stop or Kill it can be started again on
// the same state.
type Kubelet struct {
	*Process
	lab  *Lab
	spec ProcessSpec
	root string
}

// StartKubelet starts a kubelet with its cgroup root at CgroupParent, and
// waits until it says that it is healthy.
func (l *Lab) StartKubelet(ctx context.Context, opts KubeletOptions) (*Kubelet, error) {
	path, err := l.Part("kubelet")
	if err != nil {
		return nil, err
	}
	if err := addLoopbackAddress(nodeAddress); err != nil {
		return nil, err
	}
	k := &Kubelet{lab: l, root: filepath.Join(l.dir, "kubelet")}
	for _, dir := range []string{k.root, k.ManifestDir(), filepath.Join(l.dir, "podlogs"), filepath.Join(l.dir, "volume-plugins")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make a folder of the kubelet: %w", err)
		}
	}
	config := filepath.Join(l.dir, "kubelet.json")
	if err := l.writeKubeletConfig(config, opts, k.ManifestDir()); err != nil {
		return nil, err
	}
	verbosity := opts.Verbosity
	if verbosity == 0 {
		verbosity = 2
	}
	args := []string{"--config=" + config, "--root-dir=" + k.root, "--cert-dir=" + filepath.Join(k.root, "pki"),
		"--hostname-override=" + NodeName, "--node-ip=" + nodeAddress.String(), fmt.Sprintf("--v=%d", verbosity)}
	if opts.Kubeconfig != "" {
		args = append(args, "--kubeconfig="+opts.Kubeconfig)
	}
	limit := 3 * time.Minute
	if Unified() {
		limit = 15 * time.Minute // in an emulated VM
	}
	k.spec = ProcessSpec{Name: "kubelet", Path: path, Args: append(args, opts.Args...),
		Ready: HTTPReady(http.DefaultClient, "http://127.0.0.1:10248/healthz"), Timeout: limit}
	if err := k.Start(ctx); err != nil {
		return nil, err
	}
	return k, nil
}

// Start starts the kubelet again after Stop or Kill.
func (k *Kubelet) Start(ctx context.Context) error {
	p, err := k.lab.StartProcess(ctx, k.spec)
	if err != nil {
		return err
	}
	k.Process = p
	return nil
}

// Restart ends the kubelet by a signal and starts it again.
func (k *Kubelet) Restart(ctx context.Context, s syscall.Signal) error {
	if err := k.endBy(ctx, s); err != nil {
		return err
	}
	return k.Start(ctx)
}

// writeKubeletConfig writes the kubelet's configuration as JSON, which is YAML.
func (l *Lab) writeKubeletConfig(path string, opts KubeletOptions, manifests string) error {
	config := map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + opts.Runtime,
		"cgroupDriver":             "cgroupfs",
		// An absolute one of our own: the machine's may be in use.
		"cgroupRoot":             l.CgroupParent(),
		"cgroupsPerQOS":          true,
		"enforceNodeAllocatable": []string{"pods"},
		// 1.37 refuses cgroup v1 by default.
		"failCgroupV1":       false,
		"failSwapOn":         false,
		"address":            nodeAddress.String(),
		"port":               10250,
		"readOnlyPort":       10255,
		"healthzBindAddress": "127.0.0.1",
		"authentication":     map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":      map[string]any{"mode": "AlwaysAllow"},
		"staticPodPath":      manifests,
		"fileCheckFrequency": "1s",
		"syncFrequency":      "10s",
		"podLogsDir":         filepath.Join(l.dir, "podlogs"),
		"volumePluginDir":    filepath.Join(l.dir, "volume-plugins"),
		// No rules in the network namespace, no measuring of a disk that is
		// not the node's, and no eviction for it.
		"makeIPTablesUtilChains":        false,
		"localStorageCapacityIsolation": false,
		"imageGCHighThresholdPercent":   100,
		"imageGCLowThresholdPercent":    99,
		"evictionHard":                  map[string]string{"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
		"resolvConf":                    "",
		"clusterDNS":                    []string{"10.96.0.10"},
		"clusterDomain":                 "cluster.local",
	}
	maps.Copy(config, opts.Config)
	b, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, b, 0o644)
}

// RootDir returns the kubelet's state folder. A changed CPU or memory manager
// policy needs cpu_manager_state and memory_manager_state in it removed, or
// the kubelet ends.
func (k *Kubelet) RootDir() string { return k.root }

// PodResourcesSocket returns the path of the socket of the pod resources API.
func (k *Kubelet) PodResourcesSocket() string {
	return filepath.Join(k.root, "pod-resources", "kubelet.sock")
}

// ManifestDir returns the folder of static pods.
func (k *Kubelet) ManifestDir() string { return filepath.Join(k.lab.dir, "manifests") }

// URL returns the address of the kubelet's read-only server, as for /pods.
func (k *Kubelet) URL() string { return "http://" + nodeAddress.String() + ":10255" }

// SetStaticPod writes the manifest of a static pod, a JSON or YAML text;
// an empty one takes the pod away. The kubelet sees it within a second.
func (k *Kubelet) SetStaticPod(name string, manifest []byte) error {
	path := filepath.Join(k.ManifestDir(), name+".yaml")
	if len(manifest) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove static pod %s: %w", name, err)
		}
		return nil
	}
	// The kubelet must not read half of it; it ignores names with a dot in
	// front.
	temp := filepath.Join(k.ManifestDir(), "."+name)
	if err := os.WriteFile(temp, manifest, 0o644); err != nil {
		return fmt.Errorf("write static pod %s: %w", name, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write static pod %s: %w", name, err)
	}
	return nil
}
