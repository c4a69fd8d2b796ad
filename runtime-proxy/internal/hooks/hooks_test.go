package hooks_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	applycri "github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/engine/enginetest"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/runtime-proxy/internal/hooks"
	"github.com/tideline-io/tideline/runtime-proxy/internal/relay"
)

const patience = 30 * time.Second

// raw moves messages as bytes.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = bytes.Clone(b); return nil }
func (raw) Name() string                    { return "proto" }

// call is what the runtime got.
type call struct {
	method string
	msg    []byte
}

// door is a client, the hooks in a relay, and a runtime that answers what the test says.
type door struct {
	t      *testing.T
	e      *engine.Engine
	rt     *enginetest.Runtime
	k      *cgrouptest.Kernel
	state  string
	client *grpc.ClientConn

	mu      sync.Mutex
	calls   []call
	answers map[string]func(msg []byte) ([][]byte, error)
}

type options struct {
	runtime func(*enginetest.Runtime) // what was there before us
	engine  func(*engine.Config)
	timeout time.Duration // of callbacks
}

func newDoor(t *testing.T, opt options) *door {
	t.Helper()
	k, err := cgrouptest.New(t.TempDir(), cgrouptest.V2)
	if err != nil {
		t.Fatal(err)
	}
	fs, err := cgroup.Open(k.Config(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Compile(v1alpha1.Default().Spec)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{t: t, k: k, rt: enginetest.New(), state: t.TempDir(), answers: map[string]func([]byte) ([][]byte, error){}}
	log := slog.New(slog.DiscardHandler)
	cfg := engine.Config{
		Cgroups: fs, Runtime: d.rt, StateDir: d.state, PlacementDir: t.TempDir(), Node: policy.Node{CgroupVersion: 2, Online: cpuset.New(0, 1)},
		Policy: p, Mode: control.ModeEnforce, Carries: func(k policy.Knob) bool { return applycri.Carries(2, k) }, Clock: time.Now, Log: log,
	}
	if opt.engine != nil {
		opt.engine(&cfg)
	}
	if opt.runtime != nil {
		opt.runtime(d.rt)
	}
	d.e = engine.New(cfg)
	d.e.Adopt()

	dir, err := os.MkdirTemp("", "hooks") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	back, front := filepath.Join(dir, "back"), filepath.Join(dir, "front")
	bl, err := net.Listen("unix", back)
	if err != nil {
		t.Fatal(err)
	}
	fl, err := net.Listen("unix", front)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(d.serve))
	ctx, cancel := context.WithCancel(t.Context())
	r := relay.New(relay.Config{
		Dial: func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", back) },
		Hook: hooks.New(d.e, log).For, CallbackTimeout: opt.timeout,
	})
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(bl) })
	wg.Go(func() { _ = r.Serve(ctx, fl) })
	wg.Go(func() { _ = d.e.Run(ctx) })
	if d.client, err = grpc.NewClient("unix://"+front, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.client.Close()
		cancel()
		server.Stop()
		wg.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *door) serve(_ any, s grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(s)
	method = method[strings.LastIndexByte(method, '/')+1:]
	var msg []byte
	if err := s.RecvMsg(&msg); err != nil {
		return err
	}
	d.mu.Lock()
	d.calls = append(d.calls, call{method, msg})
	answer := d.answers[method]
	d.mu.Unlock()
	out := [][]byte{nil}
	if answer != nil {
		var err error
		if out, err = answer(msg); err != nil {
			return err
		}
	}
	for _, m := range out {
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
	return nil
}

func (d *door) answer(method string, f func(msg []byte) ([][]byte, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[method] = f
}

func (d *door) answerWith(method string, m proto.Message) {
	b := encode(d.t, m)
	d.answer(method, func([]byte) ([][]byte, error) { return [][]byte{b}, nil })
}

// last is what the runtime got with the last call of a method.
func (d *door) last(method string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := len(d.calls) - 1; i >= 0; i-- {
		if d.calls[i].method == method {
			return d.calls[i].msg
		}
	}
	return nil
}

func (d *door) call(method string, msg []byte) ([]byte, error) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	var out []byte
	err := d.client.Invoke(ctx, "/runtime.v1.RuntimeService/"+method, &msg, &out)
	return out, err
}

func (d *door) must(method string, m proto.Message) []byte {
	d.t.Helper()
	out, err := d.call(method, encode(d.t, m))
	if err != nil {
		d.t.Fatalf("%s: %v", method, err)
	}
	return out
}

func (d *door) counts() control.Counts {
	d.t.Helper()
	st, err := d.e.Status(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return st.Counts
}

func (d *door) eventually(what string, ok func() bool) {
	d.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func (d *door) container(name string) *control.Container {
	d.t.Helper()
	all, err := d.e.Containers(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var ctrID = strings.Repeat("c", 64)

func sandbox(tier string, annotations ...string) *runtimeapi.PodSandboxConfig {
	c := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u1", Namespace: "shop", Name: "web"},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/besteffort/podu1"},
	}
	if tier != "" {
		c.Labels = map[string]string{v1alpha1.LabelQoS: tier}
	}
	for i := 0; i < len(annotations); i += 2 {
		c.Annotations = map[string]string{annotations[i]: annotations[i+1]}
	}
	return c
}

func create(s *runtimeapi.PodSandboxConfig) *runtimeapi.CreateContainerRequest {
	return &runtimeapi.CreateContainerRequest{
		PodSandboxId: "sb", SandboxConfig: s,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "app"}, Envs: []*runtimeapi.KeyValue{{Key: "A", Value: []byte("b")}},
			Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 800}},
		},
	}
}

// unknown is a field that no version of CRI has yet.
func unknown(b []byte) []byte {
	return protowire.AppendString(protowire.AppendTag(b, 7777, protowire.BytesType), "tomorrow")
}

// within puts an unknown field into the message at a field number.
func within(b []byte, num protowire.Number) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), unknown(nil))
}

// started makes the pod and its container through the door.
func (d *door) started(s *runtimeapi.PodSandboxConfig) {
	d.t.Helper()
	d.answerWith("RunPodSandbox", &runtimeapi.RunPodSandboxResponse{PodSandboxId: "sb"})
	d.answerWith("CreateContainer", &runtimeapi.CreateContainerResponse{ContainerId: ctrID})
	d.must("RunPodSandbox", &runtimeapi.RunPodSandboxRequest{Config: s})
	d.must("CreateContainer", create(s))
	d.must("StartContainer", &runtimeapi.StartContainerRequest{ContainerId: ctrID})
}

func TestUntieredPassesByteForByte(t *testing.T) {
	t.Parallel()
	d := newDoor(t, options{})
	s := sandbox("")
	d.answerWith("RunPodSandbox", &runtimeapi.RunPodSandboxResponse{PodSandboxId: "sb"})
	d.answer("CreateContainer", func([]byte) ([][]byte, error) {
		return [][]byte{unknown(encode(t, &runtimeapi.CreateContainerResponse{ContainerId: ctrID}))}, nil
	})
	odd := create(s)
	odd.Config.Envs[0].Value = []byte("\xff\xfe\x80ab") // allowed
	valueNotUTF8 := encode(t, odd)
	odd.Config.Envs[0].Key = "PLACE"
	keyNotUTF8 := bytes.ReplaceAll(encode(t, odd), []byte("PLACE"), []byte("\xff\xfe\x80ab"))
	status := unknown(encode(t, &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: ctrID}}))
	d.answer("ContainerStatus", func([]byte) ([][]byte, error) { return [][]byte{status}, nil })
	for _, c := range []struct {
		method string
		msg    []byte
	}{
		{"RunPodSandbox", within(unknown(encode(t, &runtimeapi.RunPodSandboxRequest{Config: s})), 1)},
		{"CreateContainer", within(unknown(encode(t, create(s))), 2)},
		{"CreateContainer", valueNotUTF8},
		{"CreateContainer", keyNotUTF8},
		{"CreateContainer", []byte("no message")},
		{"StartContainer", encode(t, &runtimeapi.StartContainerRequest{ContainerId: ctrID})},
		{"UpdateContainerResources", within(encode(t, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: ctrID, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 5}}), 2)},
		{"UpdateContainerResources", encode(t, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: ctrID})},
		{"UpdatePodSandboxResources", unknown(encode(t, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "sb"}))},
		{"ContainerStatus", encode(t, &runtimeapi.ContainerStatusRequest{ContainerId: ctrID})},
		{"RemoveContainer", unknown(encode(t, &runtimeapi.RemoveContainerRequest{ContainerId: ctrID}))},
		{"RemovePodSandbox", []byte{}},
		{"RemovePodSandbox", []byte{0xff}},
		{"SomethingNew", unknown(nil)},
	} {
		out, err := d.call(c.method, c.msg)
		if err != nil {
			t.Fatalf("%s: %v", c.method, err)
		}
		if got := d.last(c.method); !bytes.Equal(got, c.msg) {
			t.Errorf("%s: the runtime got\n%q\nthe kubelet sent\n%q", c.method, got, c.msg)
		}
		if c.method == "ContainerStatus" && !bytes.Equal(out, status) {
			t.Errorf("the kubelet got %q", out)
		}
	}
	if n := d.counts(); n.Changed != 0 || n.FailedOpen != 0 || n.BadInput != 2 {
		t.Errorf("%+v", n)
	}
	if w := d.k.Writes(); len(w) > 0 {
		t.Errorf("written: %v", w)
	}
}

func TestChangedMessageKeepsTheRest(t *testing.T) {
	t.Parallel()
	d := newDoor(t, options{})
	s := sandbox("BE")
	d.answerWith("CreateContainer", &runtimeapi.CreateContainerResponse{ContainerId: ctrID})
	msg := within(unknown(encode(t, create(s))), 2)
	if _, err := d.call("CreateContainer", msg); err != nil {
		t.Fatal(err)
	}
	var got runtimeapi.CreateContainerRequest
	if err := proto.Unmarshal(d.last("CreateContainer"), &got); err != nil {
		t.Fatal(err)
	}
	r := got.GetConfig().GetLinux().GetResources()
	if r.GetCpuShares() != 0 || r.GetUnified()["cpu.idle"] != "1" || r.GetOomScoreAdj() != 900 || got.GetConfig().GetAnnotations()[v1alpha1.AnnotationDecision] == "" {
		t.Errorf("%v", &got)
	}
	want := unknown(nil)
	if !bytes.Equal(got.ProtoReflect().GetUnknown(), want) || !bytes.Equal(got.GetConfig().ProtoReflect().GetUnknown(), want) || len(got.GetConfig().GetEnvs()) != 1 {
		t.Errorf("lost: %q, %q", got.ProtoReflect().GetUnknown(), got.GetConfig().ProtoReflect().GetUnknown())
	}
}

// The kubelet is shown what it asked, in every message that has it; the runtime holds our values.
func TestStatusShowsWhatWasAsked(t *testing.T) {
	t.Parallel()
	d := newDoor(t, options{})
	d.started(sandbox("BE"))
	st := &runtimeapi.ContainerStatus{Id: ctrID, Resources: &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, OomScoreAdj: 900, Unified: map[string]string{"cpu.idle": "1", "memory.min": "0"},
	}}}
	other := &runtimeapi.ContainerStatus{Id: "other", Resources: &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{OomScoreAdj: 900}}}
	d.answerWith("ContainerStatus", &runtimeapi.ContainerStatusResponse{Status: st})
	d.answerWith("PodSandboxStatus", &runtimeapi.PodSandboxStatusResponse{ContainersStatuses: []*runtimeapi.ContainerStatus{st, other}})
	d.answerWith("GetContainerEvents", &runtimeapi.ContainerEventResponse{ContainersStatuses: []*runtimeapi.ContainerStatus{other, st}})
	check := func(shares int64) {
		t.Helper()
		var one runtimeapi.ContainerStatusResponse
		var pod runtimeapi.PodSandboxStatusResponse
		var ev runtimeapi.ContainerEventResponse
		for method, m := range map[string]proto.Message{"ContainerStatus": &one, "PodSandboxStatus": &pod} {
			if err := proto.Unmarshal(d.must(method, &runtimeapi.ContainerStatusRequest{ContainerId: ctrID}), m); err != nil {
				t.Fatal(err)
			}
		}
		stream, err := d.client.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/runtime.v1.RuntimeService/GetContainerEvents")
		if err == nil {
			err = stream.SendMsg(&[]byte{})
		}
		if err == nil {
			err = stream.CloseSend()
		}
		var b []byte
		if err == nil {
			err = stream.RecvMsg(&b)
		}
		if err == nil {
			err = proto.Unmarshal(b, &ev)
		}
		if err != nil {
			t.Fatal(err)
		}
		for what, s := range map[string]*runtimeapi.ContainerStatus{"ContainerStatus": one.GetStatus(), "PodSandboxStatus": pod.GetContainersStatuses()[0], "GetContainerEvents": ev.GetContainersStatuses()[1]} {
			r := s.GetResources().GetLinux()
			if r.GetCpuShares() != shares || r.GetOomScoreAdj() != 800 || len(r.GetUnified()) != 1 {
				t.Errorf("%s shows %v", what, r)
			}
		}
		if pod.GetContainersStatuses()[1].GetResources().GetLinux().GetOomScoreAdj() != 900 {
			t.Error("another's status was changed")
		}
	}
	check(2)
	d.must("UpdateContainerResources", &runtimeapi.UpdateContainerResourcesRequest{ContainerId: ctrID, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512}})
	check(512)
	d.answer("UpdateContainerResources", func([]byte) ([][]byte, error) { return nil, status.Error(codes.Unknown, "no") })
	if _, err := d.call("UpdateContainerResources", encode(t, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: ctrID, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 1024}})); status.Code(err) != codes.Unknown {
		t.Fatal(err)
	}
	d.eventually("what was asked before a failed update", func() bool { return *d.e.View(ctrID).Asked.CPUShares == 512 })
	check(512)
	// By the beginning of the ID, as people type it.
	var one runtimeapi.ContainerStatusResponse
	if err := proto.Unmarshal(d.must("ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: ctrID[:13]}), &one); err != nil || one.GetStatus().GetResources().GetLinux().GetCpuShares() != 512 {
		t.Errorf("%v, %v", &one, err)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		s       *runtimeapi.PodSandboxConfig
		edit    func(*runtimeapi.CreateContainerRequest)
		refused bool
		key     string
		bad     bool // counts as bad input
		changed bool
	}{
		"label":                  {s: sandbox("XXL"), bad: true},
		"100 KB label":           {s: sandbox(strings.Repeat("B", 100<<10)), bad: true},
		"annotation of BE":       {s: sandbox("BE", v1alpha1.AnnotationBatchResources, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"-5"}}}}`), bad: true, changed: true},
		"annotation of LSR":      {s: sandbox("LSR", v1alpha1.AnnotationRequests, "{"), bad: true, refused: true, key: v1alpha1.AnnotationRequests},
		"huge annotation of LSE": {s: sandbox("LSE", v1alpha1.AnnotationIOQoS, strings.Repeat("[", 100<<10)), bad: true, refused: true, key: v1alpha1.AnnotationIOQoS},
		"negative numbers": {s: sandbox("BE"), edit: func(r *runtimeapi.CreateContainerRequest) {
			x := r.Config.Linux.Resources
			x.CpuShares, x.CpuQuota, x.CpuPeriod, x.MemoryLimitInBytes, x.OomScoreAdj = -1, -1<<63, -7, -1<<63, -1<<63
		}, changed: true},
		"overflowing numbers": {s: sandbox("LS"), edit: func(r *runtimeapi.CreateContainerRequest) {
			x := r.Config.Linux.Resources
			x.CpuShares, x.CpuQuota, x.CpuPeriod, x.MemoryLimitInBytes = 1<<63-1, 1<<63-1, 1<<63-1, 1<<63-1
		}, changed: true}, // by its birth record alone
		"period that no kernel takes": {s: sandbox("BE", v1alpha1.AnnotationBatchResources, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"1k"}}}}`),
			edit: func(r *runtimeapi.CreateContainerRequest) { r.Config.Linux.Resources.CpuPeriod = 2_000_000 }},
		"no config":                 {s: sandbox("BE"), edit: func(r *runtimeapi.CreateContainerRequest) { r.Config = nil }, bad: true},
		"no metadata":               {s: sandbox("BE"), edit: func(r *runtimeapi.CreateContainerRequest) { r.Config.Metadata = nil }, bad: true},
		"no metadata of LSE":        {s: sandbox("LSE"), edit: func(r *runtimeapi.CreateContainerRequest) { r.Config.Metadata = nil }, bad: true, refused: true, key: v1alpha1.LabelQoS},
		"no linux":                  {s: sandbox("BE"), edit: func(r *runtimeapi.CreateContainerRequest) { r.Config.Linux = nil }, changed: true},
		"no resources":              {s: sandbox("BE"), edit: func(r *runtimeapi.CreateContainerRequest) { r.Config.Linux.Resources = nil }, changed: true},
		"no sandbox config":         {s: sandbox("BE"), edit: func(r *runtimeapi.CreateContainerRequest) { r.SandboxConfig = nil }},
		"no sandbox metadata":       {s: sandbox("BE"), edit: func(r *runtimeapi.CreateContainerRequest) { r.SandboxConfig.Metadata = nil }, bad: true},
		"no metadata, and no tier":  {s: sandbox(""), edit: func(r *runtimeapi.CreateContainerRequest) { r.SandboxConfig.Metadata = nil }, bad: true},
		"nothing":                   {s: sandbox(""), edit: func(r *runtimeapi.CreateContainerRequest) { proto.Reset(r) }},
		"sandbox without its linux": {s: sandbox("LS"), edit: func(r *runtimeapi.CreateContainerRequest) { r.SandboxConfig.Linux = nil }, changed: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDoor(t, options{})
			d.answerWith("CreateContainer", &runtimeapi.CreateContainerResponse{ContainerId: ctrID})
			r := create(c.s)
			if c.edit != nil {
				c.edit(r)
			}
			msg := encode(t, r)
			_, err := d.call("CreateContainer", msg)
			if c.refused {
				if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), c.key) || len(err.Error()) > 4096 {
					t.Errorf("%v", err)
				}
				if d.last("CreateContainer") != nil {
					t.Error("the runtime got it")
				}
				if left, _ := os.ReadDir(d.state); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			} else if err != nil {
				t.Fatal(err)
			} else if changed := !bytes.Equal(d.last("CreateContainer"), msg); changed != c.changed {
				t.Errorf("changed: %t", changed)
			}
			if n := d.counts(); (n.BadInput > 0) != c.bad || (n.Refused > 0) != c.refused {
				t.Errorf("%+v", n)
			}
			for _, w := range d.k.Writes() {
				t.Errorf("written: %+v", w)
			}
		})
	}
}

// A runtime that fails gives its own status, and nothing stays.
func TestFailedCreation(t *testing.T) {
	t.Parallel()
	d := newDoor(t, options{})
	d.answer("CreateContainer", func([]byte) ([][]byte, error) { return nil, status.Error(codes.AlreadyExists, "the runtime's words") })
	_, err := d.call("CreateContainer", encode(t, create(sandbox("BE"))))
	if status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), "the runtime's words") {
		t.Fatal(err)
	}
	d.eventually("the record is dropped", func() bool {
		left, err := os.ReadDir(d.state)
		return err == nil && len(left) == 0 && d.container("app") == nil
	})
}

func TestBypassAndObserve(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"bypass", "observe"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			d := newDoor(t, options{engine: func(c *engine.Config) {
				if mode == "observe" {
					c.Mode = control.ModeObserve
				} else {
					c.Bypass = true
				}
			}})
			d.answerWith("CreateContainer", &runtimeapi.CreateContainerResponse{ContainerId: ctrID})
			for _, tier := range []string{"LSE", "LSR", "LS", "BE", "SYSTEM", "odd", ""} {
				msg := encode(t, create(sandbox(tier, v1alpha1.AnnotationRequests, "{")))
				if _, err := d.call("CreateContainer", msg); err != nil || !bytes.Equal(d.last("CreateContainer"), msg) {
					t.Errorf("%s: %v", tier, err)
				}
				msg = encode(t, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: ctrID, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 5}})
				if _, err := d.call("UpdateContainerResources", msg); err != nil || !bytes.Equal(d.last("UpdateContainerResources"), msg) {
					t.Errorf("%s: %v", tier, err)
				}
			}
			n := d.counts()
			if n.Changed+n.Refused+n.FailedOpen+n.Writes != 0 || (n.Decisions > 0) != (mode == "observe") {
				t.Errorf("%+v", n)
			}
		})
	}
}

// A fault in the engine costs decisions and no call, but for tiers that want certainty.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"panic", "stall"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			var faulty atomic.Bool
			release := make(chan struct{})
			d := newDoor(t, options{engine: func(c *engine.Config) {
				c.Clock = func() time.Time {
					if faulty.Load() {
						if fault == "panic" {
							panic("test")
						}
						<-release
					}
					return time.Now()
				}
			}})
			d.started(sandbox("BE"))
			faulty.Store(true)
			for _, tier := range []string{"LS", "BE", "SYSTEM", "", "LSE", "LSR"} {
				began := time.Now()
				s := sandbox(tier)
				s.Metadata.Uid = "u" + tier
				msg := encode(t, create(s))
				_, err := d.call("CreateContainer", msg)
				if tier == "LSE" || tier == "LSR" {
					if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), v1alpha1.LabelQoS) || !strings.Contains(err.Error(), "no decision") {
						t.Errorf("%s: %v", tier, err)
					}
				} else if err != nil || !bytes.Equal(d.last("CreateContainer"), msg) {
					t.Errorf("%s: %v", tier, err)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("%s took %v", tier, took)
				}
			}
			for method, m := range map[string]proto.Message{
				"RunPodSandbox": &runtimeapi.RunPodSandboxRequest{Config: sandbox("LSE")}, "StartContainer": &runtimeapi.StartContainerRequest{ContainerId: ctrID},
				"ContainerStatus": &runtimeapi.ContainerStatusRequest{ContainerId: ctrID}, "RemoveContainer": &runtimeapi.RemoveContainerRequest{ContainerId: "x"},
				"UpdatePodSandboxResources": &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "sb"}, "RemovePodSandbox": &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "x"},
			} {
				d.must(method, m)
			}
			// The runtime would refuse shares for the container that is idle.
			d.must("UpdateContainerResources", &runtimeapi.UpdateContainerResourcesRequest{ContainerId: ctrID, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512}})
			var got runtimeapi.UpdateContainerResourcesRequest
			if err := proto.Unmarshal(d.last("UpdateContainerResources"), &got); err != nil || got.GetLinux().GetCpuShares() != 0 {
				t.Errorf("%v, %v", &got, err)
			}
			faulty.Store(false)
			close(release)
			if n := d.counts(); n.FailedOpen < 5 || n.Refused != 2 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// The relay gives a callback up: the message passes unmodified, and the engine learns that its plan did not count.
func TestCallbackTimeoutIsMissed(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	d := newDoor(t, options{timeout: 300 * time.Millisecond, engine: func(c *engine.Config) {
		c.DecisionBudget = time.Minute
		c.Clock = func() time.Time {
			if slow.Load() {
				time.Sleep(700 * time.Millisecond)
			}
			return time.Now()
		}
	}})
	d.answerWith("CreateContainer", &runtimeapi.CreateContainerResponse{ContainerId: ctrID})
	msg := encode(t, create(sandbox("BE")))
	slow.Store(true)
	if _, err := d.call("CreateContainer", msg); err != nil || !bytes.Equal(d.last("CreateContainer"), msg) {
		t.Fatalf("%v", err)
	}
	slow.Store(false)
	d.eventually("the container is missed", func() bool {
		c := d.container("app")
		return c != nil && c.State == policy.Missed && c.ID == ctrID
	})
	d.eventually("the callback has ended", func() bool { return d.counts().FailedOpen == 1 })
	d.eventually("no record and no view", func() bool {
		left, err := os.ReadDir(d.state)
		return err == nil && len(left) == 0 && !d.e.HasViews()
	})
	if c := d.container("app"); c.State != policy.Missed {
		t.Errorf("%+v, %+v", c, d.counts())
	}
}

func TestFailedSandbox(t *testing.T) {
	t.Parallel()
	d := newDoor(t, options{})
	if err := d.k.Make("/kubepods/besteffort/podu1"); err != nil {
		t.Fatal(err)
	}
	weight := func() string {
		s, err := d.k.Get("/kubepods/besteffort/podu1", "io.weight")
		return fmt.Sprint(s, err)
	}
	d.answer("RunPodSandbox", func([]byte) ([][]byte, error) {
		if got := weight(); got != "default 10<nil>" {
			t.Errorf("io.weight %s when the sandbox is made", got)
		}
		return nil, errors.New("no")
	})
	if _, err := d.call("RunPodSandbox", encode(t, &runtimeapi.RunPodSandboxRequest{Config: sandbox("BE")})); err == nil {
		t.Fatal("no error")
	}
	d.eventually("the pod has its weight back", func() bool { return weight() == "default 100<nil>" })
}
