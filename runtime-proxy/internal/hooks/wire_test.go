package hooks

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FuzzFirstString compares with the decoder: what that reads, we read.
func FuzzFirstString(f *testing.F) {
	field := func(num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
	}
	f.Add(field(1, "abc"))
	f.Add(append(field(1, "abc"), field(1, "def")...))
	f.Add(append(field(2, "x"), field(1, "def")...))
	f.Add(append(field(1, "abc"), 0x0a, 0x7f))
	f.Add(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7))
	f.Add([]byte{0x0b, 0x0c})
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, msg []byte) {
		got := firstString(msg)
		var req runtimeapi.StartContainerRequest
		if proto.Unmarshal(msg, &req) == nil && got != req.GetContainerId() {
			t.Errorf("%x: %q, the decoder has %q", msg, got, req.GetContainerId())
		}
	})
}
