package plugin

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
)

// A sandbox that has ended stays so over a new registration, which does not tell it, until the runtime has it no more.
func TestEndedSandboxes(t *testing.T) {
	t.Parallel()
	pod := func(id string) *api.PodSandbox {
		return &api.PodSandbox{Id: id, Uid: "u" + id, Linux: &api.LinuxPodSandbox{CgroupParent: "/kubepods/podu" + id}}
	}
	s := newStore()
	s.reset([]*api.PodSandbox{pod("a"), pod("b"), pod("c")}, []*api.Container{{Id: "k", PodSandboxId: "a", Name: "app"}})
	want := func(when string, ids ...string) {
		t.Helper()
		stopped := map[string]bool{}
		for _, id := range ids {
			stopped[id] = true
		}
		if d := cmp.Diff(stopped, s.list().Stopped); d != "" {
			t.Errorf("%s (-want +got):\n%s", when, d)
		}
	}
	want("at first")
	for _, id := range []string{"a", "b", "c", "unknown", ""} {
		s.podStopped(id)
	}
	want("stopped", "a", "b", "c")
	s.podGone("c")
	want("one is removed", "a", "b")
	s.reset([]*api.PodSandbox{pod("a")}, []*api.Container{{Id: "k", PodSandboxId: "a", Name: "app"}})
	want("one was removed meanwhile", "a")
	if spec, err := s.spec("k"); err != nil || spec.CgroupParent != "/kubepods/podua" {
		t.Errorf("the parent of its cgroup is %q, %v", spec.CgroupParent, err)
	}
}
