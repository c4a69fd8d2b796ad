package doors

import (
	"bytes"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What is not UTF-8 reaches no door: both protocols are proto3, whose Go runtime writes no such string and reads none. A
// message of a client that writes it nevertheless passes the CRI door as it came, and containerd refuses it.
func TestNotUTF8(t *testing.T) {
	for name, say := range map[string]func(s string) proto.Message{
		"CRI, a label": func(s string) proto.Message { return &runtimeapi.PodSandboxConfig{Labels: map[string]string{"k": s}} },
		"CRI, an annotation": func(s string) proto.Message {
			return &runtimeapi.PodSandboxConfig{Annotations: map[string]string{s: "v"}}
		},
		"CRI, a parent": func(s string) proto.Message {
			return &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: s}}
		},
		"CRI, a unified value": func(s string) proto.Message {
			return &runtimeapi.LinuxContainerResources{Unified: map[string]string{"k": s}}
		},
		"NRI, a label":         func(s string) proto.Message { return &api.PodSandbox{Labels: map[string]string{"k": s}} },
		"NRI, an annotation":   func(s string) proto.Message { return &api.PodSandbox{Annotations: map[string]string{s: "v"}} },
		"NRI, a parent":        func(s string) proto.Message { return &api.PodSandbox{Linux: &api.LinuxPodSandbox{CgroupParent: s}} },
		"NRI, a unified value": func(s string) proto.Message { return &api.LinuxResources{Unified: map[string]string{"k": s}} },
	} {
		t.Run(name, func(t *testing.T) {
			if b, err := proto.Marshal(say("\xff\xfe")); err == nil {
				t.Errorf("it can be written: %x", b)
			}
			const good = "ok!"
			b, err := proto.Marshal(say(good))
			if err != nil {
				t.Fatal(err)
			}
			b = bytes.ReplaceAll(b, []byte(good), []byte("\xff\xfe\xff"))
			if m := say("").ProtoReflect().New().Interface(); proto.Unmarshal(b, m) == nil {
				t.Errorf("it can be read: %v", m)
			}
		})
	}
}
