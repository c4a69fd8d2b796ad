package wire

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestCreate(t *testing.T) {
	t.Parallel()
	for name, msg := range createCases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkCreate(t, msg)
		})
	}
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	for _, h := range holders {
		for name, msg := range statusCases(t, h) {
			t.Run(h.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				h.check(t, msg)
			})
		}
	}
}

// Messages that are put together in other ways than Go does.
func TestShuffled(t *testing.T) {
	t.Parallel()
	rounds := 6000
	if testing.Short() {
		rounds = 1000
	}
	r := rand.New(rand.NewPCG(1, 2))
	request := encode(t, createRequestOf(2, 2))
	edited := 0
	for range rounds {
		msg := shuffle(r, request, 3)
		checkCreate(t, msg)
		if c, err := ReadCreate(msg); err == nil && !c.whole {
			edited++
		}
	}
	if edited < rounds/4 {
		t.Errorf("%d of %d requests were edited in place: the rest proves nothing", edited, rounds)
	}
	for _, h := range holders {
		msg := encode(t, h.hold(statusOf("ab", &runtimeapi.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 5}), statusOf("abc", nil)))
		for range rounds / 4 {
			h.check(t, shuffle(r, msg, 3))
		}
	}
}

// What is not on the way to the change is not touched, not even where another encoder would write it otherwise.
func TestOtherBytesStay(t *testing.T) {
	t.Parallel()
	odd := []byte{0x8a, 0x80, 0x00, 0x83, 0x00, 'a', 'p', 'p'} // field 1 of metadata, tag and length longer than needed
	before := [][]byte{length(1, []byte("sandbox")), number(77, 1)}
	cfgBefore := [][]byte{length(6, length(1, []byte("B")), length(2, []byte{0xff})), length(1, odd), length(6, length(1, []byte("A")))}
	linuxBefore, linuxAfter := number(33, 3), length(2, number(60, 5))
	cfgAfter := [][]byte{length(3, []byte("run")), number(88, 2)}
	after := [][]byte{length(3, length(1, odd)), number(77, 0)}
	build := func(res, annotations []byte) []byte {
		linux := length(numConfigLinux, linuxBefore, res, linuxAfter)
		parts := append(append(append([][]byte{}, cfgBefore...), linux), cfgAfter...)
		return bytes.Join(append(append(append([][]byte{}, before...), length(numConfig, append(parts, annotations)...)), after...), nil)
	}
	msg := build(length(numLinuxResources, number(3, 2)), nil)
	c, err := ReadCreate(msg)
	if err != nil {
		t.Fatal(err)
	}
	c.Request.Config.Linux.Resources.CpuShares = 1 << 20
	got, err := c.Write(annotation, birth)
	if err != nil {
		t.Fatal(err)
	}
	want := build(length(numLinuxResources, number(3, 1<<20)), mapEntry(numConfigAnnotations, annotation, birth))
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	if name := c.Request.Config.Metadata.Name; name != "app" {
		t.Errorf("name %q, want app", name)
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	c, err := ReadCreate(encode(t, createRequestOf(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(annotation, "\xff"); err == nil {
		t.Error("an annotation that is not UTF-8 was written")
	}
	c.Request.Config.Linux.Resources.CpusetCpus = "\xff"
	if _, err := c.Write(annotation, birth); err == nil {
		t.Error("resources that are not UTF-8 were written")
	}
	if c, err = ReadCreate(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(annotation, birth); err == nil {
		t.Error("a request without config was written")
	}
}

// The field numbers are those of api.proto, and all of its strings are UTF-8 by its syntax.
func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		m    proto.Message
		name protoreflect.Name
		num  protowire.Number
	}{
		{&runtimeapi.CreateContainerRequest{}, "pod_sandbox_id", 1},
		{&runtimeapi.CreateContainerRequest{}, "config", numConfig},
		{&runtimeapi.CreateContainerRequest{}, "sandbox_config", 3},
		{&runtimeapi.ContainerConfig{}, "metadata", 1},
		{&runtimeapi.ContainerConfig{}, "annotations", numConfigAnnotations},
		{&runtimeapi.ContainerConfig{}, "linux", numConfigLinux},
		{&runtimeapi.LinuxContainerConfig{}, "resources", numLinuxResources},
		{&runtimeapi.PodSandboxConfig{}, "metadata", 1},
		{&runtimeapi.PodSandboxConfig{}, "labels", 6},
		{&runtimeapi.PodSandboxConfig{}, "annotations", 7},
		{&runtimeapi.PodSandboxConfig{}, "linux", 8},
		{&runtimeapi.LinuxPodSandboxConfig{}, "cgroup_parent", 1},
		{&runtimeapi.ContainerStatusResponse{}, "status", numStatus},
		{&runtimeapi.ContainerEventResponse{}, "containers_statuses", numEventStatuses},
		{&runtimeapi.PodSandboxStatusResponse{}, "containers_statuses", numPodStatuses},
		{&runtimeapi.ContainerStatus{}, "id", numStatusID},
		{&runtimeapi.ContainerStatus{}, "resources", numStatusResources},
		{&runtimeapi.ContainerResources{}, "linux", numContainerResources},
	} {
		f := x.m.ProtoReflect().Descriptor().Fields().ByName(x.name)
		if f == nil || f.Number() != x.num {
			t.Errorf("%T.%s: %v, want number %d", x.m, x.name, f, x.num)
		}
	}
	if s := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Syntax(); s != protoreflect.Proto3 {
		t.Errorf("syntax %v, want proto3: other ones may allow strings that are not UTF-8", s)
	}
}
