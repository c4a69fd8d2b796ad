package crio

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/proto"

	"github.com/tideline-io/tideline/integration/node"
)

// observer is a second plugin behind ours, that keeps what CRI-O tells and changes nothing.
type observer struct {
	mu    sync.Mutex
	hooks []string
	pods  map[string]*api.PodSandbox // by hook
	seen  map[string]*api.Container
}

func observe(t *testing.T, ctx context.Context, n *node.Node) *observer {
	t.Helper()
	o := &observer{pods: map[string]*api.PodSandbox{}, seen: map[string]*api.Container{}}
	s, err := stub.New(o, stub.WithPluginName("observer"), stub.WithPluginIdx("95"), stub.WithSocketPath(n.CRIO.NRISocket()))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return o
}

func (o *observer) told(hook string, p *api.PodSandbox, c *api.Container) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Contains(o.hooks, hook) {
		o.hooks = append(o.hooks, hook)
	}
	if p != nil {
		o.pods[hook] = proto.CloneOf(p)
	}
	if c != nil {
		o.seen[hook] = proto.CloneOf(c)
	}
}

func (o *observer) pod(hook string) *api.PodSandbox {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pods[hook]
}

func (o *observer) container(hook string) *api.Container {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[hook]
}

func (o *observer) called() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.hooks)
}

func (o *observer) RunPodSandbox(_ context.Context, p *api.PodSandbox) error {
	o.told("RunPodSandbox", p, nil)
	return nil
}

func (o *observer) UpdatePodSandbox(_ context.Context, p *api.PodSandbox, _, _ *api.LinuxResources) error {
	o.told("UpdatePodSandbox", p, nil)
	return nil
}

func (o *observer) PostUpdatePodSandbox(_ context.Context, p *api.PodSandbox) error {
	o.told("PostUpdatePodSandbox", p, nil)
	return nil
}

func (o *observer) StopPodSandbox(_ context.Context, p *api.PodSandbox) error {
	o.told("StopPodSandbox", p, nil)
	return nil
}

func (o *observer) RemovePodSandbox(_ context.Context, p *api.PodSandbox) error {
	o.told("RemovePodSandbox", p, nil)
	return nil
}

func (o *observer) CreateContainer(_ context.Context, p *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	o.told("CreateContainer", p, c)
	return nil, nil, nil
}

func (o *observer) PostCreateContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	o.told("PostCreateContainer", p, c)
	return nil
}

func (o *observer) StartContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	o.told("StartContainer", p, c)
	return nil
}

func (o *observer) PostStartContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	o.told("PostStartContainer", p, c)
	return nil
}

func (o *observer) UpdateContainer(_ context.Context, p *api.PodSandbox, c *api.Container, _ *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	o.told("UpdateContainer", p, c)
	return nil, nil
}

func (o *observer) PostUpdateContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	o.told("PostUpdateContainer", p, c)
	return nil
}

func (o *observer) StopContainer(_ context.Context, p *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	o.told("StopContainer", p, c)
	return nil, nil
}

func (o *observer) RemoveContainer(_ context.Context, p *api.PodSandbox, c *api.Container) error {
	o.told("RemoveContainer", p, c)
	return nil
}
