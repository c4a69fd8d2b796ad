package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNoDoor says that nothing answers on the control socket: no door runs, or it runs with another --run-dir.
var ErrNoDoor = errors.New("no door runs here")

// ErrNotFound says that the door does not know the pod.
var ErrNotFound = errors.New("not known to the door")

// maxReply bounds what a door may answer: 5,000 containers with their reasons are about 20 MiB.
const maxReply = 64 << 20

// Client talks to a door. It is safe for use by several goroutines.
type Client struct {
	socket string
	http   *http.Client
}

// Dial makes a client for the control socket at that path; it connects with the first call.
func Dial(socket string) *Client {
	return &Client{socket: socket, http: &http.Client{
		Timeout: 15 * time.Minute, // disable updates every container through the runtime; ctx says less
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
	}}
}

// Status asks for the state of the door.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, http.MethodGet, PathStatus, nil)
}

// Containers asks for the containers that the door knows.
func (c *Client) Containers(ctx context.Context) ([]Container, error) {
	return call[[]Container](ctx, c, http.MethodGet, PathContainers, nil)
}

// CPUs asks who has which CPUs.
func (c *Client) CPUs(ctx context.Context) (CPUs, error) {
	return call[CPUs](ctx, c, http.MethodGet, PathCPUs, nil)
}

// PolicyDiff asks what a policy file would change of what runs. An invalid file is an error that says what is wrong with it.
func (c *Client) PolicyDiff(ctx context.Context, file []byte) ([]PolicyChange, error) {
	return send[[]PolicyChange](ctx, c, http.MethodPost, PathPolicyDiff, nil, file)
}

// ExplainPod asks what a pod's cgroups have and why. errors.Is(err, ErrNotFound) when the door does not know the pod.
func (c *Client) ExplainPod(ctx context.Context, namespace, name string) ([]Explained, error) {
	return call[[]Explained](ctx, c, http.MethodGet, PathExplainPod, url.Values{"namespace": {namespace}, "name": {name}})
}

// Bypass makes the door pass everything on at once, or ends that. The door remembers it over a restart.
func (c *Client) Bypass(ctx context.Context, on bool) (Status, error) {
	return call[Status](ctx, c, http.MethodPost, PathBypass, url.Values{"on": {strconv.FormatBool(on)}})
}

// Disable turns bypass on and puts every kernel value back.
func (c *Client) Disable(ctx context.Context) (DisableReport, error) {
	return call[DisableReport](ctx, c, http.MethodPost, PathDisable, nil)
}

func call[T any](ctx context.Context, c *Client, method, path string, q url.Values) (out T, err error) {
	return send[T](ctx, c, method, path, q, nil)
}

func send[T any](ctx context.Context, c *Client, method, path string, q url.Values, data []byte) (out T, err error) {
	u := url.URL{Scheme: "http", Host: "tideline", Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(data))
	if err != nil {
		return out, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return out, fmt.Errorf("%s: %w", c.socket, ErrNoDoor)
		}
		return out, fmt.Errorf("ask door at %s: %w", c.socket, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return out, fmt.Errorf("read answer of %s: %w", path, err)
	}
	switch {
	case res.StatusCode == http.StatusNotFound:
		return out, fmt.Errorf("%s: %w", strings.TrimSpace(string(body)), ErrNotFound)
	case res.StatusCode != http.StatusOK:
		return out, fmt.Errorf("door answered %s: %s", res.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return out, fmt.Errorf("parse answer of %s: %w", path, err)
	}
	return out, nil
}
