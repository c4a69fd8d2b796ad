package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/policy"
)

// BenchmarkPoolChange is the time from a RunPodSandbox of a pod that owns a CPU until 250 running containers have left it,
// in cgroups of this machine's kernel that are made for it and removed; beside it what 250 containers' cpuset.cpus take to
// be written by nobody's journal and with no read.
func BenchmarkPoolChange(b *testing.B) {
	const containers, mount = 250, "/sys/fs/cgroup/cpuset"
	top := fmt.Sprintf("/tideline-bench-%d", os.Getpid())
	all, err := os.ReadFile(mount + "/cpuset.cpus")
	if err != nil || os.Geteuid() != 0 {
		b.Skipf("root: it makes cgroups, and cgroup v1: %v", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(all)))
	if err != nil || online.Size() < 2 {
		b.Skipf("CPUs: %s, %v", online, err)
	}
	var made []string
	b.Cleanup(func() {
		for i := len(made) - 1; i >= 0; i-- {
			if err := os.Remove(made[i]); err != nil {
				b.Error(err)
			}
		}
	})
	mems, err := os.ReadFile(mount + "/cpuset.mems")
	if err != nil {
		b.Fatal(err)
	}
	known := map[string]bool{}
	mkdir := func(p string) {
		dir := mount
		for part := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
			if dir = filepath.Join(dir, part); known[dir] {
				continue
			}
			if err := os.Mkdir(dir, 0o755); err != nil {
				b.Fatal(err)
			}
			known[dir], made = true, append(made, dir)
			for file, text := range map[string][]byte{"cpuset.cpus": all, "cpuset.mems": mems} {
				if err := os.WriteFile(filepath.Join(dir, file), text, 0); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	fs, err := cgroup.Open(cgroup.Config{Root: "/", StateDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	m := newMachine(b, "v1", func(c *engine.Config) {
		c.Cgroups, c.Topology, c.Node.Online, c.Node.CgroupVersion = fs, flat(online.Size()), online, 1
		c.Policy = compile(b, func(s *v1alpha1.QoSPolicySpec) { // nothing but cpusets
			for t, p := range s.Tiers {
				p.IO, p.CPU.Burst = v1alpha1.IOPolicy{}, v1alpha1.BurstOff
				s.Tiers[t] = p
			}
		})
	})
	pod := func(uid string, tier v1alpha1.Tier) policy.Pod {
		p := policy.Pod{UID: uid, Namespace: "shop", Name: uid, CgroupParent: top + "/kubepods/burstable/pod" + uid, KubeQoS: v1alpha1.Burstable, Resources: cpus(1)}
		p.Labels = map[string]string{v1alpha1.LabelQoS: string(tier)}
		m.run(p)
		return p
	}
	var files []string
	for i := range containers {
		p := pod(fmt.Sprintf("u%d", i), v1alpha1.LS)
		c := engine.Creation{SandboxID: "s" + p.UID, Pod: p, Name: fmt.Sprintf("c%03dx", i), Asked: asks(100, 0, 0)}
		plan, err := m.e.Create(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		mkdir(p.CgroupParent + "/" + id(c.Name))
		m.e.Created(c, plan, id(c.Name))
		m.e.Started(id(c.Name))
		files = append(files, filepath.Join(mount, p.CgroupParent, id(c.Name), "cpuset.cpus"))
	}
	await := func(want string) {
		for _, f := range files { // in the order in which they are written
			for {
				text, err := os.ReadFile(f)
				if err != nil {
					b.Fatal(err)
				}
				if strings.TrimSpace(string(text)) == want {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	rest := online.Difference(cpuset.New(online.List()[0])).String()
	var took, plain time.Duration
	n := 0
	for b.Loop() {
		start := time.Now()
		p := pod(fmt.Sprintf("x%d", n), v1alpha1.LSR)
		await(rest)
		took += time.Since(start)
		m.e.PodStopped("s" + p.UID)
		await(online.String())
		start = time.Now()
		for _, set := range []string{rest, online.String()} {
			for _, f := range files {
				if err := os.WriteFile(f, []byte(set), 0); err != nil {
					b.Fatal(err)
				}
			}
		}
		plain += time.Since(start) / 2
		n++
	}
	b.ReportMetric(float64(took.Milliseconds())/float64(n), "ms/change")
	b.ReportMetric(float64(took)/float64(plain), "x-bare-writes")
	m.stop()
}
