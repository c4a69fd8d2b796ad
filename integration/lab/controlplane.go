package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Users of the control plane, by the tokens in tokens.csv.
const (
	adminToken = "lab-admin"
	nodeToken  = "lab-node"
)

const (
	etcdURL      = "http://127.0.0.1:2379"
	etcdPeerURL  = "http://127.0.0.1:2380"
	apiServerURL = "https://127.0.0.1:6443"
)

// ControlPlaneOptions say how the control plane differs from the usual one of
// a lab.
type ControlPlaneOptions struct {
	// Authorization is the API server's --authorization-mode: AlwaysAllow by
	// default, or as a real one, Node,RBAC, which also turns the admission
	// plugin NodeRestriction on.
	Authorization string
	// ControllerManager starts kube-controller-manager too, a part to be
	// prepared besides parts.ControlPlane. Without it nothing makes service
	// accounts and nothing removes the taint of a new node, so the admission
	// plugins ServiceAccount and TaintNodesByCondition are off.
	ControllerManager bool
	// NoScheduler leaves kube-scheduler out.
	NoScheduler bool
	// SchedulerConfig is the content of a KubeSchedulerConfiguration; the
	// scheduler's own default when empty. KUBECONFIG in it stands for the
	// path of the administrator's kubeconfig.
	SchedulerConfig string
	// APIServerArgs are more arguments of kube-apiserver.
	APIServerArgs []string
}

// ControlPlane is an API server with etcd and a scheduler.
type ControlPlane struct {
	Etcd, APIServer              *Process
	Scheduler, ControllerManager *Process // nil where not asked for

	server      string // URL of the API server
	admin, node string
	client      *http.Client
}

// newControlPlane has the files that lead to the API server at that URL.
func newControlPlane(dir, server string) *ControlPlane {
	return &ControlPlane{
		server: server, admin: filepath.Join(dir, "admin.conf"), node: filepath.Join(dir, "node.conf"),
		// The certificate is made by the API server at its start, for loopback.
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}},
	}
}

// JoinControlPlane gives the control plane that another lab has started, and that is reached at that URL: from a VM,
// 10.0.2.2 is the loopback of the namespace that QEMU runs in. It has no processes, and waits until the API server answers.
func (l *Lab) JoinControlPlane(ctx context.Context, server string) (*ControlPlane, error) {
	dir := filepath.Join(l.dir, "control-plane")
	c := newControlPlane(dir, server)
	if err := errors.Join(os.MkdirAll(dir, 0o755), c.writeKubeconfigs()); err != nil {
		return nil, fmt.Errorf("join the control plane: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		_, err := c.Do(ctx, http.MethodGet, "/readyz", "", nil)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("join the control plane: %w: %w", ctx.Err(), err)
		case <-time.After(time.Second):
		}
	}
}

// StartControlPlane starts etcd, the API server, the scheduler, and waits until
// the API server says that it is ready.
func (l *Lab) StartControlPlane(ctx context.Context, opts ControlPlaneOptions) (*ControlPlane, error) {
	if err := addLoopbackAddress(nodeAddress); err != nil {
		return nil, err
	}
	dir := filepath.Join(l.dir, "control-plane")
	c := newControlPlane(dir, apiServerURL)
	if err := c.writeFiles(dir); err != nil {
		return nil, fmt.Errorf("configure the control plane: %w", err)
	}
	var err error
	if c.Etcd, err = l.startPart(ctx, "etcd", HTTPReady(http.DefaultClient, etcdURL+"/health"),
		"--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+etcdPeerURL, "--initial-advertise-peer-urls="+etcdPeerURL,
		"--initial-cluster=default="+etcdPeerURL); err != nil {
		return nil, err
	}
	// With AlwaysAllow there are no anonymous requests, so this one has a user.
	ready := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := c.Do(ctx, http.MethodGet, "/readyz", "", nil)
		return err
	}
	if c.APIServer, err = l.startPart(ctx, "kube-apiserver", ready, apiServerArgs(dir, opts)...); err != nil {
		return nil, err
	}
	if !opts.NoScheduler {
		if c.Scheduler, err = c.startScheduler(ctx, l, dir, opts.SchedulerConfig); err != nil {
			return nil, err
		}
	}
	if opts.ControllerManager {
		if c.ControllerManager, err = l.startPart(ctx, "kube-controller-manager", HTTPReady(c.client, "https://127.0.0.1:10257/healthz"),
			"--kubeconfig="+c.admin, "--authentication-kubeconfig="+c.admin, "--authorization-kubeconfig="+c.admin,
			"--bind-address=127.0.0.1", "--leader-elect=false", "--service-account-private-key-file="+filepath.Join(dir, "sa.key"),
			"--controllers=*,-nodeipam,-bootstrap-signer-controller"); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// startPart starts the part called name under that name.
func (l *Lab) startPart(ctx context.Context, name string, ready func(context.Context) error, args ...string) (*Process, error) {
	path, err := l.Part(name)
	if err != nil {
		return nil, err
	}
	return l.StartProcess(ctx, ProcessSpec{Name: name, Path: path, Args: args, Ready: ready, Timeout: 5 * time.Minute})
}

func apiServerArgs(dir string, opts ControlPlaneOptions) []string {
	authorization := opts.Authorization
	if authorization == "" {
		authorization = "AlwaysAllow"
	}
	args := []string{
		"--etcd-servers=" + etcdURL, "--bind-address=127.0.0.1", "--secure-port=6443",
		// There is no default route to find an address by.
		"--advertise-address=" + nodeAddress.String(), "--endpoint-reconciler-type=none",
		// Else logs and exec ask a name server for the node's name.
		"--kubelet-preferred-address-types=InternalIP",
		"--cert-dir=" + filepath.Join(dir, "certs"), "--service-cluster-ip-range=10.96.0.0/24",
		"--service-account-issuer=https://lab.invalid",
		"--service-account-key-file=" + filepath.Join(dir, "sa.key"), "--service-account-signing-key-file=" + filepath.Join(dir, "sa.key"),
		"--token-auth-file=" + filepath.Join(dir, "tokens.csv"), "--authorization-mode=" + authorization,
		"--allow-privileged=true", "--enable-priority-and-fairness=false",
	}
	if !opts.ControllerManager {
		args = append(args, "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
	}
	if strings.Contains(authorization, "Node") {
		args = append(args, "--enable-admission-plugins=NodeRestriction")
	}
	return append(args, opts.APIServerArgs...)
}

func (c *ControlPlane) startScheduler(ctx context.Context, l *Lab, dir, config string) (*Process, error) {
	args := []string{"--authentication-kubeconfig=" + c.admin, "--authorization-kubeconfig=" + c.admin,
		"--authentication-tolerate-lookup-failure=true", "--bind-address=127.0.0.1", "--leader-elect=false"}
	if config == "" {
		args = append(args, "--kubeconfig="+c.admin)
	} else {
		path := filepath.Join(dir, "scheduler.yaml")
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(config, "KUBECONFIG", c.admin)), 0o644); err != nil {
			return nil, fmt.Errorf("configure kube-scheduler: %w", err)
		}
		args = append(args, "--config="+path)
	}
	return l.startPart(ctx, "kube-scheduler", HTTPReady(c.client, "https://127.0.0.1:10259/healthz"), args...)
}

// writeFiles writes the tokens, the kubeconfigs and the key that signs service
// account tokens.
func (c *ControlPlane) writeFiles(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	tokens := adminToken + ",admin,admin,system:masters\n" + nodeToken + ",system:node:" + NodeName + "," + NodeName + ",system:nodes\n"
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "sa.key"), block, 0o600),
		os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte(tokens), 0o600),
		c.writeKubeconfigs())
}

func (c *ControlPlane) writeKubeconfigs() error {
	return errors.Join(writeKubeconfig(c.admin, c.server, adminToken), writeKubeconfig(c.node, c.server, nodeToken))
}

func writeKubeconfig(path, server, token string) error {
	config := map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "lab",
		"clusters": []any{map[string]any{"name": "lab", "cluster": map[string]any{"server": server, "insecure-skip-tls-verify": true}}},
		"users":    []any{map[string]any{"name": "lab", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "lab", "context": map[string]any{"cluster": "lab", "user": "lab"}}},
	}
	b, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *ControlPlane) Kubeconfig() string { return c.admin }

// NodeKubeconfig returns the path of a kubeconfig of the user
// system:node:node1 in the group system:nodes.
func (c *ControlPlane) NodeKubeconfig() string { return c.node }

// A StatusError is an answer of the API server that is not a success.
type StatusError struct {
	Method, Path string
	Code         int
	Body         string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: status %d: %s", e.Method, e.Path, e.Code, e.Body)
}

// Do sends one request to the API server as administrator and returns the body
// of the answer, or a *StatusError. contentType may be empty for JSON; a server
// side apply or a patch has another one.
func (c *ControlPlane) Do(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	return c.DoAs(ctx, adminToken, method, path, contentType, body)
}

// DoAsNode is Do as the user system:node:node1.
func (c *ControlPlane) DoAsNode(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	return c.DoAs(ctx, nodeToken, method, path, contentType, body)
}

// DoAs is Do with the bearer token of another user.
func (c *ControlPlane) DoAs(ctx context.Context, token, method, path, contentType string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if contentType == "" {
		contentType = "application/json"
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Accept", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, &StatusError{Method: method, Path: path, Code: resp.StatusCode, Body: strings.TrimSpace(string(b))}
	}
	return b, nil
}

// WaitNodeReady waits until the node's condition Ready is true.
func (c *ControlPlane) WaitNodeReady(ctx context.Context) error {
	for {
		ready, err := c.nodeReady(ctx)
		if ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for node %s to be ready: %w", NodeName, errors.Join(ctx.Err(), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *ControlPlane) nodeReady(ctx context.Context) (bool, error) {
	b, err := c.Do(ctx, http.MethodGet, "/api/v1/nodes/"+NodeName, "", nil)
	if err != nil {
		return false, err
	}
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := json.Unmarshal(b, &node); err != nil {
		return false, fmt.Errorf("decode node %s: %w", NodeName, err)
	}
	for _, cond := range node.Status.Conditions {
		if cond.Type == "Ready" {
			return cond.Status == "True", errors.New(cond.Message)
		}
	}
	return false, errors.New("it has no condition Ready")
}
