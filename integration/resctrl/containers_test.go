package resctrl

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

// TestContainers shows the two ways by which a container's first instruction can run in a group.
func TestContainers(t *testing.T) {
	needHost(t)
	boot(t, machine{hardware: hardware(resctrltest.Intel()), cpus: 4, nodes: 2, run: "TestGuestContainers", containers: true})
}

// rdtClasses is the configuration of containerd's own RDT classes, which are groups that it makes itself.
const rdtClasses = `options:
  l3: {optional: true}
  mb: {optional: true}
partitions:
  default:
    l3Allocation: "100%"
    mbAllocation: ["100%"]
    classes:
      bronze:
        l3Allocation: "40%"
        mbAllocation: ["30%"]
`

func TestGuestContainers(t *testing.T) {
	needGuest(t)
	mounted(t, "", func() { guestContainers(t) })
}

func guestContainers(t *testing.T) {
	const group = "tideline-be"
	makeGroup := func(t *testing.T) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(root, group), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, group+"/schemata", "L3:0=f;1=f\nMB:0=50;1=50\n")
	}
	makeGroup(t)
	plain := wantGroup{"/", "    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n"}
	chosen := wantGroup{group, "    MB:0= 50;1= 50\n    L3:0=00f;1=00f\n"}
	t.Run("CLOSID", func(t *testing.T) {
		ctx := limited(t)
		_, p := startPod(t, ctx, group, lab.ContainerdOptions{HostNetworkOnly: true})
		p.start(t, ctx, "none", nil, plain)
		p.start(t, ctx, "chosen", map[string]string{chooserKey: "yes"}, chosen)
		p.remove(t, ctx)
		if _, err := os.Stat(filepath.Join(root, group)); err != nil {
			t.Errorf("with its container the runtime removed our group: %v", err)
		}
	})
	t.Run("class", func(t *testing.T) {
		ctx := limited(t)
		c, p := startPod(t, ctx, group, lab.ContainerdOptions{HostNetworkOnly: true, RDTConfig: rdtClasses})
		removed := func(when string) {
			t.Helper()
			if _, err := os.Stat(filepath.Join(root, group)); err == nil {
				t.Errorf("%s: containerd left a foreign group alone, which 2.4.2 did not", when)
			}
		}
		removed("started")
		makeGroup(t)
		p.start(t, ctx, "none", nil, plain)
		p.start(t, ctx, "class", map[string]string{"io.kubernetes.cri.rdt-class": "bronze"}, wantGroup{"bronze", "    MB:0= 30;1= 30\n    L3:0=01f;1=01f\n"})
		pid := p.start(t, ctx, "chosen", map[string]string{chooserKey: "yes"}, chosen)
		// With classes of its own containerd takes all groups for its own, with their tasks, at each start.
		if err := c.Restart(ctx, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		removed("restarted")
		if control, _, err := groupsOf(pid); err != nil || control != "/" {
			t.Errorf("group of a container whose group is gone: got %q, %v, want the root", control, err)
		}
		p.remove(t, ctx)
	})
}

// wantGroup is the group that a container's process is to be in, "/" for the root, and its settings.
type wantGroup struct{ name, schemata string }

// chooserKey marks the containers that a chooser puts into its group.
const chooserKey = "test/chosen"

// chooser is an NRI plugin with one group.
type chooser string

func (group chooser) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	if c.GetAnnotations()[chooserKey] != "" {
		a.SetLinuxRDTClosID(string(group))
	}
	return a, nil, nil
}

// pod is one with the node's network, which needs no plugin.
type pod struct {
	cri    *lab.CRI
	id     string
	config *runtimeapi.PodSandboxConfig
}

// startPod starts containerd, a chooser of a group and a pod. All end with the test.
func startPod(t *testing.T, ctx context.Context, group string, opts lab.ContainerdOptions) (*lab.Containerd, pod) {
	t.Helper()
	l := lab.ForTest(t, strings.ToLower(filepath.Base(t.Name())))
	c, err := l.StartContainerd(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	plugin, err := stub.New(chooser(group), stub.WithPluginName("chooser"), stub.WithPluginIdx("50"), stub.WithSocketPath(c.NRISocket()), stub.WithOnClose(func() {}))
	if err != nil {
		t.Fatal(err)
	}
	if err := plugin.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plugin.Stop)
	cri, err := lab.DialCRI(c.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cri.Close() })
	p := pod{cri: cri, config: &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: "uid"},
		LogDirectory: filepath.Join(l.Dir(), "logs"),
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: l.CgroupParent() + "/pod", SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}}},
	}}
	sandbox, err := cri.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		t.Fatal(err)
	}
	p.id = sandbox.GetPodSandboxId()
	return c, p
}

// remove ends the pod and its containers.
func (p pod) remove(t *testing.T, ctx context.Context) {
	t.Helper()
	if _, err := p.cri.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.cri.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Fatal(err)
	}
}

// start starts a container, checks its group and returns its first process.
func (p pod) start(t *testing.T, ctx context.Context, name string, annotations map[string]string, want wantGroup) int {
	t.Helper()
	created, err := p.cri.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.id, SandboxConfig: p.config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: images.Busybox},
			Command: []string{"sleep", "1000"}, LogPath: name + ".log", Annotations: annotations,
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources:       &runtimeapi.LinuxContainerResources{CpuShares: 512},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: p.config.GetLinux().GetSecurityContext().GetNamespaceOptions()},
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := created.GetContainerId()
	if _, err := p.cri.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	status, err := p.cri.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	// {"sandboxID": "…", "pid": 4711, …}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(status.GetInfo()["info"]), &info); err != nil || info.PID == 0 {
		t.Fatalf("process of the container: %v in %q", err, status.GetInfo()["info"])
	}
	control, _, err := groupsOf(info.PID)
	if err != nil || control != want.name {
		t.Errorf("%s: group: got %q, %v, want %q", name, control, err, want.name)
	}
	if tasks := strings.Fields(read(t, filepath.Join(root, control, "tasks"))); !slices.Contains(tasks, strconv.Itoa(info.PID)) {
		t.Errorf("%s: %s/tasks has %v, not %d", name, control, tasks, info.PID)
	}
	if got := read(t, filepath.Join(root, control, "schemata")); got != want.schemata {
		t.Errorf("%s: schemata: got\n%swant\n%s", name, got, want.schemata)
	}
	return info.PID
}
