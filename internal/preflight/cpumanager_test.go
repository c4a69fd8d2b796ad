package preflight_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tideline-io/tideline/internal/preflight"
)

// states are in the formats v2 to v4 of the kubelet's pkg/kubelet/cm/cpumanager/state (1.37.2), with invented checksums, and
// what nobody should write.
func states() []struct {
	name, text, policy, cpus, err string
	pods                          int
} {
	return []struct {
		name, text, policy, cpus, err string
		pods                          int
	}{
		{"none", `{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`, "none", "", "", 0},
		{"static, nothing given", `{"policyName":"static","defaultCpuSet":"0-7","checksum":2420264438}`, "static", "", "", 0},
		{"static", `{"policyName":"static","defaultCpuSet":"0-1,6-7","entries":{"6b1f":{"app":"2-3","log":"4"},"77aa":{"app":"5"}},"checksum":3155871042}`, "static", "2-5", "", 2},
		{"v3, a whole pod", `{"policyName":"static","defaultCpuSet":"0-1","entries":{"a":{"x":""}},"podEntries":{"a":{"cpuSet":"2-3"},"b":{}},"checksum":1}`, "static", "2-3", "", 1},
		{"v4", `{"policyName":"static","defaultCpuSet":"0-1","entries":{"a":{"x":"7"}},"checksum":1,"data":"{\"policyName\":\"static\",\"defaultCpuSet\":\"0-1\",\"entries\":{\"a\":{\"x\":\"4\"}},\"podEntries\":{\"b\":{\"cpuSet\":\"2-3\"}},\"baselines\":{\"a\":{\"x\":{\"baseline\":\"4\"}}}}","dataChecksum":2}`, "static", "2-4", "", 2},
		{"v4, bad data", `{"policyName":"static","data":"{"}`, "", "", "parse CPU manager state: data: unexpected end of JSON input", 0},
		{"v1", `{"policyName":"static","entries":{"containerid":"2-3"}}`, "", "", "parse CPU manager state: json: cannot unmarshal string into Go struct field .body.entries of type map[string]string", 0},
		{"empty", "", "", "", "parse CPU manager state: unexpected end of JSON input", 0},
		{"no policy", "{}", "", "", "parse CPU manager state: no policyName", 0},
		{"no list", `{"policyName":"static","entries":{"p\u001b[31m":{"x":"0-4294967295"}}}`, "", "", `parse CPU manager state: pod "p\x1b[31m": parse "0-4294967295": want a CPU list such as 0-3,8 with numbers up to 8191`, 0},
	}
}

func TestParseCPUState(t *testing.T) {
	t.Parallel()
	for _, tc := range states() {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, err := preflight.ParseCPUState([]byte(tc.text))
			text := ""
			if err != nil {
				text = err.Error()
			}
			if s.Policy != tc.policy || s.Exclusive.String() != tc.cpus || s.Pods != tc.pods || text != tc.err {
				t.Errorf("policy %q, CPUs %q of %d pods, error %q; want %q, %q, %d, %q", s.Policy, s.Exclusive, s.Pods, text, tc.policy, tc.cpus, tc.pods, tc.err)
			}
		})
	}
}

func FuzzParseCPUState(f *testing.F) {
	for _, tc := range states() {
		f.Add([]byte(tc.text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := preflight.ParseCPUState(data)
		if err != nil {
			if s.Policy != "" || s.Pods != 0 || !s.Exclusive.IsEmpty() {
				t.Errorf("error %v and a state %+v", err, s)
			}
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return !strconv.IsPrint(r) }) {
				t.Errorf("error %q can't be printed", err)
			}
			return
		}
		if s.Policy == "" || (s.Pods == 0) != s.Exclusive.IsEmpty() {
			t.Errorf("state %+v", s)
		}
	})
}

func TestReadCPUManager(t *testing.T) {
	t.Parallel()
	const at = "/var/lib/kubelet/cpu_manager_state"
	read := func(make func(name string) error) preflight.CPUManager {
		root := node(t, map[string]string{"var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\n"}, nil)
		if err := make(filepath.Join(root, at)); err != nil {
			t.Fatal(err)
		}
		return preflight.ReadKubelet(root, "").Manager
	}
	for _, tc := range []struct {
		name string
		make func(string) error
		want preflight.CPUManager
	}{
		{"missing", func(string) error { return nil }, preflight.CPUManager{Path: at}},
		{"a folder", func(name string) error { return os.Mkdir(name, 0o755) }, preflight.CPUManager{Path: at, Exists: true, Error: at + ": no regular file"}},
		{"a device without end", func(name string) error { return os.Symlink("/dev/zero", name) }, preflight.CPUManager{Path: at, Exists: true, Error: at + ": no regular file"}},
		{"long", func(name string) error { return os.WriteFile(name, make([]byte, 1<<20+1), 0o600) }, preflight.CPUManager{Path: at, Exists: true, Error: at + ": longer than 1048576 bytes"}},
		{"no JSON", func(name string) error { return os.WriteFile(name, []byte("x"), 0o600) },
			preflight.CPUManager{Path: at, Exists: true, Error: at + ": parse CPU manager state: invalid character 'x' looking for beginning of value"}},
	} {
		got := read(tc.make)
		if got.Path != tc.want.Path || got.Exists != tc.want.Exists || got.Error != tc.want.Error || got.State.Policy != "" {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// Cgroups of what runs outside kubepods, as kernels and systemd give them.
func TestHostGroups(t *testing.T) {
	t.Parallel()
	files := map[string]string{"var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\n"}
	for pid, cgroup := range map[string]string{
		"10": "0::/system.slice/sshd.service\n",
		"11": "9:name=systemd:/user.slice/user-0.slice\n3:cpu,cpuacct:/\n0::/\n",
		"12": "3:cpu,cpuacct:/batch/x\n0::/\n",
		"13": "4:memory:/only/here\n3:cpu,cpuacct:/\n0::/\n",
		"14": "nonsense\n",
		"15": "3:cpu,cpuacct:/\n5:cpuset:/kubepods/besteffort/podx\n",
	} {
		files["proc/"+pid+"/cgroup"] = cgroup
		files["proc/"+pid+"/cmdline"] = "/bin/x\x00"
		files["proc/"+pid+"/comm"] = "ev\x1b[2Jil\n"
		files["proc/"+pid+"/status"] = "Cpus_allowed_list:\t0-1\n"
	}
	files["proc/16/cmdline"] = "/bin/ended\x00" // meanwhile
	files["proc/17/cmdline"] = ""
	files["proc/17/cgroup"] = "0::/\n"
	host := preflight.Gather(preflight.Config{Root: node(t, files, nil)}).Host
	var got []string
	for _, g := range host.Groups {
		got = append(got, g.Cgroup+" "+g.CPUs+" "+strconv.Itoa(g.Count))
	}
	if want := "/ 0-1 2, /batch 0-1 1, /system.slice 0-1 1, /user.slice 0-1 1"; strings.Join(got, ", ") != want {
		t.Errorf("groups %q, want %q", got, want)
	}
	if want := `"ev\x1b[2Jil" (5)`; host.Count != 5 || len(host.Names) != 1 || host.Names[0] != want {
		t.Errorf("%d processes %q, want 5 of %s", host.Count, host.Names, want)
	}
}
