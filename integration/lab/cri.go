package lab

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessageBytes is the kubelet's own limit.
const maxMessageBytes = 16 << 20

// CRI is a client of both CRI services of one socket.
type CRI struct {
	Runtime runtimeapi.RuntimeServiceClient
	Image   runtimeapi.ImageServiceClient
	conn    *grpc.ClientConn
}

// DialCRI returns a client of the unix socket path. It connects with the first
// call. The caller has to close it.
func DialCRI(path string) (*CRI, error) {
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", path, err)
	}
	return &CRI{
		Runtime: runtimeapi.NewRuntimeServiceClient(conn),
		Image:   runtimeapi.NewImageServiceClient(conn),
		conn:    conn,
	}, nil
}

// Close closes the connection.
func (c *CRI) Close() error { return c.conn.Close() }
