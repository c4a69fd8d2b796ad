package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	applycri "github.com/tideline-io/tideline/internal/apply/cri"
)

// The usual container of a node: service links in the environment, some volumes.
func BenchmarkCreate(b *testing.B) {
	msg := encode(b, createRequestOf(40, 15))
	for _, x := range []struct {
		name string
		do   func() ([]byte, error)
	}{
		{"edit", func() ([]byte, error) {
			c, err := ReadCreate(msg)
			if err != nil {
				return nil, err
			}
			change(c.Request.Config.Linux.Resources)
			return c.Write(annotation, birth)
		}},
		{"decode and encode", func() ([]byte, error) {
			var req runtimeapi.CreateContainerRequest
			if err := proto.Unmarshal(msg, &req); err != nil {
				return nil, err
			}
			change(req.Config.Linux.Resources)
			applycri.Annotate(req.Config, annotation, birth)
			return proto.Marshal(&req)
		}},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(msg)))
			for b.Loop() {
				if _, err := x.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkReadCreate(b *testing.B) {
	msg := encode(b, createRequestOf(40, 15))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadCreate(msg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStatus(b *testing.B) {
	h := holders[0]
	msg := encode(b, h.hold(statusOf("ab", &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000})))
	for _, x := range []struct {
		name string
		do   func() ([]byte, error)
	}{
		{"edit", func() ([]byte, error) { return ContainerStatus(msg, restore) }},
		{"decode and encode", func() ([]byte, error) {
			return restoreAll(msg, restore, func() (m proto.Message, statuses []*runtimeapi.ContainerStatus, err error) {
				m = h.empty()
				err = proto.Unmarshal(msg, m)
				return m, h.statuses(m), err
			})
		}},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(msg)))
			for b.Loop() {
				if _, err := x.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
