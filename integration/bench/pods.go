package bench

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
)

// Pods makes pods on a real containerd, direct and through the proxy by turns, and measures how long each takes from the
// call that makes its sandbox until its status says that all containers run. They are removed at once.
func Pods(ctx context.Context, l *lab.Lab, spec *corev1.Pod, pairs int, progress func(string)) ([]Pair, error) {
	progress("starting a private containerd and the proxy")
	n, err := node.Start(ctx, l, node.Options{})
	if err != nil {
		return nil, err
	}
	straight := *n.Kubelet
	straight.CRI = n.Direct
	made := 0
	one := func(k *node.Kubelet) (time.Duration, error) {
		p := spec.DeepCopy()
		made++
		p.Name, p.UID = fmt.Sprintf("%s-%d", spec.Name, made), types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", made))
		start := time.Now()
		pod, err := k.RunPod(ctx, p)
		if err == nil {
			err = running(ctx, k, pod)
		}
		took := time.Since(start)
		if err != nil {
			return 0, err
		}
		return took, k.Remove(ctx, pod)
	}
	var out []Pair
	for i := range 2 + pairs {
		if i%5 == 0 {
			progress(fmt.Sprintf("pods: pair %d of %d", i, pairs))
		}
		var pair Pair
		turns := []struct {
			k    *node.Kubelet
			took *time.Duration
		}{{&straight, &pair.Direct}, {n.Kubelet, &pair.Proxy}}
		for j := range turns {
			t := turns[(i+j)%2]
			if *t.took, err = one(t.k); err != nil {
				return nil, err
			}
		}
		if i >= 2 { // the first ones warm up
			out = append(out, pair)
		}
	}
	return out, nil
}

// running asks as a kubelet does.
func running(ctx context.Context, k *node.Kubelet, p *node.Pod) error {
	for _, c := range p.Containers {
		for {
			res, err := k.CRI.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
			if err != nil {
				return fmt.Errorf("status of container %s: %w", c.Name, err)
			}
			if s := res.GetStatus().GetState(); s == runtimeapi.ContainerState_CONTAINER_RUNNING {
				break
			} else if s == runtimeapi.ContainerState_CONTAINER_EXITED {
				return fmt.Errorf("container %s ended: %s", c.Name, res.GetStatus().GetReason())
			}
		}
	}
	return nil
}
