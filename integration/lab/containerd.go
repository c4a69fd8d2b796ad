package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/integration/images"
)

// ContainerdOptions say how containerd differs from the usual one of a lab.
type ContainerdOptions struct {
	// HostNetworkOnly leaves the network plugins out. The runtime then says
	// that its network is not ready, and pods need the node's network.
	HostNetworkOnly bool
	// RDTConfig is the content of the configuration that maps RDT classes to
	// resctrl groups; empty for none.
	RDTConfig string
	// BlockIOConfig is the content of the configuration of blockio classes;
	// empty for none.
	BlockIOConfig string
	// LogLevel is info by default.
	LogLevel string
}

// Containerd is the lab's containerd. After Stop or Kill it can be started
// again on the same state; its containers run on meanwhile.
type Containerd struct {
	*Process
	lab     *Lab
	spec    ProcessSpec
	socket  string
	nri     string
	started time.Duration
}

// StartContainerd starts containerd with runc, a bridge network, NRI, and the
// images of images.Archive, and waits until CRI says that it is ready.
func (l *Lab) StartContainerd(ctx context.Context, opts ContainerdOptions) (*Containerd, error) {
	if err := l.partsInBin("containerd-shim-runc-v2", "runc", "ctr"); err != nil {
		return nil, err
	}
	path, err := l.Part("containerd")
	if err != nil {
		return nil, err
	}
	if !opts.HostNetworkOnly {
		if err := l.partsInBin("bridge", "loopback", "host-local", "portmap"); err != nil {
			return nil, err
		}
	}
	archive, err := images.Archive(ctx, l.store)
	if err != nil {
		return nil, err
	}
	if err := l.writeContainerdConfig(opts); err != nil {
		return nil, fmt.Errorf("configure containerd: %w", err)
	}
	level := opts.LogLevel
	if level == "" {
		level = "info"
	}
	c := &Containerd{lab: l, socket: filepath.Join(l.dir, "containerd.sock"), nri: filepath.Join(l.dir, "nri", "nri.sock")}
	c.spec = ProcessSpec{
		Name: "containerd", Path: path,
		Args:  []string{"--config", filepath.Join(l.dir, "containerd.toml"), "--log-level", level},
		Ready: criReady(c.socket, !opts.HostNetworkOnly),
		// In an emulated VM it takes 8 s.
		Timeout: 2 * time.Minute,
	}
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	if err := c.importImages(ctx, archive); err != nil {
		return nil, fmt.Errorf("%w; the end of the log of containerd:\n%s", err, c.LogTail(30))
	}
	return c, nil
}

// Start starts containerd again after Stop or Kill.
func (c *Containerd) Start(ctx context.Context) error {
	begin := time.Now()
	p, err := c.lab.StartProcess(ctx, c.spec)
	if err != nil {
		return err
	}
	c.Process, c.started = p, time.Since(begin)
	return nil
}

// Socket returns the path of the socket that serves CRI.
func (c *Containerd) Socket() string { return c.socket }

// NRISocket returns the path of the socket for NRI plugins, in a folder of its own.
func (c *Containerd) NRISocket() string { return c.nri }

// StartTime returns how long the last start took until CRI was ready.
func (c *Containerd) StartTime() time.Duration { return c.started }

// Ctr runs ctr in the namespace of CRI and returns its output.
func (c *Containerd) Ctr(ctx context.Context, args ...string) (string, error) {
	path, err := c.lab.Part("ctr")
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, path, append([]string{"--address", c.socket, "--namespace", "k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("run ctr %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// criReady checks the conditions of the runtime at socket over CRI.
func criReady(socket string, network bool) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := SocketReady(socket)(ctx); err != nil {
			return err // a gRPC client would wait a second before it tries again
		}
		cri, err := DialCRI(socket)
		if err != nil {
			return err
		}
		defer cri.Close()
		resp, err := cri.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, cond := range resp.GetStatus().GetConditions() {
			if !cond.GetStatus() && (network || cond.GetType() != runtimeapi.NetworkReady) && isReadiness(cond.GetType()) {
				return fmt.Errorf("runtime condition %s is false: %s", cond.GetType(), cond.GetMessage())
			}
		}
		return nil
	}
}

// isReadiness tells the conditions that say whether pods can run from others,
// such as the one that warns of deprecated settings.
func isReadiness(condition string) bool {
	return condition == runtimeapi.RuntimeReady || condition == runtimeapi.NetworkReady
}

// importImages imports the archive and waits until CRI has seen its images:
// it learns of them by an event.
func (c *Containerd) importImages(ctx context.Context, archive string) error {
	if _, err := c.Ctr(ctx, "images", "import", archive); err != nil {
		return err
	}
	cri, err := DialCRI(c.socket)
	if err != nil {
		return err
	}
	defer cri.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, ref := range []string{images.Pause, images.Busybox, images.Web} {
		for {
			resp, err := cri.Image.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
			if err != nil {
				return fmt.Errorf("look for image %s: %w", ref, err)
			}
			if resp.GetImage() != nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for image %s: %w", ref, ctx.Err())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

// containerdConfig has absolute paths only, below the lab's folder.
var containerdConfig = template.Must(template.New("containerd.toml").Parse(`version = 4
root = '{{.Dir}}/containerd-root'
state = '{{.Dir}}/containerd-state'

{{if .Emulated}}[timeouts]
  'io.containerd.timeout.shim.load' = '60s' # 5 s by default, after which a start of containerd ends the shims that did not answer
{{end}}[plugins.'io.containerd.server.v1.grpc']
  address = '{{.Dir}}/containerd.sock'
[plugins.'io.containerd.server.v1.ttrpc']
  address = '{{.Dir}}/containerd.sock.ttrpc'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = '{{.Snapshotter}}'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{{.Pause}}'
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '{{.Dir}}/certs.d'
[plugins.'io.containerd.cri.v1.runtime']
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = {{.RestrictOOM}}
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{{.Dir}}/bin']
    conf_dir = '{{.Dir}}/net.d'
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    ignore_blockio_not_enabled_errors = true
    ignore_rdt_not_enabled_errors = true
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '{{.Dir}}/bin/runc'
        SystemdCgroup = {{.Systemd}}
[plugins.'io.containerd.service.v1.tasks-service']
  rdt_config_file = '{{if .RDT}}{{.Dir}}/rdt.yaml{{end}}'
  blockio_config_file = '{{if .BlockIO}}{{.Dir}}/blockio.yaml{{end}}'
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '{{.Dir}}/nri/nri.sock'
  plugin_path = '{{.Dir}}/nri-plugins'
  plugin_config_path = '{{.Dir}}/nri-conf.d'
`))

// Pod addresses exist in the lab's network namespace only, and there is no
// route out of it: nothing is to be masqueraded.
var bridgeNetwork = template.Must(template.New("10-lab.conflist").Parse(`{
  "cniVersion": "1.0.0", "name": "lab", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "promiscMode": true,
     "ipam": {"type": "host-local", "dataDir": "{{.Dir}}/ipam", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}]}
`))

// writeContainerdConfig writes the configuration of containerd and of all it
// reads.
func (l *Lab) writeContainerdConfig(opts ContainerdOptions) error {
	restrict, err := lacksSysResource()
	if err != nil {
		return err
	}
	values := struct {
		Dir, Snapshotter, Pause            string
		RestrictOOM, Systemd, RDT, BlockIO bool
		Emulated                           bool
	}{l.dir, "overlayfs", images.Pause, restrict, Systemd(), opts.RDTConfig != "", opts.BlockIOConfig != "", os.Getenv(Env) == "vm"}
	if isFS(l.dir, unix.OVERLAYFS_SUPER_MAGIC) {
		values.Snapshotter = "native" // an overlay can't lie on an overlay
	}
	for _, dir := range []string{"net.d", "nri-plugins", "nri-conf.d"} {
		if err := os.MkdirAll(filepath.Join(l.dir, dir), 0o755); err != nil {
			return err
		}
	}
	if err := l.writeHosts("127.0.0.1:1"); err != nil { // nobody listens there
		return err
	}
	if err := writeTemplate(filepath.Join(l.dir, "containerd.toml"), containerdConfig, values); err != nil {
		return err
	}
	for name, content := range map[string]string{"rdt.yaml": opts.RDTConfig, "blockio.yaml": opts.BlockIOConfig} {
		if content == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(l.dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if opts.HostNetworkOnly {
		return nil
	}
	return writeTemplate(filepath.Join(l.dir, "net.d", "10-lab.conflist"), bridgeNetwork, values)
}

// writeHosts sends every pull of every registry to one address, and to no
// other when that fails. containerd reads the file at each pull.
func (l *Lab) writeHosts(address string) error {
	path := filepath.Join(l.dir, "certs.d", "_default", "hosts.toml")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if fi, err := os.Stat(path); err == nil && fi.Size() > 0 && address == "127.0.0.1:1" {
		return nil // the registry was there first
	}
	content := fmt.Sprintf("server = \"http://%[1]s\"\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", address)
	return os.WriteFile(path, []byte(content), 0o644)
}

func writeTemplate(path string, t *template.Template, values any) error {
	var b strings.Builder
	if err := t.Execute(&b, values); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// lacksSysResource reports whether this process may not lower an
// oom_score_adj. Then containerd has to be told, or no pod starts: "nsexec:
// failed to update /proc/self/oom_score_adj".
func lacksSysResource() (bool, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false, fmt.Errorf("read capabilities: %w", err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0, nil
}

// Configure adds TOML to the configuration and restarts containerd.
func (c *Containerd) Configure(ctx context.Context, toml string) error {
	f, err := os.OpenFile(filepath.Join(c.lab.dir, "containerd.toml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configure containerd: %w", err)
	}
	_, err = f.WriteString(toml)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("configure containerd: %w", err)
	}
	return c.Restart(ctx, syscall.SIGTERM)
}

// Restart ends containerd by a signal and starts it again. The containers run
// on.
func (c *Containerd) Restart(ctx context.Context, s syscall.Signal) error {
	if err := c.endBy(ctx, s); err != nil {
		return err
	}
	return c.Start(ctx)
}
