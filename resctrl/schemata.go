package resctrl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Schemata are the settings of a group, a line a resource, in the order of the text they come from. A schemata may name a
// part of the resources and domains only; what it doesn't name keeps its value when it is written.
type Schemata []Line

// Line is one resource of a schemata.
type Line struct {
	Resource string   `json:"resource"`          // "L3", "L2CODE", "MB", "SMBA"
	Domains  []Domain `json:"domains,omitempty"` // by ID
	Text     string   `json:"text,omitempty"`    // what stands after the colon, where the resource is of no kind known here, or "uninitialized"
}

// Domain is the value of a resource in one of its instances, a cache mostly. IDs have gaps and are no socket numbers.
type Domain struct {
	ID    int    `json:"id"`
	Value uint64 `json:"value"` // a Mask of caches, an amount (percent, MB/s or units of 1/8 GB/s) of MB and SMBA
}

// Mask is the value of a cache.
func (d Domain) Mask() Mask { return Mask(d.Value) }

// Kind says what the values of a resource are.
type Kind string

const (
	KindCache     Kind = "cache"     // a Mask
	KindBandwidth Kind = "bandwidth" // a decimal amount
	KindUnknown   Kind = "unknown"   // kept as text
)

// KindOf tells the kind by the name of the resource, as the schemata file has nothing else: L2, L3 and their CODE and
// DATA halves are caches, MB and SMBA are bandwidth.
func KindOf(resource string) Kind {
	if resource == "MB" || resource == "SMBA" {
		return KindBandwidth
	}
	if _, _, ok := level(resource); ok {
		return KindCache
	}
	return KindUnknown
}

// level cuts "L3CODE" into "L3" and "CODE".
func level(resource string) (cache, half string, ok bool) {
	cache = strings.TrimSuffix(strings.TrimSuffix(resource, "CODE"), "DATA")
	half = resource[len(cache):]
	ok = len(cache) == 2 && cache[0] == 'L' && cache[1] >= '1' && cache[1] <= '9' && (half == "" || half == "CODE" || half == "DATA")
	return cache, half, ok
}

// ParseSchemata reads a schemata file, or what a user writes in its format. Names may be padded before and values after
// the equal sign, as the kernel does.
//
//	MB:0= 50;1=100
//	L3:0=7ff;1=7ff
func ParseSchemata(text string) (Schemata, error) {
	return parseLines("schemata", text, func(kind Kind, s string) (uint64, string) {
		if kind == KindCache {
			m, err := ParseMask(s)
			if err != nil {
				return 0, "a hexadecimal mask"
			}
			return uint64(m), ""
		}
		return amount(s)
	})
}

// parseSizes reads a size file, where all values are decimal: bytes of caches, amounts of the others.
//
//	MB:0=100;1=100
//	L3:0=16777211;1=16777211
func parseSizes(text string) (Schemata, error) {
	return parseLines("size", text, func(_ Kind, s string) (uint64, string) { return amount(s) })
}

func amount(s string) (uint64, string) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, "a decimal number"
	}
	return n, ""
}

// uninitialized stands for the values of a group in mode pseudo-locksetup.
const uninitialized = "uninitialized"

// parseLines takes a function that reads a value, or says what it wants.
func parseLines(file, text string, value func(Kind, string) (uint64, string)) (Schemata, error) {
	var s Schemata
	for raw := range strings.SplitSeq(text, "\n") {
		if strings.TrimSpace(raw) == "" {
			continue
		}
		name, rest, ok := strings.Cut(raw, ":")
		name, rest = strings.TrimSpace(name), strings.TrimSpace(rest)
		switch {
		case !ok:
			return nil, &ParseError{file, raw, "RESOURCE:DOMAIN=VALUE;..."}
		case !isName(name):
			return nil, &ParseError{file, name, "a resource name like L3 or MB"}
		case slices.ContainsFunc(s, func(l Line) bool { return l.Resource == name }):
			return nil, &ParseError{file, name, "each resource once"}
		}
		line := Line{Resource: name}
		kind := KindOf(name)
		if kind == KindUnknown || rest == uninitialized {
			line.Text = rest
			s = append(s, line)
			continue
		}
		var err error
		if line.Domains, err = parseDomains(file, rest, func(v string) (uint64, string) { return value(kind, v) }); err != nil {
			return nil, err
		}
		if len(line.Domains) == 0 {
			return nil, &ParseError{file, raw, "at least one DOMAIN=VALUE"}
		}
		s = append(s, line)
	}
	return s, nil
}

// parseDomains reads "0=7ff;1=7ff", with a last semicolon or without.
func parseDomains(file, text string, value func(string) (uint64, string)) ([]Domain, error) {
	var domains []Domain
	seen := map[int]bool{}
	for part := range strings.SplitSeq(strings.TrimSuffix(text, ";"), ";") {
		if part == "" && text == "" {
			break
		}
		idText, v, ok := strings.Cut(part, "=")
		id, err := strconv.ParseUint(strings.TrimSpace(idText), 10, 31)
		if !ok || err != nil {
			return nil, &ParseError{file, part, "DOMAIN=VALUE with a decimal domain"}
		}
		if seen[int(id)] {
			return nil, &ParseError{file, part, "each domain once"}
		}
		seen[int(id)] = true
		n, want := value(strings.TrimSpace(v))
		if want != "" {
			return nil, &ParseError{file, part, want}
		}
		domains = append(domains, Domain{ID: int(id), Value: n})
	}
	slices.SortFunc(domains, func(a, b Domain) int { return a.ID - b.ID })
	return domains, nil
}

// isName is what a resource may be called.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return s != ""
}

// String is the text that the kernel takes: one line a resource, no padding, each ended by a newline.
func (s Schemata) String() string {
	var b strings.Builder
	for _, l := range s {
		b.WriteString(l.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// String is the line without its newline.
func (l Line) String() string {
	var b strings.Builder
	b.WriteString(l.Resource)
	kind := KindOf(l.Resource)
	if kind == KindUnknown || l.Text != "" {
		return b.String() + ":" + l.Text
	}
	for i, d := range l.Domains {
		b.WriteByte(":;"[min(i, 1)])
		if kind == KindCache {
			fmt.Fprintf(&b, "%d=%s", d.ID, d.Mask())
		} else {
			fmt.Fprintf(&b, "%d=%d", d.ID, d.Value)
		}
	}
	return b.String()
}

// Line finds a resource.
func (s Schemata) Line(resource string) (Line, bool) {
	for _, l := range s {
		if l.Resource == resource {
			return l, true
		}
	}
	return Line{}, false
}

// Value finds the value of a resource in a domain.
func (s Schemata) Value(resource string, id int) (uint64, bool) {
	l, _ := s.Line(resource)
	for _, d := range l.Domains {
		if d.ID == id {
			return d.Value, true
		}
	}
	return 0, false
}

// Set changes or adds the value of a resource in a domain.
func (s *Schemata) Set(resource string, id int, value uint64) {
	i := slices.IndexFunc(*s, func(l Line) bool { return l.Resource == resource })
	if i < 0 {
		*s = append(*s, Line{Resource: resource})
		i = len(*s) - 1
	}
	l := &(*s)[i]
	for j := range l.Domains {
		if l.Domains[j].ID == id {
			l.Domains[j].Value = value
			return
		}
	}
	l.Domains = append(l.Domains, Domain{ID: id, Value: value})
	slices.SortFunc(l.Domains, func(a, b Domain) int { return a.ID - b.ID })
}

// Clone is a copy that shares nothing.
func (s Schemata) Clone() Schemata {
	c := slices.Clone(s)
	for i := range c {
		c[i].Domains = slices.Clone(c[i].Domains)
	}
	return c
}

// Difference is a value that is not what was wanted: rounded by the kernel, changed by somebody else, or missing because
// the domain went offline.
type Difference struct {
	Resource string `json:"resource"`
	Domain   int    `json:"domain"`
	Want     uint64 `json:"want"`
	Got      uint64 `json:"got"`
	Missing  bool   `json:"missing,omitempty"` // there is no such resource or domain
}

func (d Difference) String() string {
	show := func(v uint64) string {
		if KindOf(d.Resource) == KindCache {
			return Mask(v).String()
		}
		return strconv.FormatUint(v, 10)
	}
	if d.Missing {
		return fmt.Sprintf("%s:%d=%s is missing", d.Resource, d.Domain, show(d.Want))
	}
	return fmt.Sprintf("%s:%d=%s, wanted %s", d.Resource, d.Domain, show(d.Got), show(d.Want))
}

// Differences compares a group's settings with those that are wanted. Only what want names is looked at.
func (s Schemata) Differences(want Schemata) []Difference {
	var diffs []Difference
	for _, l := range want {
		for _, d := range l.Domains {
			got, ok := s.Value(l.Resource, d.ID)
			if !ok || got != d.Value {
				diffs = append(diffs, Difference{Resource: l.Resource, Domain: d.ID, Want: d.Value, Got: got, Missing: !ok})
			}
		}
	}
	return diffs
}
