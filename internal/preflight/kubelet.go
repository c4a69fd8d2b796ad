package preflight

import (
	"fmt"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// DefaultKubeletConfig is where kubeadm keeps the file.
const DefaultKubeletConfig = "/var/lib/kubelet/config.yaml"

// KubeletConfig is the part of kubelet.config.k8s.io/v1beta1 KubeletConfiguration that concerns us.
type KubeletConfig struct {
	CgroupDriver             string            `json:"cgroupDriver"`
	CgroupsPerQOS            *bool             `json:"cgroupsPerQOS"`
	ContainerRuntimeEndpoint string            `json:"containerRuntimeEndpoint"`
	CPUManagerPolicy         string            `json:"cpuManagerPolicy"`
	CPUManagerPolicyOptions  map[string]string `json:"cpuManagerPolicyOptions"`
	MemoryManagerPolicy      string            `json:"memoryManagerPolicy"`
	TopologyManagerPolicy    string            `json:"topologyManagerPolicy"`
	MemoryThrottlingFactor   *float64          `json:"memoryThrottlingFactor"`
	MemoryReservationPolicy  string            `json:"memoryReservationPolicy"`
	FailCgroupV1             *bool             `json:"failCgroupV1"`
	ReservedSystemCPUs       string            `json:"reservedSystemCPUs"`
	FeatureGates             map[string]bool   `json:"featureGates"`
}

// Kubelet is the kubelet's effective configuration: defaults, its file, drop-ins, then flags.
type Kubelet struct {
	Path    string // the file; drop-ins and flags say so in where
	Config  KubeletConfig
	Error   string // why there is no configuration
	Manager CPUManager
	set     map[string]string
}

// where tells what set a field, by its key in the file.
func (k Kubelet) where(key string) string {
	if w, ok := k.set[key]; ok {
		return w
	}
	return "default"
}

// read lays a file over what is there.
func (k *Kubelet) read(path string, data []byte) error {
	if err := yaml.Unmarshal(data, &k.Config); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	var keys map[string]any
	if err := yaml.Unmarshal(data, &keys); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	if kind, ok := keys["kind"]; ok && kind != "KubeletConfiguration" {
		return fmt.Errorf("parse %s: kind is %v, not KubeletConfiguration", path, kind)
	}
	for key := range keys {
		k.from(key, path)
	}
	return nil
}

func (k *Kubelet) from(key, where string) {
	if k.set == nil {
		k.set = map[string]string{}
	}
	k.set[key] = where
}

// flags lays the kubelet's command line over what is there; it wins over files.
func (k *Kubelet) flags(args []string) {
	text := map[string]struct {
		key string
		to  *string
	}{
		"cgroup-driver":              {"cgroupDriver", &k.Config.CgroupDriver},
		"container-runtime-endpoint": {"containerRuntimeEndpoint", &k.Config.ContainerRuntimeEndpoint},
		"cpu-manager-policy":         {"cpuManagerPolicy", &k.Config.CPUManagerPolicy},
		"memory-manager-policy":      {"memoryManagerPolicy", &k.Config.MemoryManagerPolicy},
		"topology-manager-policy":    {"topologyManagerPolicy", &k.Config.TopologyManagerPolicy},
		"reserved-cpus":              {"reservedSystemCPUs", &k.Config.ReservedSystemCPUs},
	}
	truth := map[string]struct {
		key string
		to  **bool
	}{
		"fail-cgroupv1":   {"failCgroupV1", &k.Config.FailCgroupV1},
		"cgroups-per-qos": {"cgroupsPerQOS", &k.Config.CgroupsPerQOS},
	}
	for name, f := range text {
		if v, ok := flag(args, name); ok {
			*f.to = v
			k.from(f.key, "flag --"+name)
		}
	}
	for _, option := range options(args, "cpu-manager-policy-options") {
		if name, value, ok := strings.Cut(option, "="); ok {
			if k.Config.CPUManagerPolicyOptions == nil {
				k.Config.CPUManagerPolicyOptions = map[string]string{}
			}
			k.Config.CPUManagerPolicyOptions[name] = value
		}
	}
	for name, f := range truth {
		for _, arg := range args {
			v, ok := strings.CutPrefix(strings.TrimLeft(arg, "-"), name)
			if !ok || arg[0] != '-' || v != "" && v[0] != '=' {
				continue
			}
			on := v == ""
			if !on {
				on, _ = strconv.ParseBool(v[1:])
			}
			*f.to = &on
			k.from(f.key, "flag --"+name)
		}
	}
}

// flag finds the last --name=value or --name value.
func flag(args []string, name string) (value string, ok bool) {
	all := options(args, name)
	if len(all) == 0 {
		return "", false
	}
	return all[len(all)-1], true
}

// options finds the values of a flag that may be given several times.
func options(args []string, name string) (values []string) {
	for i, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			continue
		}
		n, v, has := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case n != name:
		case has:
			values = append(values, v)
		case i+1 < len(args):
			values = append(values, args[i+1])
		}
	}
	return values
}

// change says how to set a field where it is set.
func (k Kubelet) change(key, value, then string) string {
	where := k.where(key)
	if flag, ok := strings.CutPrefix(where, "flag "); ok {
		return fmt.Sprintf("take %s from the kubelet's command line, set %s: %s in %s%s, restart the kubelet", flag, key, value, k.Path, then)
	}
	return fmt.Sprintf("set %s: %s in %s%s, restart the kubelet", key, value, k.file(key), then)
}

// file is the file to set a field in.
func (k Kubelet) file(key string) string {
	if where, ok := k.set[key]; ok {
		return where
	}
	return k.Path
}

func checkKubelet(f Facts) []Line {
	k := f.Kubelet
	if k.Error != "" {
		return []Line{{Check: "kubelet", Level: Degraded, Found: "configuration not read: " + k.Error, Change: "name the file with --kubelet-config"}}
	}
	lines := []Line{checkEndpoint(f)}
	c := k.Config
	if f.Machine.Node.CgroupVersion == 1 {
		if c.FailCgroupV1 != nil && !*c.FailCgroupV1 {
			lines = append(lines, ok("kubelet failCgroupV1", "false, by %s", k.where("failCgroupV1")))
		} else {
			lines = append(lines, Line{Check: "kubelet failCgroupV1", Level: Fix, Found: "true, by " + k.where("failCgroupV1") + ": a kubelet from 1.35 on does not start on cgroup v1",
				Change: k.change("failCgroupV1", "false", "")})
		}
	}
	if c.CgroupsPerQOS != nil && !*c.CgroupsPerQOS {
		lines = append(lines, Line{Check: "kubelet cgroupsPerQOS", Level: Fix, Found: "false, by " + k.where("cgroupsPerQOS") + ": pods have no cgroups of their own",
			Change: k.change("cgroupsPerQOS", "true", "")})
	}
	lines = append(lines, checkCPUManager(f))
	for _, m := range []struct{ key, value, none, state, why string }{
		{"memoryManagerPolicy", c.MemoryManagerPolicy, "None", "memory_manager_state", "the kubelet binds Guaranteed pods to memory nodes, so their cpusets stay its own"},
		{"topologyManagerPolicy", c.TopologyManagerPolicy, "none", "", "the kubelet may refuse pods by a topology that the tiers do not know"},
	} {
		check := "kubelet " + m.key
		if m.value == "" || strings.EqualFold(m.value, "none") {
			lines = append(lines, ok(check, "none, by %s", k.where(m.key)))
			continue
		}
		then := ""
		if m.state != "" {
			then = ", remove " + m.state + " from the kubelet's root folder"
		}
		lines = append(lines, Line{Check: check, Level: Degraded, Found: fmt.Sprintf("%s, by %s: %s", m.value, k.where(m.key), m.why), Change: k.change(m.key, m.none, then)})
	}
	return append(lines, checkMemoryQoS(f)...)
}

func checkEndpoint(f Facts) Line {
	const check, key = "kubelet containerRuntimeEndpoint", "containerRuntimeEndpoint"
	endpoint := f.Kubelet.Config.ContainerRuntimeEndpoint
	if endpoint == "" {
		endpoint = "unix:///run/containerd/containerd.sock"
	}
	path := SocketPath(endpoint)
	if f.NRI != nil {
		if path != "" && path == f.Proxy.Path {
			return Line{Check: check, Level: Fix, Found: endpoint + ", by " + f.Kubelet.where(key) + ": the proxy's socket, and the plugin is the door",
				Change: f.Kubelet.change(key, f.Runtime.Socket.Endpoint, "")}
		}
		return ok(check, "%s, by %s: the plugin leaves it alone", endpoint, f.Kubelet.where(key))
	}
	if path != "" && path == f.Proxy.Path {
		return ok(check, "%s, by %s", endpoint, f.Kubelet.where(key))
	}
	return Line{Check: check, Level: Fix, Found: endpoint + ", by " + f.Kubelet.where(key) + ": the kubelet does not talk to the proxy",
		Change: f.Kubelet.change(key, f.Proxy.Endpoint, "")}
}

// checkMemoryQoS looks at the two settings by which the kubelet writes memory protection and throttling itself (KEP-2570),
// on cgroup v2 only.
func checkMemoryQoS(f Facts) []Line {
	const reservation, factor = "memoryReservationPolicy", "memoryThrottlingFactor"
	k := f.Kubelet
	if on, set := k.Config.FeatureGates["MemoryQoS"]; f.Machine.Node.CgroupVersion != 2 || set && !on {
		return nil
	}
	var lines []Line
	if p := k.Config.MemoryReservationPolicy; p == "" || p == "None" {
		lines = append(lines, ok("kubelet "+reservation, "None, by %s", k.where(reservation)))
	} else {
		lines = append(lines, Line{Check: "kubelet " + reservation, Level: Degraded, Found: fmt.Sprintf("%s, by %s: the kubelet protects memory, and we stay within its sums", p, k.where(reservation)),
			Change: k.change(reservation, "None", "")})
	}
	if v := k.Config.MemoryThrottlingFactor; v == nil {
		lines = append(lines, ok("kubelet "+factor, "not set"))
	} else {
		lines = append(lines, Line{Check: "kubelet " + factor, Level: Degraded, Found: fmt.Sprintf("%g, by %s: the kubelet sets memory.high of Burstable and BestEffort containers", *v, k.where(factor)),
			Change: fmt.Sprintf("take %s from %s, restart the kubelet", factor, k.file(factor))})
	}
	return lines
}

// SocketPath is the path of a unix endpoint, "" for any other. /var/run is /run on every Linux of today.
func SocketPath(endpoint string) string {
	path, unix := strings.CutPrefix(endpoint, "unix://")
	if !unix && strings.Contains(endpoint, "://") || !strings.HasPrefix(path, "/") {
		return ""
	}
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		return "/run/" + rest
	}
	return path
}
