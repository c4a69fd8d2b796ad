package install_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/deploy"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/install"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	kubeletConf  = "etc/kubernetes/kubelet.conf.d/20-tideline.conf"
	kubeletLine  = "proc/733/cmdline"
	containerdOf = "etc/containerd/config.toml"
	nriConf      = "etc/containerd/conf.d/20-tideline.toml"
	units        = "etc/systemd/system/"
	proxy        = "tideline-runtime-proxy.service"
	socket       = "tideline-runtime-proxy.socket"
	plugin       = "tideline-nri-plugin.service"
	aftermath    = "run/tideline/lock"
)

// machine is a node with a systemd, a kubelet, a runtime and doors that do as little as the tests need. It fails the test
// when the kubelet is ever led to a proxy that does not run.
type machine struct {
	t               *testing.T
	root            string
	enabled, active map[string]bool
	kubeletAtProxy  bool
	nri             bool
	bypass          bool
	values          bool // of ours in the kernel
	commands        []string
	fail            func(command string) error
	off             bool // its containerd has NRI off without a drop-in
}

// at makes the node of testdata/node.txtar; change edits its files.
func at(t *testing.T, change func(files map[string]string)) *machine {
	t.Helper()
	a, err := txtar.ParseFile("testdata/node.txtar")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range a.Files {
		files[f.Name] = string(f.Data)
	}
	if change != nil {
		change(files)
	}
	m := &machine{t: t, root: t.TempDir(), enabled: map[string]bool{}, active: map[string]bool{"kubelet.service": true, "containerd.service": true, "crio.service": true}}
	for name, text := range files {
		if strings.HasSuffix(name, "/cmdline") {
			text = strings.ReplaceAll(strings.TrimSpace(text), " ", "\x00") + "\x00"
		}
		m.write(name, text)
	}
	_, off := files["off"]
	m.off, m.nri = off, !off
	return m
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	full := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) has(name string) bool {
	_, err := os.Lstat(filepath.Join(m.root, name))
	return err == nil
}

// files is the whole tree but for /run, folders too.
func (m *machine) files() map[string]string {
	out := map[string]string{}
	err := filepath.WalkDir(m.root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(m.root, name)
		if d.IsDir() {
			if rel == "run" {
				return filepath.SkipDir
			}
			out[rel+"/"] = ""
			return nil
		}
		data, err := os.ReadFile(name)
		out[rel] = string(data)
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func (m *machine) node() install.Node {
	return install.Node{
		Root: m.root, Run: m.run, Door: m, Say: func(string) {},
		Wait: install.Waits{Limit: 20 * time.Second, Every: 10 * time.Microsecond, Steady: 2},
	}
}

func (m *machine) run(_ context.Context, args []string) (string, error) {
	command := strings.Join(args, " ")
	m.commands = append(m.commands, command)
	if m.fail != nil {
		if err := m.fail(command); err != nil {
			return "", err
		}
	}
	if strings.HasSuffix(command, "config dump") {
		file := "lib/dump-on"
		if m.off && !m.has(nriConf) {
			file = "lib/dump-off"
		}
		data, err := os.ReadFile(filepath.Join(m.root, file))
		return string(data), err
	}
	verb, names := args[1], args[2:]
	for _, u := range names {
		if strings.Contains(u, "tideline") && !m.has(units+u) {
			return "", fmt.Errorf("Unit file %s does not exist", u)
		}
	}
	switch verb {
	case "daemon-reload":
	case "is-active":
		if m.active[names[0]] {
			return "active\n", nil
		}
		return "inactive\n", errors.New("exit status 3")
	case "enable":
		for _, u := range names {
			m.enabled[u] = true
		}
	case "disable":
		for _, u := range names[1:] {
			delete(m.enabled, u)
			delete(m.active, u)
		}
	case "start", "restart":
		switch u := names[0]; u {
		case proxy, plugin:
			if m.active[map[string]string{proxy: plugin, plugin: proxy}[u]] {
				return "", errors.New("another door runs on this node")
			}
			m.active[u] = true
			m.write(aftermath, "1")
		case "kubelet.service":
			m.kubeletAtProxy = m.has(kubeletConf)
		case "containerd.service":
			m.nri = !m.off || m.has(nriConf)
		default:
			m.active[u] = true
		}
	default:
		return "", fmt.Errorf("unknown: %s", command)
	}
	if m.kubeletAtProxy && !(m.active[proxy] && m.active[socket]) {
		m.t.Errorf("after %q the kubelet is led to a proxy that does not run", command)
	}
	return "", nil
}

func (m *machine) Status(context.Context) (control.Status, error) {
	st := control.Status{Runtime: control.Runtime{Connected: true}}
	env := ""
	switch {
	case m.active[proxy]:
		st.Door, env = "cri", "runtime-proxy.env"
	case m.active[plugin]:
		st.Door, env = "nri", "nri-plugin.env"
		st.Runtime.Connected = m.nri
	default:
		return st, control.ErrNoDoor
	}
	st.StartMode = control.ModeObserve
	if data, err := os.ReadFile(filepath.Join(m.root, "etc/tideline", env)); err == nil && strings.Contains(string(data), "--mode enforce") {
		st.StartMode = control.ModeEnforce
	}
	if st.Mode = st.StartMode; m.bypass {
		st.Mode = control.ModeBypass
	}
	m.values = m.values || st.Mode == control.ModeEnforce
	return st, nil
}

func (m *machine) Disable(ctx context.Context) (control.DisableReport, error) {
	if _, err := m.Status(ctx); err != nil {
		return control.DisableReport{}, err
	}
	m.bypass, m.values = true, false
	return control.DisableReport{Restored: 1}, nil
}

func (m *machine) Bypass(ctx context.Context, on bool) (control.Status, error) {
	m.bypass = on
	return m.Status(ctx)
}

func (m *machine) plan(decide func(install.Facts, install.Options) (install.Plan, error), o install.Options) (install.Plan, error) {
	m.t.Helper()
	f, err := install.ReadFacts(m.t.Context(), m.node())
	if err != nil {
		return install.Plan{}, err
	}
	return decide(f, o)
}

func (m *machine) do(decide func(install.Facts, install.Options) (install.Plan, error), o install.Options) error {
	m.t.Helper()
	p, err := m.plan(decide, o)
	if err != nil {
		return err
	}
	return install.Apply(m.t.Context(), m.node(), p)
}

func (m *machine) must(decide func(install.Facts, install.Options) (install.Plan, error), o install.Options) {
	m.t.Helper()
	if err := m.do(decide, o); err != nil {
		m.t.Fatal(err)
	}
}

var (
	cri = install.Options{Door: install.CRI}
	nri = install.Options{Door: install.NRI}
)

// off turns NRI off in the node's containerd, as 1.7 has it.
func off(files map[string]string) {
	files["off"] = ""
	files[containerdOf] = "version = 2\nimports = [\n  # ours\n  \"conf.d/*.toml\",\n]\n"
}

// crio makes CRI-O the runtime.
func crio(files map[string]string) {
	files["proc/612/cmdline"], files["proc/612/cgroup"] = "/usr/bin/crio", "0::/system.slice/crio.service\n"
	files["etc/kubernetes/kubelet.conf.d/10-base.conf"] = "containerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n"
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), go test -update writes it:\n%s", file, diff)
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		golden string
		change func(map[string]string)
		before []install.Options // installed before
		decide func(install.Facts, install.Options) (install.Plan, error)
		o      install.Options
		texts  bool // of files are in the golden
	}{
		{"cri.txt", nil, nil, install.Install, cri, true},
		{"nri.txt", nil, nil, install.Install, install.Options{Door: install.NRI, Mode: control.ModeEnforce}, false},
		{"nri-off.txt", off, nil, install.Install, nri, true},
		{"nri-crio.txt", crio, nil, install.Install, nri, false},
		{"cri-enforce.txt", nil, []install.Options{cri}, install.Install, install.Options{Door: install.CRI, Mode: control.ModeEnforce}, true},
		{"cri-observe.txt", nil, []install.Options{{Door: install.CRI, Mode: control.ModeEnforce}}, install.Install, install.Options{Door: install.CRI, Mode: control.ModeObserve}, false},
		{"cri-again.txt", nil, []install.Options{cri}, install.Install, cri, false},
		{"cri-to-nri.txt", nil, []install.Options{cri}, install.Install, nri, false},
		{"nri-to-cri.txt", off, []install.Options{nri}, install.Install, cri, false},
		{"uninstall-cri.txt", nil, []install.Options{cri}, install.Uninstall, install.Options{}, false},
		{"uninstall-nri.txt", off, []install.Options{nri}, install.Uninstall, install.Options{KeepValues: true}, false},
		{"uninstall-nothing.txt", func(f map[string]string) { f[units+plugin] = "x" }, nil, install.Uninstall, install.Options{}, false},
	} {
		t.Run(tc.golden, func(t *testing.T) {
			t.Parallel()
			m := at(t, tc.change)
			for _, o := range tc.before {
				m.must(install.Install, o)
			}
			before := m.files()
			p, err := m.plan(tc.decide, tc.o)
			if err != nil {
				t.Fatal(err)
			}
			text := p.String()
			if !tc.texts {
				text = regexp.MustCompile(`(?m)^     [-+ ].*\n`).ReplaceAllString(text, "")
			}
			golden(t, tc.golden, text+"Next: "+p.Next+"\n")
			if diff := cmp.Diff(before, m.files()); diff != "" {
				t.Errorf("planning changed the node (-before +after):\n%s", diff)
			}
			if err := install.Apply(t.Context(), m.node(), p); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	kubelet := func(args string) func(map[string]string) {
		return func(f map[string]string) { f[kubeletLine] = "/usr/bin/kubelet " + args }
	}
	for _, tc := range []struct {
		name   string
		change func(map[string]string)
		o      install.Options
		want   string // contained
	}{
		{"no systemd", func(f map[string]string) { delete(f, "run/systemd/system/.keep") }, cri, "was not booted with systemd"},
		{"no program", func(f map[string]string) { delete(f, "usr/local/bin/tideline-runtime-proxy") }, cri, "docs/install-node.md, step 1"},
		{"case B, a flag", kubelet("--config-dir /etc/kubernetes/kubelet.conf.d --container-runtime-endpoint=unix:///x"), cri, "kubeadm-flags.env"},
		{"case C, no folder", kubelet("--config /etc/k.yaml"), cri, "Put KUBELET_EXTRA_ARGS=--config-dir=/etc/kubernetes/kubelet.conf.d into /etc/default/kubelet"},
		{"no kubelet", func(f map[string]string) { delete(f, kubeletLine) }, cri, "no kubelet runs here"},
		{"a relative folder", kubelet("--config-dir x"), cri, "want an absolute path"},
		{"a bad kubelet configuration", func(f map[string]string) { f["var/lib/kubelet/config.yaml"] = "a: [" }, cri, "read the kubelet's configuration /var/lib/kubelet/config.yaml"},
		{"the proxy by hand", func(f map[string]string) {
			f["etc/kubernetes/kubelet.conf.d/10-base.conf"] = "containerRuntimeEndpoint: /run/tideline/cri.sock\n"
		}, nri, "the kubelet talks to the proxy by /etc/kubernetes/kubelet.conf.d/10-base.conf"},
		{"a later drop-in", func(f map[string]string) {
			f["etc/kubernetes/kubelet.conf.d/sub/x.conf"] = "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n"
		}, cri, "/etc/kubernetes/kubelet.conf.d/sub/x.conf sets containerRuntimeEndpoint and comes after our"},
		{"CRI-O behind the proxy", crio, cri, "use --door nri"},
		{"k3s", func(f map[string]string) {
			f["etc/kubernetes/kubelet.conf.d/10-base.conf"] = "containerRuntimeEndpoint: /run/k3s/containerd/containerd.sock\n"
		}, cri, "the kubelet's runtime is at /run/k3s/containerd/containerd.sock"},
		{"a door by hand, edited", func(f map[string]string) { f[units+proxy] = "[Unit]\n" }, cri, "/etc/systemd/system/" + proxy + " is there, and somebody has edited it"},
		{"the other door by hand, edited", func(f map[string]string) { f[units+proxy] = "[Unit]\n" }, nri, "/etc/systemd/system/" + proxy + " was edited"},
		{"no runtime", func(f map[string]string) { delete(f, "proc/612/cmdline") }, nri, "neither containerd nor CRI-O runs here"},
		{"NRI off, no imports", func(f map[string]string) { off(f); f[containerdOf] = "version = 2\n" }, nri,
			"Add to that file by hand:\n\n  [plugins.\"io.containerd.nri.v1.nri\"]\n    disable = false\n"},
		{"NRI off, imports by name", func(f map[string]string) { off(f); f[containerdOf] = "imports = ['/etc/containerd/a.toml']\n" }, nri, "imports no folder"},
		{"NRI among disabled_plugins", func(f map[string]string) { f["lib/dump-on"] = "disabled_plugins = ['io.containerd.nri.v1.nri']\n" }, nri, "which no drop-in undoes"},
		{"containerd 1.6", func(f map[string]string) { f["lib/dump-on"] = "version = 2\n" }, nri, "which containerd has from 1.7 on"},
		{"no such door", nil, install.Options{Door: "x"}, `--door "x": want cri or nri`},
		{"no such mode", nil, install.Options{Door: install.CRI, Mode: "x"}, `--mode "x": want enforce or observe`},
		{"damaged state", func(f map[string]string) { f["var/lib/tideline/install.json"] = "{" }, cri, "It is damaged"},
		{"state that names foreign files", func(f map[string]string) {
			f["var/lib/tideline/install.json"] = `{"version":1,"door":"cri","files":[{"path":"/etc/passwd"}]}`
		}, cri, `"/etc/passwd" is no file of ours`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := at(t, tc.change)
			p, err := m.plan(install.Install, tc.o)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q in it", err, tc.want)
			}
			if len(p.Steps) > 0 {
				t.Errorf("%d steps beside an error", len(p.Steps))
			}
		})
	}
}

// TestForeignProcesses: what others call themselves leads root nowhere.
func TestForeignProcesses(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("root: only root gives a process to another user")
	}
	m := at(t, nil)
	m.write("proc/2/cmdline", "kubelet\x00--config-dir=/home/eve\x00")
	if err := os.Chown(filepath.Join(m.root, "proc/2"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	f, err := install.ReadFacts(t.Context(), m.node())
	if err != nil || f.Kubelet.ConfigDir != "/etc/kubernetes/kubelet.conf.d" {
		t.Errorf("%+v, %v", f.Kubelet, err)
	}
}

func TestLinksAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		kubeletConf, "etc/kubernetes/kubelet.conf.d", units + proxy, "etc/tideline", "etc/tideline/policy.yaml", "var/lib/tideline", "var/lib/tideline/install.json",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := at(t, nil)
			full := filepath.Join(m.root, name)
			if err := errors.Join(os.RemoveAll(full), os.MkdirAll(filepath.Dir(full), 0o755), os.Symlink("/foreign", full)); err != nil {
				t.Fatal(err)
			}
			if _, err := m.plan(install.Install, cri); err == nil || !strings.Contains(err.Error(), "/"+name+" is refused: it is a symbolic link") {
				t.Errorf("%v", err)
			}
		})
	}
	m := at(t, nil)
	p, err := m.plan(install.Install, cri)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(m.root, "usr"), filepath.Join(m.root, "etc/tideline")); err != nil {
		t.Fatal(err)
	}
	if err := install.Apply(t.Context(), m.node(), p); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link that came meanwhile: %v", err)
	}
	if err := errors.Join(os.Remove(filepath.Join(m.root, "etc/tideline")), os.Chmod(filepath.Join(m.root, "etc/kubernetes/kubelet.conf.d"), 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.plan(install.Install, cri); err == nil || !strings.Contains(err.Error(), "root alone may write") {
		t.Errorf("a folder open to all: %v", err)
	}
}

// TestInstalledFiles: what stands on the node afterwards is what deploy/ has.
func TestInstalledFiles(t *testing.T) {
	t.Parallel()
	same := func(m *machine, name, source string) {
		t.Helper()
		want, err := os.ReadFile(filepath.Join("../../deploy", source))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), m.files()[name]); diff != "" {
			t.Errorf("%s (-deploy +node):\n%s", name, diff)
		}
	}
	m := at(t, off)
	m.must(install.Install, cri)
	for _, u := range []string{socket, proxy} {
		same(m, units+u, "systemd/"+u)
	}
	same(m, "etc/tideline/runtime-proxy.env", "systemd/runtime-proxy.env")
	same(m, kubeletConf, "systemd/kubelet.conf.d/20-tideline.conf")
	policy, err := v1alpha1.ParsePolicy([]byte(m.files()["etc/tideline/policy.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v1alpha1.Default(), policy); diff != "" {
		t.Errorf("the policy file (-default +file):\n%s", diff)
	}
	m.must(install.Install, nri)
	same(m, units+plugin, "systemd/"+plugin)
	same(m, "etc/tideline/nri-plugin.env", "systemd/nri-plugin.env")
	same(m, nriConf, "containerd/20-tideline.toml")
	m = at(t, crio)
	m.must(install.Install, nri)
	same(m, "etc/crio/crio.conf.d/20-tideline.conf", "crio/20-tideline.conf")
	if err := fs.WalkDir(deploy.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			data, _ := deploy.Files.ReadFile(name)
			if disk, err := os.ReadFile(filepath.Join("../../deploy", name)); err != nil || string(disk) != string(data) {
				t.Errorf("%s differs from what is compiled in: %v", name, err)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestEveryStepFails stops each plan before each of its steps. From there the same command again ends as if nothing had
// been, and uninstall leaves the node as it was before.
func TestEveryStepFails(t *testing.T) {
	t.Parallel()
	enforced := install.Options{Door: install.CRI, Mode: control.ModeEnforce}
	for _, tc := range []struct {
		name   string
		change func(map[string]string)
		before []install.Options
		decide func(install.Facts, install.Options) (install.Plan, error)
		o      install.Options
	}{
		{"cri", nil, nil, install.Install, cri},
		{"nri", nil, nil, install.Install, nri},
		{"nri off", off, nil, install.Install, nri},
		{"nri on CRI-O", crio, nil, install.Install, nri},
		{"enforce", nil, []install.Options{cri}, install.Install, enforced},
		{"observe", nil, []install.Options{enforced}, install.Install, install.Options{Door: install.CRI, Mode: control.ModeObserve}},
		{"cri to nri", off, []install.Options{enforced}, install.Install, nri},
		{"nri to cri", off, []install.Options{nri}, install.Install, cri},
		{"uninstall cri", nil, []install.Options{enforced}, install.Uninstall, install.Options{}},
		{"uninstall nri", off, []install.Options{nri}, install.Uninstall, install.Options{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			start := func() *machine {
				m := at(t, tc.change)
				for _, o := range tc.before {
					m.must(install.Install, o)
				}
				return m
			}
			virgin := at(t, tc.change).files()
			m := start()
			p, err := m.plan(tc.decide, tc.o)
			if err != nil {
				t.Fatal(err)
			}
			if err := install.Apply(t.Context(), m.node(), p); err != nil {
				t.Fatal(err)
			}
			want, wantActive := m.files(), maps.Clone(m.active)
			uninstall := func(m *machine, what string) {
				t.Helper()
				err := m.do(install.Uninstall, install.Options{})
				if errors.Is(err, install.ErrNeedsDoor) {
					err = m.do(install.Uninstall, install.Options{KeepValues: true})
				}
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if diff := cmp.Diff(virgin, m.files()); diff != "" {
					t.Errorf("%s (-virgin +left):\n%s", what, diff)
				}
				if len(m.enabled) > 0 || m.active[proxy] || m.active[socket] || m.active[plugin] || m.kubeletAtProxy || m.nri == m.off {
					t.Errorf("%s leaves %v enabled, %v active, the kubelet at the proxy %v, NRI on %v", what, m.enabled, m.active, m.kubeletAtProxy, m.nri)
				}
				if err := m.do(install.Uninstall, install.Options{}); err != nil {
					t.Errorf("%s, once more: %v", what, err)
				}
			}
			uninstall(m, "uninstall") // a second run ends in the same files, so this holds for it too
			for i, s := range p.Steps {
				part := p
				part.Steps = p.Steps[:i]
				m := start()
				if err := install.Apply(t.Context(), m.node(), part); err != nil {
					t.Fatal(err)
				}
				if err := m.do(tc.decide, tc.o); err != nil && !errors.Is(err, install.ErrNeedsDoor) {
					t.Errorf("again after %s: %v", s, err)
				}
				if diff := cmp.Diff(want, m.files()); diff != "" {
					t.Errorf("again, without %s (-want +got):\n%s", s, diff)
				}
				if !maps.Equal(wantActive, m.active) || m.bypass && len(m.enabled) > 0 {
					t.Errorf("again, without %s: %v active, want %v; bypass %v", s, m.active, wantActive, m.bypass)
				}

				m = start()
				if err := install.Apply(t.Context(), m.node(), part); err != nil {
					t.Fatal(err)
				}
				uninstall(m, fmt.Sprintf("uninstall, without %s", s))
			}
		})
	}
}

// TestStops: what fails ends a plan there, and the error says where.
func TestStops(t *testing.T) {
	t.Parallel()
	m := at(t, nil)
	boom := errors.New("boom")
	m.fail = func(command string) error {
		if command == "systemctl restart "+proxy {
			return boom
		}
		return nil
	}
	err := m.do(install.Install, cri)
	var stopped *install.StepError
	if !errors.As(err, &stopped) || !errors.Is(err, boom) {
		t.Fatalf("%v", err)
	}
	if want := "step 9 of 14, run: systemctl restart " + proxy + ": boom"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if m.has(kubeletConf) || slices.Contains(m.commands, "systemctl restart kubelet.service") {
		t.Error("the kubelet was touched")
	}
}

func TestWaits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		fail func(*machine)
		want string
	}{
		{"the wrong door", func(m *machine) { m.active[plugin] = true; delete(m.active, proxy) }, "the nri door answers, want cri"},
		{"the wrong mode", func(m *machine) { m.write("etc/tideline/runtime-proxy.env", "--mode enforce") }, "the door was started to enforce, want observe"},
		{"no door", func(m *machine) { delete(m.active, proxy) }, "no door runs here: see journalctl -u " + proxy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := at(t, nil)
			m.must(install.Install, cri)
			p, err := m.plan(install.Install, cri)
			if err != nil {
				t.Fatal(err)
			}
			m.kubeletAtProxy = false
			tc.fail(m)
			n := m.node()
			n.Wait.Limit = 50 * time.Millisecond
			var said []string
			n.Say = func(line string) { said = append(said, line) }
			if err := install.Apply(t.Context(), n, p); err == nil || !strings.HasSuffix(err.Error(), "not within 50ms: "+tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if text := strings.Join(said, "\n"); strings.Count(text, "waiting: "+tc.want) != 1 {
				t.Errorf("progress:\n%s", text)
			}
		})
	}
}

func TestEdited(t *testing.T) {
	t.Parallel()
	m := at(t, nil)
	virgin := m.files()
	m.must(install.Install, cri)
	m.write(kubeletConf, "containerRuntimeEndpoint: unix:///run/tideline/cri.sock\nmaxPods: 200\n")
	before := m.files()
	const want = "/" + kubeletConf + " was edited since it was installed. Look at it, keep what you need elsewhere, then remove it with --force"
	if err := m.do(install.Uninstall, install.Options{}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := m.do(install.Install, cri); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("install over it: %v", err)
	}
	if diff := cmp.Diff(before, m.files()); diff != "" {
		t.Errorf("a refusal changed the node:\n%s", diff)
	}
	m.must(install.Uninstall, install.Options{Force: true})
	if diff := cmp.Diff(virgin, m.files()); diff != "" {
		t.Errorf("by force (-virgin +left):\n%s", diff)
	}
}

// TestConfigStays: arguments and policy that somebody has edited survive everything.
func TestConfigStays(t *testing.T) {
	t.Parallel()
	m := at(t, func(f map[string]string) { f["etc/tideline/policy.yaml"] = "mine\n" })
	m.must(install.Install, cri)
	env := "etc/tideline/runtime-proxy.env"
	m.write(env, "TIDELINE_ARGS=--mode=observe --log-level debug\n")
	m.must(install.Install, install.Options{Door: install.CRI, Mode: control.ModeEnforce})
	if got := m.files()[env]; got != "TIDELINE_ARGS=--mode enforce --log-level debug\n" {
		t.Errorf("%q", got)
	}
	m.must(install.Install, nri)
	if got := m.files()["etc/tideline/nri-plugin.env"]; !strings.Contains(got, "--mode enforce") {
		t.Errorf("a switch forgets the mode: %s", got)
	}
	m.must(install.Uninstall, install.Options{})
	left := m.files()
	for _, name := range []string{env, "etc/tideline/policy.yaml"} {
		if left[name] == "" {
			t.Errorf("%s is gone", name)
		}
	}
	if left["etc/tideline/nri-plugin.env"] != "" {
		t.Error("an unedited file stays")
	}
}

// TestByHand: a node of docs/install-node.md's steps is taken over, and goes back to one without us.
func TestByHand(t *testing.T) {
	t.Parallel()
	virgin := at(t, nil).files()
	for _, o := range []install.Options{cri, nri} {
		m := at(t, nil)
		for name, source := range map[string]string{units + socket: socket, units + proxy: proxy, kubeletConf: "kubelet.conf.d/20-tideline.conf", "etc/tideline/runtime-proxy.env": "runtime-proxy.env"} {
			data, err := deploy.Files.ReadFile("systemd/" + source)
			if err != nil {
				t.Fatal(err)
			}
			m.write(name, strings.Replace(string(data), "=--mode observe", "=--mode enforce", 1))
		}
		m.active[socket], m.active[proxy], m.kubeletAtProxy = true, true, true
		m.must(install.Install, o)
		if st, err := m.Status(t.Context()); err != nil || st.Door != string(o.Door) || st.StartMode != control.ModeEnforce {
			t.Errorf("%s %s, %v", st.Door, st.StartMode, err)
		}
		m.must(install.Uninstall, install.Options{})
		left := m.files()
		delete(left, "etc/tideline/")
		if diff := cmp.Diff(virgin, left); diff != "" {
			t.Errorf("%s (-virgin +left):\n%s", o.Door, diff)
		}
	}
}

// TestBefore: by force a foreign file goes and comes back, unless it leads the kubelet to nobody.
func TestBefore(t *testing.T) {
	t.Parallel()
	m := at(t, func(f map[string]string) {
		f[units+proxy] = "[Unit]\n"
		f[kubeletConf] = "containerRuntimeEndpoint: unix:///run/tideline/cri.sock\n"
	})
	m.must(install.Install, install.Options{Door: install.CRI, Force: true})
	m.must(install.Uninstall, install.Options{})
	if m.files()[units+proxy] != "[Unit]\n" {
		t.Error("the old unit is not back")
	}
	if m.has(kubeletConf) {
		t.Error("the kubelet is led to nobody")
	}
}

// TestUpgrade: a unit of an older version, unedited, is replaced; the kubelet is left alone.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	m := at(t, nil)
	virgin := m.files()
	m.must(install.Install, cri)
	want := m.files()
	hash := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	m.write(units+proxy, "[Unit]\n")
	state := strings.TrimPrefix(install.StateFile, "/")
	m.write(state, strings.Replace(want[state], hash(want[units+proxy]), hash("[Unit]\n"), 1))
	m.commands = nil
	m.must(install.Install, cri)
	if diff := cmp.Diff(want, m.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if slices.Contains(m.commands, "systemctl restart kubelet.service") || !slices.Contains(m.commands, "systemctl restart "+proxy) {
		t.Errorf("%q", m.commands)
	}
	m.must(install.Uninstall, install.Options{})
	if diff := cmp.Diff(virgin, m.files()); diff != "" {
		t.Errorf("(-virgin +left):\n%s", diff)
	}
}

func TestNoDoorAnswers(t *testing.T) {
	t.Parallel()
	m := at(t, nil)
	m.must(install.Install, cri)
	delete(m.active, proxy)
	m.kubeletAtProxy = false
	if err := m.do(install.Uninstall, install.Options{}); !errors.Is(err, install.ErrNeedsDoor) || !strings.Contains(err.Error(), "systemctl start "+proxy) {
		t.Errorf("%v", err)
	}
	m.must(install.Uninstall, install.Options{KeepValues: true})
	if !m.has(aftermath) {
		t.Error("the journal went with --keep-values")
	}
}
