package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// client is a kubelet's.
type client struct {
	conn *grpc.ClientConn
	cri  runtimeapi.RuntimeServiceClient
}

func dial(socket string) (*client, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", socket, err)
	}
	return &client{conn, runtimeapi.NewRuntimeServiceClient(conn)}, nil
}

func (c *client) list(ctx context.Context, which string) (int, error) {
	res, err := c.cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{listLabel: which}}})
	return len(res.GetContainers()), err
}

// call is one kind of call.
type call struct {
	name  string
	p50   float64 // the most that the proxy's median may be, as a ratio to direct
	aim   float64 // what it should be; 0 for no more than p50
	rarer int     // one round where the small calls have so many
	do    func(ctx context.Context, e *endpoint) (time.Duration, error)
}

// onNode is what stands on the node when the calls are measured.
type onNode struct {
	known  int
	create *runtimeapi.CreateContainerRequest // of a pod of tier BE
	status string                             // a container of tier BE that was made through the proxy
}

// fill makes the containers that the proxy is to know: half of them in pods without a tier, a quarter each in BE and LS.
func fill(ctx context.Context, cfg Config, ends []*endpoint) (*onNode, error) {
	through := ends[len(ends)-1]
	n := &onNode{known: cfg.Known}
	tiers := []string{"", "BE", "", "LS"}
	var pod *runtimeapi.PodSandboxConfig
	var sandbox string
	for i := range cfg.Known {
		if i%2 == 0 {
			pod = podConfig(i/2, tiers[i/2%len(tiers)], cfg.Parent)
			if tier := pod.GetLabels()[labelTier]; tier != "" && cfg.PodDir != nil {
				if err := cfg.PodDir(pod.GetLinux().GetCgroupParent()); err != nil {
					return nil, err
				}
			}
			res, err := through.cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
			if err != nil {
				return nil, fmt.Errorf("run sandbox: %w", err)
			}
			sandbox = res.GetPodSandboxId()
		}
		req := createRequest(pod, containerName(i))
		req.PodSandboxId = sandbox
		res, err := through.cri.CreateContainer(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("create container: %w", err)
		}
		if pod.GetLabels()[labelTier] == "BE" && n.status == "" {
			n.status = res.GetContainerId()
			n.create = createRequest(pod, "app")
			n.create.PodSandboxId, n.create.Config.Metadata.Attempt = sandbox, 1
		}
	}
	if n.status == "" {
		return nil, fmt.Errorf("fill the node: %d containers are too few", cfg.Known)
	}
	return n, n.check(ctx, ends)
}

// check makes sure that the proxy does what is to be measured: an endpoint that passes everything would be quicker.
func (n *onNode) check(ctx context.Context, ends []*endpoint) error {
	var shares []int64
	for _, e := range ends {
		res, err := e.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: n.status})
		if err != nil {
			return fmt.Errorf("status through %s: %w", e.name, err)
		}
		shares = append(shares, res.GetStatus().GetResources().GetLinux().GetMemoryLimitInBytes())
	}
	if shares[0] == 0 || shares[1] != shares[0] || shares[2] != 0 {
		return fmt.Errorf("the proxy does not hook: memory limits of a BE container direct, copied and through the proxy are %v; want the batch limit twice and then 0, what was asked", shares)
	}
	return nil
}

// calls of the table, each with its bar.
func (n *onNode) calls() []call {
	timed := func(f func(context.Context, *endpoint) error) func(context.Context, *endpoint) (time.Duration, error) {
		return func(ctx context.Context, e *endpoint) (time.Duration, error) {
			start := time.Now()
			err := f(ctx, e)
			return time.Since(start), err
		}
	}
	list := func(which string, want int) func(context.Context, *endpoint) error {
		return func(ctx context.Context, e *endpoint) error {
			got, err := e.list(ctx, which)
			if err == nil && got != want {
				err = fmt.Errorf("%d containers, want %d", got, want)
			}
			return err
		}
	}
	return []call{
		{"Version", 1.6, 0, 1, timed(func(ctx context.Context, e *endpoint) error {
			_, err := e.cri.Version(ctx, &runtimeapi.VersionRequest{})
			return err
		})},
		{"CreateContainer", 2.2, 1.8, 1, func(ctx context.Context, e *endpoint) (time.Duration, error) {
			start := time.Now()
			res, err := e.cri.CreateContainer(ctx, n.create)
			took := time.Since(start)
			if err != nil {
				return 0, err
			}
			// The kubelet removes what it makes; a node of ten thousand containers is not what is measured.
			_, err = e.cri.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: res.GetContainerId()})
			return took, err
		}},
		{"ContainerStatus", 2.2, 1.8, 1, timed(func(ctx context.Context, e *endpoint) error {
			_, err := e.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: n.status})
			return err
		})},
		{fmt.Sprintf("ListContainers %d", n.known), 1.2, 0, 10, timed(list(listKnown, n.known))},
		{fmt.Sprintf("ListContainers %d", large), 1.2, 0, 25, timed(list(listLarge, large))},
		{fmt.Sprintf("Events x%d", events), 1.6, 0, 4, timed(func(ctx context.Context, e *endpoint) error {
			s, err := e.cri.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
			if err != nil {
				return err
			}
			for range events {
				if _, err := s.Recv(); err != nil {
					return err
				}
			}
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				return fmt.Errorf("after %d events: %v, want the end", events, err)
			}
			return nil
		})},
	}
}
