package lab_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/parts"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(helperEnv); what != "" {
		lab.Isolate()
		fmt.Fprintln(os.Stderr, runHelper(what, os.Args[1]))
		os.Exit(99)
	}
	lab.Isolate(lab.Parts(parts.ContainerRuntime()...))
	os.Exit(m.Run())
}

func TestContainerThroughCRI(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	l := lab.ForTest(t, "cri")
	c, err := l.StartContainerd(ctx, lab.ContainerdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("containerd was ready after %v", c.StartTime())
	cri, err := lab.DialCRI(c.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer cri.Close()

	// An image that was not imported comes from the registry.
	if _, err := l.StartRegistry(ctx); err != nil {
		t.Fatal(err)
	}
	const pulled = "gcr.io/k8s-staging-cri-tools/test-image-user-uid:latest"
	if _, err := cri.Image.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: pulled}}); err != nil {
		t.Fatal(err)
	}

	pod := l.CgroupParent() + "/pod1"
	sandboxConfig := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "pod1", Namespace: "default", Uid: "pod1"},
		LogDirectory: t.TempDir(),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: pod},
	}
	sandbox, err := cri.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandboxConfig})
	if err != nil {
		t.Fatal(err)
	}
	created, err := cri.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.GetPodSandboxId(), SandboxConfig: sandboxConfig,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: images.Busybox},
			Command:  []string{"sleep", "1000"},
			LogPath:  "main.log",
			Linux:    &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{CpuShares: 512}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := created.GetContainerId()
	if _, err := cri.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	checkShares := func() {
		t.Helper()
		file, want := "cpu.shares", "512"
		if lab.Unified() {
			file, want = "cpu.weight", "59" // as runc 1.5 translates 512
		}
		b, err := os.ReadFile(lab.CgroupFile("cpu", pod+"/"+id, file))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(b)); got != want {
			t.Errorf("%s: got %s, want %s", file, got, want)
		}
	}
	checkShares()

	// The container outlives containerd, and the next one knows it.
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := c.Restart(ctx, s); err != nil {
			t.Fatal(err)
		}
		status, err := cri.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			t.Fatal(err)
		}
		if got := status.GetStatus().GetState(); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("state after %v: got %v, want running", s, got)
		}
		checkShares()
	}
}

// needParts skips a test whose parts take minutes to build and are not there.
func needParts(t *testing.T, l *lab.Lab, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := l.Part(name); errors.Is(err, os.ErrNotExist) {
			t.Skipf("part %s is not built: go run ./cmd/parts build %s", name, strings.Join(names, " "))
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

const manifest = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 0,
  "containers": [{"name": "main", "image": "docker.io/library/busybox:latest", "imagePullPolicy": "IfNotPresent",
  "command": ["sleep", "1000"], "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}}]}}`

func TestKubeletRunsStaticPod(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	l := lab.ForTest(t, "static")
	needParts(t, l, "kubelet")
	c, err := l.StartContainerd(ctx, lab.ContainerdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k, err := l.StartKubelet(ctx, lab.KubeletOptions{Runtime: c.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.SetStaticPod("web", fmt.Appendf(nil, manifest, "web")); err != nil {
		t.Fatal(err)
	}
	waitContainers(ctx, t, c, 1)
	if err := k.Restart(ctx, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := k.SetStaticPod("web", nil); err != nil {
		t.Fatal(err)
	}
	waitContainers(ctx, t, c, 0)
}

func TestControlPlaneRunsPod(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	l := lab.ForTest(t, "cluster")
	needParts(t, l, append(parts.ControlPlane(), "kubelet")...)
	begin := time.Now()
	c, err := l.StartContainerd(ctx, lab.ContainerdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cp, err := l.StartControlPlane(ctx, lab.ControlPlaneOptions{Authorization: "Node,RBAC"})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the API server was ready after %v", time.Since(begin))
	if _, err := l.StartKubelet(ctx, lab.KubeletOptions{Runtime: c.Socket(), Kubeconfig: cp.NodeKubeconfig()}); err != nil {
		t.Fatal(err)
	}
	if err := cp.WaitNodeReady(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("the node was ready after %v", time.Since(begin))
	const pods = "/api/v1/namespaces/default/pods"
	if _, err := cp.Do(ctx, "POST", pods, "", fmt.Appendf(nil, manifest, "one")); err != nil {
		t.Fatal(err)
	}
	waitContainers(ctx, t, c, 1)
	t.Logf("the pod ran after %v", time.Since(begin))
	if _, err := cp.Do(ctx, "DELETE", pods+"/one", "", nil); err != nil {
		t.Fatal(err)
	}
	waitContainers(ctx, t, c, 0)
	_, err = cp.DoAsNode(ctx, "DELETE", "/api/v1/namespaces/default", "", nil)
	var status *lab.StatusError
	if !errors.As(err, &status) || status.Code != 403 {
		t.Errorf("delete a namespace as node: got %v, want status 403", err)
	}
}

func TestControllerManagerMakesServiceAccounts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	l := lab.ForTest(t, "kcm")
	needParts(t, l, append(parts.ControlPlane(), "kube-controller-manager")...)
	cp, err := l.StartControlPlane(ctx, lab.ControlPlaneOptions{
		ControllerManager: true,
		SchedulerConfig: `{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
			"clientConnection": {"kubeconfig": "KUBECONFIG"}, "leaderElection": {"leaderElect": false}}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		_, err := cp.Do(ctx, "GET", "/api/v1/namespaces/default/serviceaccounts/default", "", nil)
		if err == nil {
			return
		}
		var status *lab.StatusError
		if !errors.As(err, &status) || status.Code != 404 {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// waitContainers waits until the runtime has so many running containers.
func waitContainers(ctx context.Context, t *testing.T, c *lab.Containerd, want int) {
	t.Helper()
	cri, err := lab.DialCRI(c.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer cri.Close()
	for {
		resp, err := cri.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}})
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.GetContainers()) == want {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("running containers: got %d, want %d", len(resp.GetContainers()), want)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
