package wire

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	applycri "github.com/tideline-io/tideline/internal/apply/cri"
)

// Create is a CreateContainerRequest. It belongs to one goroutine.
type Create struct {
	// Request holds what a decision reads: pod_sandbox_id; of sandbox_config the metadata, labels, annotations and
	// linux.cgroup_parent; of config the metadata and linux.resources. Other fields may be missing. The caller may change
	// Config.Linux.Resources, or set it where it is nil; Write takes no other change along.
	Request *runtimeapi.CreateContainerRequest

	msg   []byte
	path  [3]field // config, config.linux, config.linux.resources
	whole bool     // one of them is there several times: Request holds everything
}

// part says which fields of a message are decoded.
type part struct {
	num protowire.Number
	of  []part // of a submessage; nil for the whole field
}

// created is what Create.Request holds.
var created = []part{
	{num: 1}, // pod_sandbox_id
	{num: numConfig, of: []part{
		{num: 1}, // metadata
		{num: numConfigLinux, of: []part{{num: numLinuxResources}}},
	}},
	{num: 3, of: []part{ // sandbox_config
		{num: 1},                       // metadata
		{num: 6},                       // labels
		{num: 7},                       // annotations
		{num: 8, of: []part{{num: 1}}}, // linux.cgroup_parent
	}},
}

// Field numbers of api.proto on the way to a container's resources.
const (
	numConfig            = 2  // CreateContainerRequest.config
	numConfigAnnotations = 10 // ContainerConfig.annotations
	numConfigLinux       = 15 // ContainerConfig.linux
	numLinuxResources    = 1  // LinuxContainerConfig.resources
)

// ReadCreate reads a CreateContainerRequest. It keeps msg, and never changes it. The error is ErrInvalid.
func ReadCreate(msg []byte) (*Create, error) {
	if !createRequest.valid(msg) {
		return nil, ErrInvalid
	}
	c := &Create{Request: &runtimeapi.CreateContainerRequest{}, msg: msg}
	from, to := 0, len(msg)
	for i, num := range []protowire.Number{numConfig, numConfigLinux, numLinuxResources} {
		f, times := message(msg, from, to, num)
		if times > 1 {
			c.whole = true
			break
		}
		c.path[i] = f
		from, to = f.value, f.end
	}
	var err error
	if c.whole {
		err = proto.Unmarshal(msg, c.Request)
	} else {
		err = decode(msg, 0, len(msg), c.Request.ProtoReflect(), created)
	}
	if err != nil {
		return nil, ErrInvalid
	}
	return c, nil
}

// decode reads parts of the message in msg[from:to]. Fields that stand side by side, as the entries of a map do, are
// read together.
func decode(msg []byte, from, to int, into protoreflect.Message, parts []part) error {
	begin, end := from, from // what is to be read next
	flush := func() error {
		if begin == end {
			return nil
		}
		b := msg[begin:end]
		begin = end
		return merge(b, into.Interface())
	}
	for f := range fields(msg, from, to) {
		p := find(parts, f.num)
		if p != nil && (p.of == nil || f.typ != protowire.BytesType) {
			if f.start != end {
				if err := flush(); err != nil {
					return err
				}
				begin = f.start
			}
			end = f.end
			continue
		}
		if p == nil {
			continue
		}
		sub := into.Mutable(into.Descriptor().Fields().ByNumber(f.num)).Message()
		if err := decode(msg, f.value, f.end, sub, p.of); err != nil {
			return err
		}
	}
	return flush()
}

func find(parts []part, num protowire.Number) *part {
	for i := range parts {
		if parts[i].num == num {
			return &parts[i]
		}
	}
	return nil
}

// Write gives the message with the resources as they are in Request, and with one more annotation of the container,
// or with another value of it. Request needs a Config.
func (c *Create) Write(annotation, value string) ([]byte, error) {
	cfg := c.Request.GetConfig()
	if cfg == nil {
		return nil, errors.New("edit CreateContainerRequest: it has no config")
	}
	if c.whole {
		applycri.Annotate(cfg, annotation, value)
		return proto.Marshal(c.Request)
	}
	if !utf8.ValidString(annotation) || !utf8.ValidString(value) {
		return nil, errors.New("edit CreateContainerRequest: an annotation is not UTF-8")
	}
	e := edit{path: c.path[:], added: mapEntry(numConfigAnnotations, annotation, value)}
	if res := cfg.GetLinux().GetResources(); res != nil {
		var err error
		if e.content, err = proto.Marshal(res); err != nil {
			return nil, err
		}
	} else {
		e.path, e.content = c.path[:1], c.msg[c.path[0].value:c.path[0].end]
	}
	out := make([]byte, 0, len(c.msg)+len(e.content)+len(e.added)+room)
	out = append(out, c.msg[:c.path[0].start]...)
	out = e.appendTo(out, c.msg)
	return append(out, c.msg[c.path[0].end:]...), nil
}
