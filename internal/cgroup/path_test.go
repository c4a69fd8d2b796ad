package cgroup_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/policy"
)

const id = "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9"

var pathCases = []struct {
	name, in string
	want     cgroup.Path // "" for an error
}{
	{"cgroupfs", "/kubepods/burstable/pod7f/" + id, "/kubepods/burstable/pod7f/" + cgroup.Path(id)},
	{"slice", "kubepods-burstable-pod7f_8a.slice", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7f_8a.slice"},
	{"top slice", "kubepods.slice", "/kubepods.slice"},
	{"oci unit", "kubepods-pod7f.slice:cri-containerd:" + id, "/kubepods.slice/kubepods-pod7f.slice/cri-containerd-" + cgroup.Path(id) + ".scope"},
	{"oci unit without prefix", "kubepods-pod7f.slice::x", "/kubepods.slice/kubepods-pod7f.slice/x.scope"},
	{"slice as path", "/kubepods.slice/kubepods-pod7f.slice", "/kubepods.slice/kubepods-pod7f.slice"},
	{"dots in a name", "/a..b/...", "/a..b/..."},
	{"longest", "/" + strings.Repeat("a", 255), cgroup.Path("/" + strings.Repeat("a", 255))},
	{"empty", "", ""},
	{"root", "/", ""},
	{"root slice", "-.slice", ""},
	{"relative", "kubepods/pod7f", ""},
	{"relative slice", "kubepods.slice/x.slice", ""},
	{"parent", "/kubepods/../system.slice", ""},
	{"trailing parent", "/kubepods/..", ""},
	{"self", "/kubepods/./pod7f", ""},
	{"empty component", "/kubepods//pod7f", ""},
	{"trailing slash", "/kubepods/", ""},
	{"empty part of a slice", "kubepods--pod7f.slice", ""},
	{"leading dash", "-kubepods.slice", ""},
	{"bare suffix", ".slice", ""},
	{"escape by unit name", "kubepods.slice:..:/../../x", ""},
	{"no unit name", "kubepods.slice:cri:", ""},
	{"NUL", "/kube\x00pods", ""},
	{"newline", "/kube\npods", ""},
	{"not UTF-8", "/kube\xffpods", ""},
	{"long name", "/" + strings.Repeat("a", 256), ""},
	{"long path", strings.Repeat("/aaaaaaa", 513), ""},
	{"slice that grows", strings.Repeat("a-", 200) + "a.slice", ""},
}

func TestParsePath(t *testing.T) {
	t.Parallel()
	for _, c := range pathCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := cgroup.ParsePath(c.in)
			if got != c.want || (err != nil) != (c.want == "") {
				t.Errorf("ParsePath(%q) = %q, %v, want %q", c.in, got, err, c.want)
			}
		})
	}
}

func FuzzParsePath(f *testing.F) {
	for _, c := range pathCases {
		f.Add(c.in)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := cgroup.ParsePath(s)
		if err != nil {
			return
		}
		if string(p) != filepath.Clean(string(p)) || !strings.HasPrefix(string(p), "/") || len(p) < 2 || strings.ContainsAny(string(p), "\n\x00") {
			t.Errorf("ParsePath(%q) = %q", s, p)
		}
		if again, err := cgroup.ParsePath(string(p)); err != nil || again != p {
			t.Errorf("ParsePath(%q) = %q, %v", p, again, err)
		}
		p.Level()
	})
}

func TestLevel(t *testing.T) {
	t.Parallel()
	for p, want := range map[cgroup.Path]policy.Level{
		"/kubepods":                                 policy.LevelClass,
		"/kubepods/burstable":                       policy.LevelClass,
		"/kubepods/besteffort":                      policy.LevelClass,
		"/probe/kubepods/besteffort":                policy.LevelClass,
		"/kubepods.slice":                           policy.LevelClass,
		"/kubepods.slice/kubepods-besteffort.slice": policy.LevelClass,
		"/a.slice/a-kubepods.slice":                 policy.LevelClass,
		"/kubepods/pod7f":                           policy.LevelPod,
		"/kubepods/burstable/pod7f":                 policy.LevelPod,
		"/kubepods.slice/kubepods-pod7f_1.slice":    policy.LevelPod,
		"/kubepods/pod7f/" + cgroup.Path(id):        policy.LevelContainer,
		"/kubepods.slice/kubepods-pod7f.slice/cri-containerd-" + cgroup.Path(id) + ".scope": policy.LevelContainer,
		"/kubepods/pod7f/x/y":               "",
		"/kubepods/pod7f/pod8a":             policy.LevelContainer,
		"/kubepods/pod7f/x/kubepods":        "",
		"/burstable":                        "",
		"/system.slice/sshd.service":        "",
		"/system.slice/system-podman.slice": "",
		"/kubepods/pod":                     "",
	} {
		if got := p.Level(); got != want {
			t.Errorf("Level of %s = %q, want %q", p, got, want)
		}
	}
}

func proc(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

var procCases = []struct {
	name, text, id string
	want           cgroup.Path
}{
	{"v2", "0::/kubepods/pod7f/" + id + "\n", id, "/kubepods/pod7f/" + cgroup.Path(id)},
	{"v2 nested", "0::/kubepods/pod7f/" + id + "/init.scope\n", id, "/kubepods/pod7f/" + cgroup.Path(id)},
	{"v2 systemd", "0::/kubepods.slice/kubepods-pod7f.slice/cri-containerd-" + id + ".scope/container\n", id, "/kubepods.slice/kubepods-pod7f.slice/cri-containerd-" + cgroup.Path(id) + ".scope"},
	{"a container that imitates its ID below", "0::/kubepods/pod7f/" + id + "/x/" + id + "\n", id, "/kubepods/pod7f/" + cgroup.Path(id)},
	{"a container that imitates removal", "0::/kubepods/pod7f/" + id + "/x (deleted)\n", id, "/kubepods/pod7f/" + cgroup.Path(id)},
	{"hybrid", proc("9:name=systemd:/", "4:memory:/kubepods/pod7f/"+id, "2:cpuacct:/", "1:cpu:/kubepods/pod7f/"+id+"/sub", "0::/kubepods/pod7f/"+id), id, "/kubepods/pod7f/" + cgroup.Path(id)},
	{"hybrid, unified not joined", proc("4:memory:/kubepods/pod7f/"+id, "1:cpu,cpuacct:/kubepods/pod7f/"+id, "0::/"), id, "/kubepods/pod7f/" + cgroup.Path(id)},
	{"pure v1", proc("4:memory:/kubepods/pod7f/" + id), id, "/kubepods/pod7f/" + cgroup.Path(id)},
	{"hierarchies disagree", proc("4:memory:/kubepods/pod7f/"+id, "1:cpu:/kubepods/pod8a/"+id), id, ""},
	{"unified disagrees", proc("4:memory:/kubepods/pod7f/"+id, "0::/kubepods/pod8a/"+id), id, ""},
	{"one hierarchy lacks the ID", proc("4:memory:/kubepods/pod7f/"+id, "1:cpu:/"), id, ""},
	{"v2 lacks the ID", "0::/kubepods/pod7f\n", id, ""},
	{"only other controllers", proc("3:freezer:/kubepods/pod7f/" + id), id, ""},
	{"part of an ID", "0::/kubepods/pod7f/" + id + "\n", id[:8], ""},
	{"end of an ID", "0::/kubepods/pod7f/" + id + "\n", id[8:], ""},
	{"above a cgroup namespace", "0::/../kubepods/pod7f/" + id + "\n", id, ""},
	{"no ID", "0::/kubepods/pod7f/x\n", "", ""},
	{"ID with a slash", "0::/kubepods/pod7f/x\n", "pod7f/x", ""},
	{"ID of dots", "0::/kubepods/../x\n", "..", ""},
	{"two unified lines", proc("0::/kubepods/pod7f/x", "0::/kubepods/pod7f/x"), "x", ""},
	{"empty", "", id, ""},
	{"no colon", "0\n", id, ""},
	{"no number", "x::/a\n", id, ""},
	{"colon in a path", "0::/kubepods/pod7f/a:" + id + "/x-" + id + "\n", id, "/kubepods/pod7f/a:" + cgroup.Path(id) + "/x-" + cgroup.Path(id)},
}

func TestParseProc(t *testing.T) {
	t.Parallel()
	for _, c := range procCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := cgroup.ParseProc(c.text, c.id, "")
			if got != c.want || (err != nil) != (c.want == "") {
				t.Errorf("ParseProc = %q, %v, want %q", got, err, c.want)
			}
		})
	}
	if _, err := cgroup.ParseProc("0::/kubepods/pod7f/"+id+" (deleted)\n", id, ""); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("ParseProc of a removed cgroup: %v, want ErrGone", err)
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]cgroup.Path{
		"/kubepods/burstable/pod7f/crio-" + id: "/kubepods/burstable/pod7f/crio-" + cgroup.Path(id),
		"/kubepods/burstable/pod7f/" + id:      "/kubepods/burstable/pod7f/" + cgroup.Path(id),
		"kubepods-pod7f.slice:crio:" + id:      "/kubepods.slice/kubepods-pod7f.slice/crio-" + cgroup.Path(id) + ".scope",
		"":                                     "",
		"/":                                    "",
		"kubepods/pod7f/" + id:                 "",
		"/kubepods/burstable/pod7f":            "",
		"/kubepods/burstable/pod7f/crio-" + id[1:]: "",
		"/kubepods/" + id + "/x":                   "",
		"/kubepods/../" + id:                       "",
	} {
		if got, err := new(cgroup.FS).Named(name, id); got != want || (err != nil) != (want == "") {
			t.Errorf("Named(%q) = %q, %v, want %q", name, got, err, want)
		}
	}
	if p, err := new(cgroup.FS).Named("/kubepods/pod7f", ""); err == nil {
		t.Errorf("Named without an ID = %q", p)
	}
}

// What is found by name is the container's own, and nothing is opened outside of its pod.
func TestFind(t *testing.T) {
	t.Parallel()
	for _, layout := range []cgrouptest.Layout{cgrouptest.V1, cgrouptest.V2} {
		k, f, _ := setUp(t, layout)
		for i, name := range []string{id, "cri-containerd-" + id + ".scope", "crio-" + id, "crio-" + id + ".scope"} {
			pod := cgroup.Path(fmt.Sprintf("/kubepods/burstable/pod%da", i))
			want := pod + "/" + cgroup.Path(name)
			if got, err := f.Find(pod, id); !errors.Is(err, cgroup.ErrGone) {
				t.Errorf("before it is made: %q, %v", got, err)
			}
			if err := k.Make(want); err != nil {
				t.Fatal(err)
			}
			if got, err := f.Find(pod, id); got != want || err != nil {
				t.Errorf("Find = %q, %v, want %q", got, err, want)
			}
		}
		for _, bad := range []string{"", "..", ".", "a/b", "../" + id, "x\n", strings.Repeat("x", 300)} {
			if got, err := f.Find("/kubepods/burstable/pod0a", bad); err == nil {
				t.Errorf("Find(%.20q) = %q", bad, got)
			}
		}
		if got, err := f.Find("/kubepods/../..", id); err == nil {
			t.Errorf("outside: %q", got)
		}
	}
}

// ours is where a door runs that is in a container itself.
const ours = "/kubepods/burstable/pod1a/abcdef"

// What such a door is shown. Nothing below a container's own cgroup may count, whatever names the container gives it.
var namespaceCases = []struct {
	name, shown, id string
	want            cgroup.Path
}{
	{"another class", "/../../../besteffort/pod7f/" + id, id, "/kubepods/besteffort/pod7f/" + cgroup.Path(id)},
	{"the same class", "/../../pod7f/" + id, id, "/kubepods/burstable/pod7f/" + cgroup.Path(id)},
	{"the same pod", "/../" + id, id, "/kubepods/burstable/pod1a/" + cgroup.Path(id)},
	{"another tree", "/../../../../system.slice/x-" + id + ".scope", id, "/system.slice/x-" + cgroup.Path(id) + ".scope"},
	{"our own", "/", "abcdef", ours},
	{"below our own", "/x/" + id, id, ours + "/x/" + cgroup.Path(id)},
	{"nested", "/../../pod7f/" + id + "/init", id, "/kubepods/burstable/pod7f/" + cgroup.Path(id)},
	{"a container that imitates its ID below", "/../../pod7f/" + id + "/x/" + id, id, "/kubepods/burstable/pod7f/" + cgroup.Path(id)},
	{"a container that imitates the tree below", "/../../pod7f/" + id + "/kubepods/burstable/pod8a/" + id, id, "/kubepods/burstable/pod7f/" + cgroup.Path(id)},
	{"a container below us that imitates ours", "/x/abcdef", "abcdef", ours},
	{"another container with our ID below", "/../../pod7f/" + id + "/abcdef", "abcdef", "/kubepods/burstable/pod7f/" + cgroup.Path(id) + "/abcdef"}, // its PID is what the runtime has named
	{"a name of three dots", "/.../" + id, id, ours + "/.../" + cgroup.Path(id)},
	{"a name that begins with two dots", "/..x/" + id, id, ours + "/..x/" + cgroup.Path(id)},
	{"dots on the way", "/../../pod7f/../pod8a/" + id, id, ""},
	{"dots after a name", "/pod7f/../../" + id, id, ""},
	{"above the root", "/../../../../../kubepods/" + id, id, ""},
	{"the root", "/../../../..", id, ""},
	{"a pod", "/../../pod7f", id, ""},
	{"part of an ID", "/../../pod7f/" + id[:8], id, ""},
	{"no slash", "..", id, ""},
	{"empty", "", id, ""},
}

func TestParseProcInNamespace(t *testing.T) {
	t.Parallel()
	for _, c := range namespaceCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := cgroup.ParseProc("0::"+c.shown+"\n", c.id, ours)
			if got != c.want || (err != nil) != (c.want == "") {
				t.Errorf("ParseProc = %q, %v, want %q", got, err, c.want)
			}
		})
	}
	if _, err := cgroup.ParseProc("0::/../../pod7f/"+id+" (deleted)\n", id, ours); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("ParseProc of a removed cgroup: %v, want ErrGone", err)
	}
	for _, namespace := range []cgroup.Path{"/", "a", "/a/..", "/a//b"} {
		if p, err := cgroup.ParseProc("0::/"+id+"\n", id, namespace); err == nil {
			t.Errorf("ParseProc in %q = %q", namespace, p)
		}
	}
	// Where the mount shows no more than the namespace, the error says what to do, and is not that of a cgroup that has gone.
	_, err := cgroup.ParseProc("0::/../../pod7f/"+id+"\n", id, "")
	want := `"/../../pod7f/` + id + `" is outside of our cgroup namespace: mount the host's /sys/fs/cgroup, all of it, or run in the host's cgroup namespace`
	if err == nil || err.Error() != want {
		t.Errorf("ParseProc without a namespace: %v, want %s", err, want)
	}
	// On a hybrid host the unified line may show anything that has not the ID.
	hybrid := proc("4:memory:/kubepods/pod7f/"+id, "0::/../..")
	if p, err := cgroup.ParseProc(hybrid, id, ""); p != "/kubepods/pod7f/"+cgroup.Path(id) || err != nil {
		t.Errorf("ParseProc of a hybrid host = %q, %v", p, err)
	}
}

// A cgroup that the kernel would show is found again from every other.
func TestParseProcFromEverywhere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"kubepods", "burstable", "pod7f", "...", "x"})
		names := rapid.SliceOfN(name, 1, 5)
		from, to := names.Draw(t, "namespace"), append(names.Draw(t, "pod"), id)
		common := 0
		for common < min(len(from), len(to)) && from[common] == to[common] {
			common++
		}
		shown := strings.Repeat("/..", len(from)-common) + "/" + strings.Join(to[common:], "/")
		below := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"/" + id, "/x", "/kubepods"}), 0, 3).Draw(t, "below"), "")
		got, err := cgroup.ParseProc("0::"+shown+below+"\n", id, cgroup.Path("/"+strings.Join(from, "/")))
		if want := cgroup.Path("/" + strings.Join(to, "/")); got != want || err != nil {
			t.Errorf("ParseProc of %s%s = %q, %v, want %q", shown, below, got, err, want)
		}
	})
}

func FuzzParseProc(f *testing.F) {
	for _, c := range procCases {
		f.Add(c.text, c.id, "")
	}
	for _, c := range namespaceCases {
		f.Add("0::"+c.shown, c.id, ours)
	}
	f.Fuzz(func(t *testing.T, text, id, namespace string) {
		p, err := cgroup.ParseProc(text, id, cgroup.Path(namespace))
		if err != nil {
			return
		}
		if _, err := cgroup.ParsePath(string(p)); err != nil {
			t.Error(err)
		}
		if last := filepath.Base(string(p)); !strings.Contains(last, id) {
			t.Errorf("ParseProc(%q, %q) = %q, which does not end in the ID", text, id, p)
		}
		if namespace == "" && !strings.Contains(text, ":"+string(p)) {
			t.Errorf("ParseProc(%q, %q) = %q, which no line begins with", text, id, p)
		}
	})
}

func TestContainer(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V2)
	if err := k.SetProc("12/cgroup", "0::/kubepods/pod7f/"+id+"/x\n"); err != nil {
		t.Fatal(err)
	}
	got, err := f.Container(12, id)
	if want := cgroup.Path("/kubepods/pod7f/" + id); got != want || err != nil {
		t.Errorf("Container = %q, %v, want %q", got, err, want)
	}
	if _, err := f.Container(13, id); !errors.Is(err, cgroup.ErrGone) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Container of no process: %v, want ErrGone", err)
	}
	for _, pid := range []int{0, -1} {
		if _, err := f.Container(pid, id); err == nil || errors.Is(err, cgroup.ErrGone) {
			t.Errorf("Container of process %d: %v", pid, err)
		}
	}
}

// A door in a container that is not privileged has a cgroup namespace of its own and the host's hierarchy mounted.
func TestContainerInNamespace(t *testing.T) {
	t.Parallel()
	const own = cgroup.Path("/kubepods/burstable/pod1a/abcdef")
	start := func(t *testing.T) *cgrouptest.Kernel {
		k, _, _ := setUp(t, cgrouptest.V2)
		for _, p := range []cgroup.Path{own, own + "/below", "/kubepods/burstable/pod1a/sandbox", "/system.slice/a/b/c/d"} {
			if err := k.Make(p); err != nil {
				t.Fatal(err)
			}
		}
		join(t, k, own, fmt.Sprintf("7\n%d\n", os.Getpid()))
		join(t, k, "/kubepods/burstable/pod1a/sandbox", "71\n")
		must(t, k.SetProc("self/cgroup", "0::/\n"))
		must(t, k.SetProc("12/cgroup", "0::/../../../besteffort/pod7f/"+id+"/x/"+id+"\n"))
		mountFrom(t, k, "/../../../..")
		return k
	}
	k := start(t)
	f := reopen(t, k, t.TempDir())
	if f.Version() != 2 {
		t.Errorf("version %d", f.Version())
	}
	got, err := f.Container(12, id)
	if got != ctr || err != nil {
		t.Errorf("Container = %q, %v, want %q", got, err, ctr)
	}
	mustWrite(t, f, got, policy.CPUIdle, "1")
	if v, err := k.Get(ctr, "cpu.idle"); v != "1" || err != nil {
		t.Errorf("cpu.idle of the container is %q, %v", v, err)
	}

	for name, c := range map[string]struct {
		change func(t *testing.T, k *cgrouptest.Kernel)
		says   string
	}{
		"a part of the hierarchy": {func(t *testing.T, k *cgrouptest.Kernel) {
			must(t, os.WriteFile(k.Root()+"/sys/fs/cgroup/cgroup.type", []byte("domain\n"), 0o644))
		}, "from a cgroup above ours that is not its root"},
		"a part beside ours":       {func(t *testing.T, k *cgrouptest.Kernel) { mountFrom(t, k, "/../../pod2b") }, "not from its root"},
		"dots that are not whole":  {func(t *testing.T, k *cgrouptest.Kernel) { mountFrom(t, k, "/..a") }, "not from its root"},
		"a slash too many":         {func(t *testing.T, k *cgrouptest.Kernel) { mountFrom(t, k, "/../") }, "not from its root"},
		"more levels than we have": {func(t *testing.T, k *cgrouptest.Kernel) { mountFrom(t, k, "/../../../../..") }, "no cgroup 5 levels below /sys/fs/cgroup holds this process"},
		"fewer levels":             {func(t *testing.T, k *cgrouptest.Kernel) { mountFrom(t, k, "/../../..") }, "no cgroup 3 levels below /sys/fs/cgroup holds this process"},
		"another PID namespace":    {func(t *testing.T, k *cgrouptest.Kernel) { join(t, k, own, "7\n") }, "run it in the host's PID namespace"},
		"below our namespace's root": {func(t *testing.T, k *cgrouptest.Kernel) {
			must(t, k.SetProc("self/cgroup", "0::/below\n"))
		}, "this process is not in the root of its cgroup namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := start(t)
			c.change(t, k)
			_, err := cgroup.Open(k.Config(t.TempDir()))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Open: %v, want %q", err, c.says)
			}
		})
	}
}

// join writes which processes a cgroup has, which the fake leaves out.
func join(t *testing.T, k *cgrouptest.Kernel, p cgroup.Path, pids string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(k.Root(), "sys/fs/cgroup", string(p), "cgroup.procs"), []byte(pids), 0o644))
}

// mountFrom has mountinfo show another root of the hierarchy.
func mountFrom(t *testing.T, k *cgrouptest.Kernel, root string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(k.Root(), "proc/self/mountinfo"))
	must(t, err)
	f := strings.Fields(string(text))
	f[3] = root
	must(t, k.SetProc("self/mountinfo", strings.Join(f, " ")+"\n"))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAbove(t *testing.T) {
	t.Parallel()
	for root, want := range map[string]int{
		"/": 0, "/..": 1, "/../../..": 3,
		"": -1, "//": -1, "/a": -1, "/../a": -1, "/a/..": -1, "/...": -1, "/../": -1, "/..//..": -1, "..": -1, "/.": -1,
	} {
		n, ok := cgroup.Mount{Root: root}.Above()
		if !ok {
			n = -1
		}
		if n != want {
			t.Errorf("Above of %q = %d, want %d", root, n, want)
		}
	}
}

const mountinfo = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 master:3 - cgroup cgroup rw,cpu,cpuacct
40 30 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
41 30 0:38 /a\040b /mnt/x\134\011y rw - cgroup cgroup rw,memory
42 30 0:39 / /sys/fs/resctrl rw,relatime - resctrl resctrl rw
43 30 0:x / /bad rw,relatime - cgroup2 cgroup2 rw
44 30 0:40 / relative rw,relatime - cgroup2 cgroup2 rw
45 30 0:41
`

func TestParseMountinfo(t *testing.T) {
	t.Parallel()
	want := []cgroup.Mount{
		{Root: "/", Point: "/sys/fs/cgroup/cpu,cpuacct", Minor: 28, Type: "cgroup", Options: []string{"rw", "cpu", "cpuacct"}},
		{Root: "/", Point: "/sys/fs/cgroup/unified", Minor: 37, Type: "cgroup2", Options: []string{"rw", "nsdelegate"}},
		{Root: "/a b", Point: "/mnt/x\\\ty", Minor: 38, Type: "cgroup", Options: []string{"rw", "memory"}},
		{Root: "/", Point: "/sys/fs/resctrl", Minor: 39, Type: "resctrl", Options: []string{"rw"}},
	}
	if diff := cmp.Diff(want, cgroup.ParseMountinfo(mountinfo)); diff != "" {
		t.Errorf("ParseMountinfo, -want +got:\n%s", diff)
	}
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add(mountinfo)
	f.Add("1 1 0:1 / \\057 - - - cgroup \\ \\777")
	f.Fuzz(func(t *testing.T, text string) {
		for _, m := range cgroup.ParseMountinfo(text) {
			if !strings.HasPrefix(m.Point, "/") || !strings.HasPrefix(m.Root, "/") || len(m.Options) == 0 {
				t.Errorf("ParseMountinfo(%q) has %+v", text, m)
			}
		}
	})
}
