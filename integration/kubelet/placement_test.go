package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/policy"
)

// TestPlacement: a kubelet without a CPU manager of its own, as we recommend it, on a machine with two CPUs. A pod of LSR has
// one for itself, others leave it; a resize that does not fit shows in the pod's status and changes nothing; a pod that
// finds no CPU waits in the kubelet's own way; and one that has run to its end gives its CPU back though it is still there.
func TestPlacement(t *testing.T) {
	if lab.Unified() {
		t.Skip("not in the VM: to spare emulation, and the kernel's part is that of e2e")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := startCluster(t, ctx, "placement", demo.Policy, nil)
	all := tiers(t)
	ls := all["ls"]
	ls.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("100m")
	c.create(ls)
	ls = c.await("pod ls is ready", ls, nil)
	job := all["lsr"].DeepCopy()
	job.Name, job.Spec.RestartPolicy, job.Spec.Containers[0].Command = "job", corev1.RestartPolicyNever, []string{"sleep", "4"}
	c.create(job)
	job = c.await("pod job is ready", job, nil)
	cpus := func(when string, p *corev1.Pod, set string) {
		t.Helper()
		at := cgroupOf(c.lab, p) + "/" + containerID(p)
		eventually(t, ctx, when, func() error {
			if got := node.Kernel(at, policy.CPUSetCPUs); got != set {
				return fmt.Errorf("pod %s runs on CPUs %s, want %s", p.Name, got, set)
			}
			return nil
		})
	}
	cpus("the job has its own", job, "0")
	cpus("others leave it", ls, "1")

	lsr := all["lsr"]
	c.create(lsr)
	eventually(t, ctx, "a second pod is told that there is no CPU", func() error {
		now, err := c.get(lsr)
		if err != nil {
			return err
		}
		for _, s := range now.Status.ContainerStatuses {
			if w := s.State.Waiting; w != nil && strings.Contains(w.Message, v1alpha1.LabelQoS) && strings.Contains(w.Message, "LS pool") {
				return nil
			}
		}
		if now.Status.Phase == corev1.PodRunning {
			return nil // the job has ended already
		}
		return fmt.Errorf("status %s", brief(now.Status))
	})
	eventually(t, ctx, "the job has run to its end", func() error {
		now, err := c.get(job)
		if err == nil && now.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("status %s", brief(now.Status))
		}
		return err
	})
	lsr = c.await("the second pod has the CPU of the one that has ended", lsr, nil)
	cpus("the second pod has its own", lsr, "0")

	want := map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "app", "resources": map[string]any{
		"requests": map[string]string{"cpu": "1500m"}, "limits": map[string]string{"cpu": "1500m"},
	}}}}}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.cp.Do(ctx, http.MethodPatch, podPath(lsr)+"/resize", "application/strategic-merge-patch+json", b); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the resize is refused in the pod's status", func() error {
		now, err := c.get(lsr)
		if err != nil {
			return err
		}
		for _, x := range now.Status.Conditions {
			if x.Type == corev1.PodResizeInProgress && strings.Contains(x.Message, "1500m; allowed: whole CPUs") {
				return nil
			}
		}
		return fmt.Errorf("conditions %s", brief(now.Status.Conditions))
	})
	cpus("it keeps what it has", lsr, "0")
	c.remove(lsr)
	cpus("others have all CPUs again", ls, "0-1")
}
