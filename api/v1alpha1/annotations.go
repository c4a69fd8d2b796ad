package v1alpha1

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/internal/units"
)

// MaxAnnotationSize is the size in bytes of the largest annotation that is read.
const MaxAnnotationSize = 64 << 10

// ParseRequests reads an AnnotationRequests strictly. The error is a Problems.
func ParseRequests(s string) (Requests, error) {
	var r Requests
	problems := parseAnnotation(s, &r)
	if len(problems) == 0 && r.Containers == nil {
		problems.add(missingContainers())
	}
	good := true
	for _, c := range r.Containers {
		good = good && c.good(validRequest)
	}
	if !good {
		at := path{key: "containers", item: -1}
		for _, name := range slices.Sorted(maps.Keys(r.Containers)) {
			c := at.field(name)
			r.Containers[name].validate(&c, validRequest, requestAllowed, &problems)
		}
	}
	if err := problems.err(); err != nil {
		return Requests{}, err
	}
	return r, nil
}

// ParseBatchResources reads an AnnotationBatchResources or an AliasKoordinatorBatch strictly. The error is a Problems.
func ParseBatchResources(s string) (BatchResources, error) {
	var b BatchResources
	problems := parseAnnotation(s, &b)
	if len(problems) == 0 && b.Containers == nil {
		problems.add(missingContainers())
	}
	good := true
	for _, c := range b.Containers {
		good = good && c.Requests.good(validBatch) && c.Limits.good(validBatch)
	}
	if !good {
		at := path{key: "containers", item: -1}
		for _, name := range slices.Sorted(maps.Keys(b.Containers)) {
			c := at.field(name)
			requests, limits := c.field("requests"), c.field("limits")
			b.Containers[name].Requests.validate(&requests, validBatch, batchAllowed, &problems)
			b.Containers[name].Limits.validate(&limits, validBatch, batchAllowed, &problems)
		}
	}
	if err := problems.err(); err != nil {
		return BatchResources{}, err
	}
	return b, nil
}

func missingContainers() Problem {
	return Problem{Path: "containers", Cause: "missing", Allowed: "an object of container names"}
}

// ParseMemoryQoS reads an AnnotationMemoryQoS strictly. The error is a Problems. It can't tell whether a value is more
// than the pod's tier gives; package policy does.
func ParseMemoryQoS(s string) (MemoryQoS, error) {
	var m MemoryQoS
	problems := parseAnnotation(s, &m)
	if m.High != nil && *m.High == 0 {
		problems.add(Problem{Path: "high", Value: units.Quote(m.High.String()), Allowed: highAllowed})
	}
	if err := problems.err(); err != nil {
		return MemoryQoS{}, err
	}
	return m, nil
}

// ParseIOQoS reads an AnnotationIOQoS strictly. The error is a Problems. It can't tell whether a value is more than the
// pod's tier gives; package policy does.
func ParseIOQoS(s string) (IOQoS, error) {
	var q IOQoS
	problems := parseAnnotation(s, &q)
	var root *path
	validateIO(root, q.Weight, q.Max, &problems)
	if err := problems.err(); err != nil {
		return IOQoS{}, err
	}
	return q, nil
}

// ParseCPUPlacement reads an AnnotationCPUPlacement strictly. The error is a Problems. It can't tell whether a value is for
// the pod's tier; package policy does.
func ParseCPUPlacement(s string) (CPUPlacement, error) {
	var c CPUPlacement
	problems := parseAnnotation(s, &c)
	if c.NUMA != "" && !c.NUMA.Valid() {
		problems.add(Problem{Path: "numa", Value: units.Quote(string(c.NUMA)), Allowed: list(NUMAs())})
	}
	if c.SMT != "" && !c.SMT.Valid() {
		problems.add(Problem{Path: "smt", Value: units.Quote(string(c.SMT)), Allowed: list(SMTs())})
	}
	if err := problems.err(); err != nil {
		return CPUPlacement{}, err
	}
	return c, nil
}

// ParseResctrlClass reads an AnnotationResctrlClass strictly. The error is a Problems. It can't tell whether that tier has
// more than the pod's own; package policy does.
func ParseResctrlClass(s string) (ResctrlClass, error) {
	var c ResctrlClass
	problems := parseAnnotation(s, &c)
	if len(problems) == 0 && !c.Tier.Valid() {
		problems.add(Problem{Path: "tier", Value: units.Quote(string(c.Tier)), Allowed: list(Tiers())})
	}
	if err := problems.err(); err != nil {
		return ResctrlClass{}, err
	}
	return c, nil
}

func parseAnnotation(s string, into any) Problems {
	var problems Problems
	if len(s) > MaxAnnotationSize {
		problems.add(Problem{Cause: strconv.Itoa(len(s)) + " bytes", Allowed: fmt.Sprintf("up to %d bytes", MaxAnnotationSize)})
		return problems
	}
	if t, ok := parseJSON(s, &problems); ok {
		decode(t, 0, into, &problems)
	}
	return problems
}

const (
	requestAllowed = "cpu, memory, ephemeral-storage, hugepages-SIZE, or a name with a domain"
	batchAllowed   = ResourceBatchCPU + ", " + ResourceBatchMemory + ", or a name with another domain than kubernetes.io"
)

func validRequest(name string) bool {
	return name == "cpu" || name == "memory" || name == "ephemeral-storage" || strings.HasPrefix(name, "hugepages-") ||
		strings.Contains(name, "/")
}

// validBatch takes Koordinator's mid resources too, since its annotation carries them beside the batch ones.
func validBatch(name string) bool {
	switch name {
	case ResourceBatchCPU, ResourceBatchMemory, "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory":
		return true
	}
	domain, _, ok := strings.Cut(name, "/")
	return ok && domain != "kubernetes.io"
}

// good says that validate would find nothing, without the cost of an order.
func (r ResourceNames) good(validName func(string) bool) bool {
	for name, q := range r {
		if !validName(name) || validQuantity(name, q) != nil {
			return false
		}
	}
	return true
}

func (r ResourceNames) validate(at *path, validName func(string) bool, allowed string, problems *Problems) {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		f := at.field(name)
		if !validName(name) {
			problems.add(Problem{Path: f.String(), Cause: "unknown resource", Allowed: allowed})
			continue
		}
		if err := validQuantity(name, r[name]); err != nil {
			problems.add(Problem{Path: f.String(), Value: units.Quote(r[name]), Cause: quantityCause(err), Allowed: `a quantity from 0, such as "500m", "2k" or "1Gi"`})
		}
	}
}

func validQuantity(name, q string) error {
	parse := units.ParseInteger
	if name == "cpu" {
		parse = units.ParseMilliCPU
	}
	_, err := parse(q)
	return err
}

func quantityCause(err error) string {
	for _, cause := range []error{units.ErrNegative, units.ErrOverflow} {
		if errors.Is(err, cause) {
			return cause.Error()
		}
	}
	return "not a quantity"
}

// MilliCPU is the requested CPU of a container in milli-cores. The bool says whether the annotation names the
// container at all; a container that is named without CPU requests none.
func (r Requests) MilliCPU(container string) (int64, bool) {
	c, ok := r.Containers[container]
	return c.amount("cpu", units.ParseMilliCPU), ok
}

// MemoryBytes is the requested memory of a container; see MilliCPU.
func (r Requests) MemoryBytes(container string) (int64, bool) {
	c, ok := r.Containers[container]
	return c.amount("memory", units.ParseInteger), ok
}

// Limit is the batch limit of a container by resource name: milli-cores of ResourceBatchCPU, bytes of
// ResourceBatchMemory. Zero is no limit, as it is for Kubernetes. The bool says whether the container is named.
func (b BatchResources) Limit(container, resource string) (int64, bool) {
	c, ok := b.Containers[container]
	return c.Limits.amount(resource, units.ParseInteger), ok
}

// amount reads a quantity that a Parse function has accepted; anything else is zero.
func (r ResourceNames) amount(name string, parse func(string) (int64, error)) int64 {
	s, ok := r[name]
	if !ok {
		return 0
	}
	n, err := parse(s)
	if err != nil {
		return 0
	}
	return n
}
