package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/integration/images"
)

// CRIO is the lab's CRI-O. After Stop or Kill it can be started again on the
// same state; its containers run on meanwhile.
type CRIO struct {
	*Process
	lab  *Lab
	spec ProcessSpec
}

// StartCRIO starts CRI-O with runc, the cgroupfs driver, a bridge network and
// NRI, waits until CRI says that it is ready, and pulls the images of
// images.Archive from a registry of the lab, since it imports no archives.
func (l *Lab) StartCRIO(ctx context.Context) (*CRIO, error) {
	if Systemd() {
		return nil, errors.New("start CRI-O: its systemd driver is not set up here")
	}
	if err := l.partsInBin("pinns", "conmon", "runc", "bridge", "loopback", "host-local", "portmap"); err != nil {
		return nil, err
	}
	path, err := l.Part("crio")
	if err != nil {
		return nil, err
	}
	r, err := l.StartRegistry(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.writeCRIOConfig(r.Address()); err != nil {
		return nil, fmt.Errorf("configure CRI-O: %w", err)
	}
	c := &CRIO{lab: l}
	in := func(name string) string { return filepath.Join(l.dir, name) }
	c.spec = ProcessSpec{
		Name: "crio", Path: path,
		Args: []string{
			"--config", in("crio.conf"), "--config-dir", "",
			"--registries-conf", in("registries.conf"), "--registries-conf-dir", in("registries.conf.d"),
		},
		Env: []string{
			// What no option names: it would read the machine's own files.
			"CONTAINERS_STORAGE_CONF=" + in("storage.conf"), "CONTAINERS_CONF=" + in("containers.conf"), "XDG_RUNTIME_DIR=" + in("crio-xdg"),
		},
		Ready: criReady(c.Socket(), true),
	}
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	if err := c.pull(ctx, images.Pause, images.Busybox, images.Web); err != nil {
		return nil, fmt.Errorf("%w; the end of the log of CRI-O:\n%s", err, c.LogTail(30))
	}
	return c, nil
}

// Start starts CRI-O again after Stop or Kill.
func (c *CRIO) Start(ctx context.Context) error {
	p, err := c.lab.StartProcess(ctx, c.spec)
	if err != nil {
		return err
	}
	c.Process = p
	return nil
}

// Restart ends CRI-O by a signal and starts it again. The containers run on.
func (c *CRIO) Restart(ctx context.Context, s syscall.Signal) error {
	if err := c.endBy(ctx, s); err != nil {
		return err
	}
	return c.Start(ctx)
}

// Socket returns the path of the socket that serves CRI.
func (c *CRIO) Socket() string { return filepath.Join(c.lab.dir, "crio.sock") }

// NRISocket returns the path of the socket for NRI plugins, in a folder of its own.
func (c *CRIO) NRISocket() string { return filepath.Join(c.lab.dir, "nri", "nri.sock") }

func (c *CRIO) pull(ctx context.Context, refs ...string) error {
	cri, err := DialCRI(c.Socket())
	if err != nil {
		return err
	}
	defer cri.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, ref := range refs {
		if _, err := cri.Image.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			return fmt.Errorf("pull image %s: %w", ref, err)
		}
	}
	return nil
}

// crioConfig has absolute paths only, below the lab's folder.
var crioConfig = template.Must(template.New("crio.conf").Parse(`[crio]
log_dir = '{{.Dir}}/crio-logs'
version_file = '{{.Dir}}/crio-version'
version_file_persist = ''
clean_shutdown_file = '{{.Dir}}/crio-clean-shutdown'
internal_wipe = false
[crio.api]
listen = '{{.Dir}}/crio.sock'
stream_port = '0'
[crio.runtime]
cgroup_manager = 'cgroupfs'
conmon_cgroup = 'pod'
default_runtime = 'runc'
hooks_dir = []
namespaces_dir = '{{.Dir}}/crio-namespaces'
container_exits_dir = '{{.Dir}}/crio-exits'
container_attach_socket_dir = '{{.Dir}}/crio-attach'
pinns_path = '{{.Dir}}/bin/pinns'
[crio.runtime.runtimes.runc]
runtime_path = '{{.Runc}}'
runtime_root = '{{.Dir}}/crio-runc'
monitor_path = '{{.Dir}}/bin/conmon'
monitor_cgroup = 'pod'
[crio.image]
pause_image = '{{.Pause}}'
signature_policy = '{{.Dir}}/policy.json'
signature_policy_dir = '{{.Dir}}/policies'
[crio.network]
network_dir = '{{.Dir}}/net.d'
plugin_dirs = ['{{.Dir}}/bin']
[crio.nri]
enable_nri = true
nri_listen = '{{.Dir}}/nri/nri.sock'
nri_plugin_dir = '{{.Dir}}/nri-plugins'
nri_plugin_config_dir = '{{.Dir}}/nri-conf.d'
`))

// CRI-O has no restrict_oom_score_adj as containerd has: where nobody may
// lower a score, the spec loses one that would.
const restrictedRunc = `#!/bin/sh
bundle=
for a; do
  case $last in -b|--bundle) bundle=$a ;; esac
  last=$a
done
if [ -n "$bundle" ]; then
  sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":'"$(cat /proc/self/oom_score_adj)"'/' "$bundle/config.json"
fi
exec %s "$@"
`

// writeCRIOConfig writes the configuration of CRI-O and of all it reads.
func (l *Lab) writeCRIOConfig(registry string) error {
	restrict, err := lacksSysResource()
	if err != nil {
		return err
	}
	values := struct{ Dir, Storage, Runc, Pause string }{l.dir, "overlay", filepath.Join(l.BinDir(), "runc"), images.Pause}
	if isFS(l.dir, unix.OVERLAYFS_SUPER_MAGIC) {
		values.Storage = "vfs" // an overlay can't lie on an overlay
	}
	files := map[string]string{
		"policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"containers.conf": "",
		"storage.conf": fmt.Sprintf("[storage]\ndriver = %q\ngraphroot = %q\nrunroot = %q\n",
			values.Storage, filepath.Join(l.dir, "crio-root"), filepath.Join(l.dir, "crio-run")),
		"registries.conf": "unqualified-search-registries = []\n",
	}
	for _, host := range []string{"docker.io", "registry.k8s.io"} {
		files["registries.conf"] += fmt.Sprintf("[[registry]]\nprefix = %q\nlocation = %q\ninsecure = true\n", host, registry)
	}
	if restrict {
		files["restricted-runc"] = fmt.Sprintf(restrictedRunc, values.Runc)
		values.Runc = filepath.Join(l.dir, "restricted-runc")
	}
	for _, dir := range []string{"net.d", "nri", "nri-plugins", "nri-conf.d", "registries.conf.d"} {
		if err := os.MkdirAll(filepath.Join(l.dir, dir), 0o755); err != nil {
			return err
		}
	}
	for name, content := range files {
		mode := os.FileMode(0o644)
		if strings.HasPrefix(content, "#!") {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(l.dir, name), []byte(content), mode); err != nil {
			return err
		}
	}
	if err := writeTemplate(filepath.Join(l.dir, "crio.conf"), crioConfig, values); err != nil {
		return err
	}
	return writeTemplate(filepath.Join(l.dir, "net.d", "10-lab.conflist"), bridgeNetwork, values)
}
