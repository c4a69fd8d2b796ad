package backend

import "testing"

func TestCgroupParent(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/kubepods/burstable/pod1/abc":           "/kubepods/burstable/pod1",
		"kubepods-pod1.slice:cri-containerd:abc": "kubepods-pod1.slice",
		"/abc":                                   "",
		"":                                       "",
		"/kubepods/burstable/pod1/nested/below/another": "/kubepods/burstable/pod1/nested/below", // no pod's, so nothing is done with it
	} {
		if got := cgroupParent(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
