package wire

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	applycri "github.com/tideline-io/tideline/internal/apply/cri"
)

const (
	annotation = "tideline.io/decision"
	birth      = `{"tier":"BE"}`
)

// change is what the tests do to resources.
func change(res *runtimeapi.LinuxContainerResources) {
	res.CpuShares, res.CpuQuota, res.MemoryLimitInBytes = 0, 200000, 1<<31
	if res.Unified == nil {
		res.Unified = map[string]string{}
	}
	res.Unified["cpu.idle"] = "1"
}

// restore leaves the containers alone whose ID is odd in length.
func restore(id string, res *runtimeapi.LinuxContainerResources) bool {
	if len(id)%2 == 1 {
		return false
	}
	change(res)
	return true
}

// createWhole is ReadCreate and Write by decoding and encoding. set says whether the resources are changed too.
func createWhole(msg []byte, set bool) (read *runtimeapi.CreateContainerRequest, out []byte, err error) {
	var req runtimeapi.CreateContainerRequest
	if err := proto.Unmarshal(msg, &req); err != nil {
		return nil, nil, err
	}
	read = proto.Clone(&req).(*runtimeapi.CreateContainerRequest)
	if req.Config == nil {
		return read, nil, nil
	}
	if set {
		setResources(&req)
	}
	applycri.Annotate(req.Config, annotation, birth)
	out, err = proto.Marshal(&req)
	return read, out, err
}

func createEdited(msg []byte, set bool) (read *runtimeapi.CreateContainerRequest, out []byte, err error) {
	c, err := ReadCreate(msg)
	if err != nil {
		return nil, nil, err
	}
	read = proto.Clone(c.Request).(*runtimeapi.CreateContainerRequest)
	if c.Request.Config == nil {
		return read, nil, nil
	}
	if set {
		setResources(c.Request)
	}
	out, err = c.Write(annotation, birth)
	return read, out, err
}

func setResources(req *runtimeapi.CreateContainerRequest) {
	if req.Config.Linux == nil {
		req.Config.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	if req.Config.Linux.Resources == nil {
		req.Config.Linux.Resources = &runtimeapi.LinuxContainerResources{}
	}
	change(req.Config.Linux.Resources)
}

// facts keeps of a request what a decision reads.
func facts(req *runtimeapi.CreateContainerRequest) *runtimeapi.CreateContainerRequest {
	out := &runtimeapi.CreateContainerRequest{PodSandboxId: req.GetPodSandboxId()}
	if c := req.GetConfig(); c != nil {
		out.Config = &runtimeapi.ContainerConfig{Metadata: c.Metadata}
		if c.Linux != nil {
			out.Config.Linux = &runtimeapi.LinuxContainerConfig{Resources: c.Linux.Resources}
		}
	}
	if s := req.GetSandboxConfig(); s != nil {
		out.SandboxConfig = &runtimeapi.PodSandboxConfig{Metadata: s.Metadata, Labels: s.Labels, Annotations: s.Annotations}
		if s.Linux != nil {
			out.SandboxConfig.Linux = &runtimeapi.LinuxPodSandboxConfig{CgroupParent: s.Linux.CgroupParent}
		}
	}
	return out
}

func checkCreate(t *testing.T, msg []byte) {
	t.Helper()
	before := string(msg)
	for _, set := range []bool{true, false} {
		wantRead, want, wantErr := createWhole(msg, set)
		read, got, err := createEdited(msg, set)
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("error %v, of decoding and encoding %v, of %x", err, wantErr, msg)
		}
		if err != nil {
			return
		}
		if g, w := facts(read), facts(wantRead); !proto.Equal(g, w) {
			t.Fatalf("read of %x:\n%v\nwant\n%v", msg, g, w)
		}
		checkEqual(t, msg, got, want, &runtimeapi.CreateContainerRequest{}, &runtimeapi.CreateContainerRequest{})
	}
	if string(msg) != before {
		t.Fatalf("the message was changed in place: %x, was %x", msg, before)
	}
}

func checkEqual(t *testing.T, msg, got, want []byte, g, w proto.Message) {
	t.Helper()
	if err := proto.Unmarshal(want, w); err != nil {
		t.Fatalf("decode what was encoded: %v", err)
	}
	if err := proto.Unmarshal(got, g); err != nil {
		t.Fatalf("decode %x, made of %x: %v", got, msg, err)
	}
	if !proto.Equal(g, w) {
		t.Fatalf("made of %x:\n%v\nwant\n%v", msg, g, w)
	}
}

// holder is a message with statuses.
type holder struct {
	name     string
	edit     func([]byte, Restore) ([]byte, error)
	empty    func() proto.Message
	statuses func(proto.Message) []*runtimeapi.ContainerStatus
	hold     func(...*runtimeapi.ContainerStatus) proto.Message
}

var holders = []holder{
	{"ContainerStatus", ContainerStatus, func() proto.Message { return &runtimeapi.ContainerStatusResponse{} },
		func(m proto.Message) []*runtimeapi.ContainerStatus {
			return []*runtimeapi.ContainerStatus{m.(*runtimeapi.ContainerStatusResponse).GetStatus()}
		},
		func(s ...*runtimeapi.ContainerStatus) proto.Message {
			return &runtimeapi.ContainerStatusResponse{Status: s[0], Info: map[string]string{"info": `{"pid":1}`}}
		}},
	{"ContainerEvent", ContainerEvent, func() proto.Message { return &runtimeapi.ContainerEventResponse{} },
		func(m proto.Message) []*runtimeapi.ContainerStatus {
			return m.(*runtimeapi.ContainerEventResponse).GetContainersStatuses()
		},
		func(s ...*runtimeapi.ContainerStatus) proto.Message {
			return &runtimeapi.ContainerEventResponse{ContainerId: "c", CreatedAt: 1, ContainersStatuses: s, PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: "s"}}
		}},
	{"PodSandboxStatus", PodSandboxStatus, func() proto.Message { return &runtimeapi.PodSandboxStatusResponse{} },
		func(m proto.Message) []*runtimeapi.ContainerStatus {
			return m.(*runtimeapi.PodSandboxStatusResponse).GetContainersStatuses()
		},
		func(s ...*runtimeapi.ContainerStatus) proto.Message {
			return &runtimeapi.PodSandboxStatusResponse{Timestamp: 1, ContainersStatuses: s, Status: &runtimeapi.PodSandboxStatus{Id: "s"}}
		}},
}

func (h holder) check(t *testing.T, msg []byte) {
	t.Helper()
	before := string(msg)
	got, err := h.edit(msg, restore)
	w := h.empty()
	wantErr := proto.Unmarshal(msg, w)
	if (err != nil) != (wantErr != nil) {
		t.Fatalf("%s: error %v, of decoding %v, of %x", h.name, err, wantErr, msg)
	}
	if string(msg) != before {
		t.Fatalf("the message was changed in place: %x, was %x", msg, before)
	}
	if err != nil {
		return
	}
	changed := false
	for _, st := range h.statuses(w) {
		if res := st.GetResources().GetLinux(); res != nil {
			changed = restore(st.GetId(), res) || changed
		}
	}
	if !changed {
		if string(got) != before {
			t.Fatalf("%s: nothing to change, and yet %x became %x", h.name, msg, got)
		}
		return
	}
	want, err := proto.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	checkEqual(t, msg, got, want, h.empty(), h.empty())
}

// createRequestOf makes a request as the kubelet's.
func createRequestOf(envs, mounts int) *runtimeapi.CreateContainerRequest {
	labels := map[string]string{"app": "sort", "tideline.io/qos": "BE", "io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "batch", "io.kubernetes.pod.uid": "u"}
	req := &runtimeapi.CreateContainerRequest{
		PodSandboxId: strings.Repeat("5", 64),
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "app", Attempt: 2}, Image: &runtimeapi.ImageSpec{Image: "sha256:" + strings.Repeat("a", 64)},
			Command: []string{"/bin/sort"}, Args: []string{"-r"}, Labels: labels, Annotations: map[string]string{"io.kubernetes.container.hash": "1a2b"}, LogPath: "app/2.log",
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources:       &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 1000, HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB"}}},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: 1}, MaskedPaths: []string{"/proc/acpi"}, RunAsUser: &runtimeapi.Int64Value{Value: 7}, SupplementalGroups: []int64{1, 2, 300}},
			},
		},
		SandboxConfig: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Uid: "u", Namespace: "batch"}, Hostname: "p", LogDirectory: "/var/log/pods/p",
			DnsConfig: &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"batch.svc.cluster.local"}}, Labels: labels,
			Annotations: map[string]string{"tideline.io/batch-resources": `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"2k"}}}}`},
			Linux:       &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/besteffort/podu", SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{}, Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2}},
		},
	}
	for i := range envs {
		req.Config.Envs = append(req.Config.Envs, &runtimeapi.KeyValue{Key: fmt.Sprintf("SERVICE_%d_HOST", i), Value: []byte("10.0.0.1")})
	}
	for i := range mounts {
		req.Config.Mounts = append(req.Config.Mounts, &runtimeapi.Mount{ContainerPath: fmt.Sprintf("/data/%d", i), HostPath: fmt.Sprintf("/var/lib/kubelet/pods/u/volumes/%d", i), Readonly: i%2 == 0})
	}
	return req
}

// statusOf makes a status as containerd's.
func statusOf(id string, res *runtimeapi.LinuxContainerResources) *runtimeapi.ContainerStatus {
	st := &runtimeapi.ContainerStatus{Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: "app"}, State: 1, CreatedAt: 1 << 60, Image: &runtimeapi.ImageSpec{Image: "app"},
		Labels: map[string]string{"app": "sort"}, Annotations: map[string]string{annotation: birth}, User: &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{SupplementalGroups: []int64{1, 300}}}}
	for i := range 15 {
		st.Mounts = append(st.Mounts, &runtimeapi.Mount{ContainerPath: fmt.Sprintf("/data/%d", i), HostPath: fmt.Sprintf("/var/lib/kubelet/pods/u/volumes/%d", i)})
	}
	if res != nil {
		st.Resources = &runtimeapi.ContainerResources{Linux: res}
	}
	return st
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// length is a submessage field.
func length(num protowire.Number, parts ...[]byte) []byte {
	var body []byte
	for _, p := range parts {
		body = append(body, p...)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), body)
}

func number(num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
}

// shuffle takes a message apart and puts it together in another way that decodes alike or is at least of the same
// grammar: fields in another order, repeated, cut out, unknown ones between them, lengths that are longer than they need be.
func shuffle(r *rand.Rand, msg []byte, depth int) []byte {
	var all [][]byte
	for f := range fields(msg, 0, len(msg)) {
		b := msg[f.start:f.end]
		if f.typ == protowire.BytesType && depth > 0 && r.IntN(2) == 0 {
			inner := msg[f.value:f.end]
			if r.IntN(2) == 0 {
				inner = shuffle(r, inner, depth-1)
			}
			b = protowire.AppendTag(nil, f.num, f.typ)
			if size := uint64(len(inner)); r.IntN(4) == 0 && size < 128 {
				b = append(b, byte(size)|0x80, 0x80, 0)
			} else {
				b = protowire.AppendVarint(b, size)
			}
			b = append(b, inner...)
		}
		all = append(all, b)
		switch r.IntN(24) {
		case 0:
			all = append(all, b)
		case 1:
			all = all[:len(all)-1]
		case 2:
			all = append(all, number(protowire.Number(1+r.IntN(40)), r.Uint64()))
		case 3:
			all = append(all, length(protowire.Number(1+r.IntN(40)), []byte{8, 1}))
		case 4:
			all = append(all, append(append(protowire.AppendTag(nil, 99, protowire.StartGroupType), number(1, 2)...), protowire.AppendTag(nil, 99, protowire.EndGroupType)...))
		}
	}
	if r.IntN(3) == 0 {
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	var out []byte
	for _, b := range all {
		out = append(out, b...)
	}
	if len(out) > 0 && r.IntN(40) == 0 {
		out[r.IntN(len(out))] = byte(r.IntN(256))
	}
	return out
}

// createCases are requests worth a name.
func createCases(t testing.TB) map[string][]byte {
	usual := encode(t, createRequestOf(3, 2))
	with := func(f func(*runtimeapi.CreateContainerRequest)) []byte {
		req := createRequestOf(1, 1)
		f(req)
		return encode(t, req)
	}
	config := length(numConfig, length(1, []byte("\x0a\x03app")))
	return map[string][]byte{
		"usual":             usual,
		"empty":             {},
		"no config":         with(func(r *runtimeapi.CreateContainerRequest) { r.Config = nil }),
		"no sandbox config": with(func(r *runtimeapi.CreateContainerRequest) { r.SandboxConfig = nil }),
		"no linux":          with(func(r *runtimeapi.CreateContainerRequest) { r.Config.Linux = nil }),
		"no resources":      with(func(r *runtimeapi.CreateContainerRequest) { r.Config.Linux.Resources = nil }),
		"empty resources": with(func(r *runtimeapi.CreateContainerRequest) {
			r.Config.Linux.Resources = &runtimeapi.LinuxContainerResources{}
		}),
		"empty config":              length(numConfig),
		"annotation there already":  with(func(r *runtimeapi.CreateContainerRequest) { r.Config.Annotations[annotation] = "old" }),
		"config twice":              append(append([]byte{}, usual...), config...),
		"linux twice":               length(numConfig, length(15, length(1, number(3, 2))), length(15, length(1, number(2, 7)))),
		"resources twice":           length(numConfig, length(15, length(1, number(3, 2)), length(1, number(2, 7)))),
		"sandbox config twice":      append(append([]byte{}, usual...), length(3, length(8, length(1, []byte("/other"))))...),
		"sandbox ID twice":          append(append([]byte{}, usual...), length(1, []byte("other"))...),
		"config is a number":        append(append([]byte{}, usual...), number(numConfig, 5)...),
		"resources are a number":    length(numConfig, length(15, number(1, 5))),
		"unknown fields everywhere": append(append(length(numConfig, number(50, 1), length(15, number(51, 2), length(1, number(52, 3)), number(51, 4)), number(53, 5)), number(54, 6)...), usual...),
		"unknown in resources":      length(numConfig, length(15, length(1, number(52, 3), number(3, 9)))),
		"env is not UTF-8":          length(numConfig, length(6, length(1, []byte{0xff}))),
		"env value is not UTF-8":    length(numConfig, length(6, length(2, []byte{0xff}))),
		"label is not UTF-8":        length(numConfig, length(9, length(1, []byte{0xff}))),
		"sandbox label without key": length(3, length(6, length(2, []byte("v")))),
		"packed groups cut":         length(numConfig, length(15, length(2, length(8, []byte{0x80})))),
		"groups unpacked":           length(numConfig, length(15, length(2, number(8, 300), number(8, 1)))),
		"cut":                       usual[:len(usual)-1],
		"field number too large":    append(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), 0),
		"field number zero":         {0, 0},
		"end of a group":            protowire.AppendTag(nil, 3, protowire.EndGroupType),
		"tag longer than needed":    {0x92, 0x80, 0, 2, 0x52, 0},
		"huge number of shares":     length(numConfig, length(15, length(1, number(3, 1<<63)))),
	}
}

func statusCases(t testing.TB, h holder) map[string][]byte {
	res := func() *runtimeapi.LinuxContainerResources {
		return &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000, Unified: map[string]string{"memory.high": "5"}}
	}
	num := protowire.Number(numStatus)
	switch h.name {
	case "ContainerEvent":
		num = numEventStatuses
	case "PodSandboxStatus":
		num = numPodStatuses
	}
	usual := encode(t, h.hold(statusOf("ab", res())))
	id, linux := length(1, []byte("ab")), length(1, number(3, 2))
	return map[string][]byte{
		"usual":             usual,
		"empty":             {},
		"not ours":          encode(t, h.hold(statusOf("abc", res()))),
		"no resources":      encode(t, h.hold(statusOf("ab", nil))),
		"empty linux":       encode(t, h.hold(statusOf("ab", &runtimeapi.LinuxContainerResources{}))),
		"several":           encode(t, h.hold(statusOf("ab", res()), statusOf("abc", res()), statusOf("abcd", res()), statusOf("", nil))),
		"status twice":      append(append([]byte{}, usual...), length(num, length(16, linux))...),
		"resources twice":   length(num, id, length(16, linux), length(16, length(1, number(2, 5)))),
		"linux twice":       length(num, id, length(16, linux, length(1, number(2, 5)))),
		"ID twice":          length(num, id, length(16, linux), length(1, []byte("abc"))),
		"ID after":          length(num, length(16, linux), id),
		"ID is a number":    length(num, id, length(16, linux), number(1, 5)),
		"windows only":      length(num, id, length(16, length(2, number(3, 2)))),
		"unknown":           length(num, number(90, 1), id, length(16, number(91, 2), length(1, number(92, 3)), number(91, 4)), number(90, 5)),
		"image not UTF-8":   length(num, id, length(9, []byte{0xff}), length(16, linux)),
		"status is a group": append(protowire.AppendTag(nil, num, protowire.StartGroupType), protowire.AppendTag(nil, num, protowire.EndGroupType)...),
		"cut":               usual[:len(usual)-1],
	}
}
