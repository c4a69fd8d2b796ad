package hooks

import "google.golang.org/protobuf/encoding/protowire"

// firstString gives field 1 of a message, which is the ID in every CRI request that names one sandbox or container; ""
// when there is none or the bytes are no message. Of several the last counts, as protobuf says.
func firstString(msg []byte) string {
	id := ""
	for len(msg) > 0 {
		num, typ, n := protowire.ConsumeField(msg)
		if n < 0 {
			return ""
		}
		if num == 1 && typ == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(msg)
			v, _ := protowire.ConsumeBytes(msg[tag:n])
			id = string(v)
		}
		msg = msg[n:]
	}
	return id
}
