package v1alpha1

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/internal/units"
)

// MaxPolicySize is the size in bytes of the largest policy file that is read.
const MaxPolicySize = 1 << 20

// Bounds of what a policy may say; the schemas carry them too.
const (
	MinOOMScoreAdj = -1000
	MaxOOMScoreAdj = 1000
	// MaxSharedCPUs is as many CPUs as a kernel can have.
	MaxSharedCPUs = units.MaxCPU + 1
	MinIOWeight   = 1
	MaxIOWeight   = 1000
	// MaxIOLimit is above any disk, and low enough that the kernel's and our sums can't overflow.
	MaxIOLimit = 1 << 50
	// MaxDevices is how many entries a list of disk limits may have.
	MaxDevices = 64
	// MaxGlobs is how many globs one match may list, MaxRules how many rules a policy has: every one is tried for each pod.
	MaxGlobs = 256
	MaxRules = 256
)

// ParsePolicy reads a policy file, strictly: unknown keys, duplicate keys, null and a second document are refused. The
// file is merged over Default: a tier that it names overrides only the fields that it names, rules that it lists
// replace the default rules ([] is none), a list of disk limits replaces the default list. The result is validated
// whole; the error is a Problems that lists everything that is wrong. With an error the policy is not to be used.
func ParsePolicy(data []byte) (QoSPolicy, error) {
	var problems Problems
	p := Default()
	t, ok := parseYAML(data, &problems)
	if !ok {
		return QoSPolicy{}, problems
	}
	p.APIVersion, p.Kind = "", "" // these two have no default
	decode(t, 0, &p, &problems)
	if t[0].kind != isObject {
		return QoSPolicy{}, problems
	}
	p.validate(&problems)
	if err := problems.err(); err != nil {
		return QoSPolicy{}, err
	}
	return p, nil
}

func parseYAML(data []byte, problems *Problems) (tree, bool) {
	if len(data) > MaxPolicySize {
		problems.add(Problem{Cause: fmt.Sprintf("%d bytes", len(data)), Allowed: fmt.Sprintf("up to %d bytes", MaxPolicySize)})
		return nil, false
	}
	if !utf8.Valid(data) {
		problems.add(Problem{Cause: "not UTF-8"})
		return nil, false
	}
	if documents(data) > 1 {
		problems.add(Problem{Cause: "more than one YAML document", Allowed: "one"})
		return nil, false
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		addYAMLError(err, problems)
		// Duplicate keys are all that the lenient reading forgives; with it the other problems are found too.
		if text, err = yaml.YAMLToJSON(data); err != nil {
			return nil, false
		}
	}
	return parseJSON(string(text), problems)
}

func addYAMLError(err error, problems *Problems) {
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		line = strings.TrimPrefix(line, "error converting YAML to JSON: ")
		if line != "" && line != "yaml: unmarshal errors:" {
			problems.add(Problem{Cause: printable(strings.Replace(line, "already set in map", "is a duplicate key", 1))})
		}
	}
}

// printable makes a foreign message, which may quote the file, fit for one line.
func printable(s string) string {
	const most = 300
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// documents counts the YAML documents with content. The reader would drop all but the first without a word.
func documents(data []byte) int {
	count, content := 0, false
	for line := range bytes.Lines(data) {
		line = bytes.TrimRight(line, " \t\r\n")
		switch {
		case bytes.Equal(line, []byte("---")), bytes.HasPrefix(line, []byte("--- ")), bytes.HasPrefix(line, []byte("---\t")), bytes.Equal(line, []byte("...")):
			content = len(line) > 3
		case len(line) == 0, line[0] == '#', line[0] == '%' && !content:
			continue
		case !content:
			content = true
		default:
			continue
		}
		if content {
			count++
		}
	}
	return count
}

// Validate reports everything that is wrong with p, as ParsePolicy does for a file. The error is a Problems.
func (p QoSPolicy) Validate() error {
	var problems Problems
	p.validate(&problems)
	return problems.err()
}

// Validate reports everything that is wrong with s. The error is a Problems.
func (s QoSPolicySpec) Validate() error {
	var problems Problems
	at := path{key: "spec", item: -1}
	s.validate(&at, &problems)
	return problems.err()
}

func (p QoSPolicy) validate(problems *Problems) {
	if p.APIVersion != APIVersion {
		problems.add(Problem{Path: "apiVersion", Value: units.Quote(p.APIVersion), Allowed: APIVersion})
	}
	if p.Kind != KindQoSPolicy {
		problems.add(Problem{Path: "kind", Value: units.Quote(p.Kind), Allowed: KindQoSPolicy})
	}
	if len(p.Metadata.Name) > MaxName {
		problems.add(Problem{Path: "metadata.name", Value: units.Quote(p.Metadata.Name), Allowed: fmt.Sprintf("up to %d bytes", MaxName)})
	}
	at := path{key: "spec", item: -1}
	p.Spec.validate(&at, problems)
}

// MaxName is the length in bytes of the longest name: of a policy, a rule, or an object of Kubernetes.
const MaxName = 253

func (s QoSPolicySpec) validate(at *path, problems *Problems) {
	rules := at.field("rules")
	if len(s.Rules) > MaxRules {
		problems.add(Problem{Path: rules.String(), Value: strconv.Itoa(len(s.Rules)) + " rules", Allowed: fmt.Sprintf("up to %d", MaxRules)})
	}
	names := make(map[string]bool, len(s.Rules))
	for i, r := range s.Rules {
		rule := rules.index(i)
		r.validate(&rule, problems)
		if r.Name != "" && names[r.Name] {
			problems.add(Problem{Path: rule.String() + ".name", Value: units.Quote(r.Name), Cause: "another rule has this name"})
		}
		names[r.Name] = true
	}
	if _, err := units.ParseCPUs(s.ReservedCPUs); err != nil {
		f := at.field("reservedCPUs")
		problems.add(Problem{Path: f.String(), Value: units.Quote(s.ReservedCPUs), Allowed: fmt.Sprintf(`a CPU list such as "0-1,8", up to CPU %d`, units.MaxCPU)})
	}
	if m := s.MinSharedCPUs; m != nil && (*m < 1 || *m > MaxSharedCPUs) {
		f := at.field("minSharedCPUs")
		problems.add(Problem{Path: f.String(), Value: strconv.FormatInt(*m, 10), Allowed: fmt.Sprintf("1 to %d", MaxSharedCPUs)})
	}
	if s.Untiered != "" && !s.Untiered.Valid() {
		f := at.field("untiered")
		problems.add(Problem{Path: f.String(), Value: units.Quote(string(s.Untiered)), Allowed: list(Untiereds())})
	}
	if m := s.Loops.Reconcile; m != "" && !m.Valid() {
		loops := at.field("loops")
		f := loops.field("reconcile")
		problems.add(Problem{Path: f.String(), Value: units.Quote(string(m)), Allowed: list(LoopModes())})
	}
	tiers := at.field("tiers")
	unknown := make([]string, 0)
	for t := range s.Tiers {
		if !t.Valid() {
			unknown = append(unknown, string(t))
		}
	}
	slices.Sort(unknown)
	for _, t := range unknown {
		f := tiers.field(t)
		problems.add(Problem{Path: f.String(), Cause: "unknown tier", Allowed: list(Tiers())})
	}
	for _, t := range Tiers() {
		if p, ok := s.Tiers[t]; ok {
			tier := tiers.field(string(t))
			p.validate(&tier, t, problems)
		}
	}
}

func (r Rule) validate(at *path, problems *Problems) {
	if r.Name == "" || len(r.Name) > MaxName {
		f := at.field("name")
		problems.add(Problem{Path: f.String(), Value: units.Quote(r.Name), Allowed: fmt.Sprintf("1 to %d bytes", MaxName)})
	}
	if !r.Tier.Valid() {
		f := at.field("tier")
		problems.add(Problem{Path: f.String(), Value: units.Quote(string(r.Tier)), Allowed: list(Tiers())})
	}
	match, m := at.field("match"), r.Match
	if len(m.Namespaces) == 0 && len(m.Names) == 0 && m.Labels == "" && len(m.KubeQoS) == 0 {
		problems.add(Problem{Path: match.String(), Cause: "matches nothing", Allowed: "at least one of namespaces, names, labels, kubeQoS"})
	}
	globs := func(key string, all []string) {
		f := match.field(key)
		if len(all) > MaxGlobs {
			problems.add(Problem{Path: f.String(), Value: strconv.Itoa(len(all)) + " globs", Allowed: fmt.Sprintf("up to %d", MaxGlobs)})
		}
		for i, g := range all {
			if !validGlob(g) {
				item := f.index(i)
				problems.add(Problem{Path: item.String(), Value: units.Quote(g), Allowed: "lower-case letters, digits, '-', '.', and the wildcards '*' and '?'"})
			}
		}
	}
	globs("namespaces", m.Namespaces)
	globs("names", m.Names)
	if m.Labels != "" {
		f := match.field("labels")
		sel, err := labels.Parse(m.Labels)
		switch {
		case len(m.Labels) > 4096:
			problems.add(Problem{Path: f.String(), Value: units.Quote(m.Labels), Allowed: "up to 4096 bytes"})
		case err != nil:
			problems.add(Problem{Path: f.String(), Value: units.Quote(m.Labels), Cause: printable(err.Error()), Allowed: `a label selector, such as "app in (a,b),!x"`})
		case sel.Empty():
			problems.add(Problem{Path: f.String(), Value: units.Quote(m.Labels), Cause: "selects every pod", Allowed: `a label selector, such as "app in (a,b),!x"`})
		}
	}
	classes := match.field("kubeQoS")
	for i, q := range m.KubeQoS {
		if !q.Valid() {
			item := classes.index(i)
			problems.add(Problem{Path: item.String(), Value: units.Quote(string(q)), Allowed: list(KubeQoSClasses())})
		}
	}
}

func validGlob(g string) bool {
	if g == "" || len(g) > MaxName {
		return false
	}
	for i := range len(g) {
		c := g[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '*' && c != '?' {
			return false
		}
	}
	return true
}

func (p TierPolicy) validate(at *path, t Tier, problems *Problems) {
	cpu, memory, io := at.field("cpu"), at.field("memory"), at.field("io")
	if p.CPU.Idle != nil && *p.CPU.Idle && t != BE {
		f := cpu.field("idle")
		problems.add(Problem{Path: f.String(), Value: "true", Allowed: "false; only BE gives way whenever anything else runs"})
	}
	switch b := p.CPU.Burst; {
	case b == "":
	case !b.Valid():
		f := cpu.field("burst")
		problems.add(Problem{Path: f.String(), Value: units.Quote(string(b)), Allowed: list(Bursts())})
	case b == BurstLimit && t != LS:
		f := cpu.field("burst")
		problems.add(Problem{Path: f.String(), Value: units.Quote(string(b)), Allowed: "off; only LS bursts"})
	}
	p.CPU.validatePlacement(&cpu, t, problems)
	if l := p.Memory.Low; l != nil {
		f := memory.field("low")
		switch protects := t == LSE || t == LSR || t == LS; {
		case !l.Valid():
			problems.add(Problem{Path: f.String(), Value: strconv.Itoa(int(*l)), Allowed: percentAllowed})
		case *l > 0 && !protects:
			problems.add(Problem{Path: f.String(), Value: units.Quote(l.String()), Allowed: `"0%"; only LSE, LSR and LS protect their memory`})
		}
	}
	if h := p.Memory.High; h != nil {
		f := memory.field("high")
		switch {
		case t != BE:
			problems.add(Problem{Path: f.String(), Value: units.Quote(h.String()), Allowed: "no value; only BE has a batch-memory limit to take a percentage of"})
		case !h.Valid() || *h == 0:
			problems.add(Problem{Path: f.String(), Value: units.Quote(h.String()), Allowed: highAllowed})
		}
	}
	if o := p.OOMScoreAdj; o != nil && (*o < MinOOMScoreAdj || *o > MaxOOMScoreAdj) {
		f := at.field("oomScoreAdj")
		problems.add(Problem{Path: f.String(), Value: strconv.FormatInt(*o, 10), Allowed: fmt.Sprintf("%d to %d", MinOOMScoreAdj, MaxOOMScoreAdj)})
	}
	switch o := p.OnError; {
	case o == "":
	case !o.Valid():
		f := at.field("onError")
		problems.add(Problem{Path: f.String(), Value: units.Quote(string(o)), Allowed: list(OnErrors())})
	case o == Refuse && !t.Exclusive():
		f := at.field("onError")
		problems.add(Problem{Path: f.String(), Value: units.Quote(string(o)), Allowed: "pass; only LSE and LSR can be refused"})
	}
	p.Resctrl.validate(at, problems)
	validateIO(&io, p.IO.Weight, p.IO.Max, problems)
	switch o := p.IO.Priority; {
	case o == "":
	case !o.Valid():
		f := io.field("priority")
		problems.add(Problem{Path: f.String(), Value: units.Quote(string(o)), Allowed: list(IOPriorities())})
	case o != IOPriorityNone && t != BE:
		f := io.field("priority")
		problems.add(Problem{Path: f.String(), Value: units.Quote(string(o)), Allowed: "none; only BE may lower it"})
	}
}

func (r ResctrlPolicy) validate(at *path, problems *Problems) {
	all := at.field("resctrl")
	for _, part := range []struct {
		key   string
		share *Percent
	}{{"l3", r.L3}, {"l2", r.L2}, {"mb", r.MB}} {
		if part.share != nil && (!part.share.Valid() || *part.share == 0) {
			f := all.field(part.key)
			problems.add(Problem{Path: f.String(), Value: units.Quote(part.share.String()), Allowed: `a whole percentage from "1%" to "100%" ("100%" does not limit)`})
		}
	}
}

// validatePlacement reports what is wrong with the fields that say how a pod is placed.
func (c CPUPolicy) validatePlacement(at *path, t Tier, problems *Problems) {
	bad := func(key, value, allowed string) {
		f := at.field(key)
		problems.add(Problem{Path: f.String(), Value: value, Allowed: allowed})
	}
	const only = "no value; only LSE and LSR are placed on CPUs of their own"
	switch of := map[Tier]Placement{LSE: PlacementCores, LSR: PlacementCPUs}[t]; {
	case c.Placement == "" || c.Placement == PlacementNone || c.Placement == of:
	case of == "":
		bad("placement", units.Quote(string(c.Placement)), "none; only LSE and LSR are placed on CPUs of their own")
	default:
		bad("placement", units.Quote(string(c.Placement)), list([]Placement{of, PlacementNone}))
	}
	switch {
	case c.NUMA == "":
	case !t.Exclusive():
		bad("numa", units.Quote(string(c.NUMA)), only)
	case !c.NUMA.Valid():
		bad("numa", units.Quote(string(c.NUMA)), list(NUMAs()))
	}
	switch {
	case c.SMT == "":
	case t != LSE:
		bad("smt", units.Quote(string(c.SMT)), "no value; only LSE owns whole cores")
	case !c.SMT.Valid():
		bad("smt", units.Quote(string(c.SMT)), list(SMTs()))
	}
	if c.MemoryMigration != nil && *c.MemoryMigration && !t.Exclusive() {
		bad("memoryMigration", "true", "false; only LSE and LSR are placed on CPUs of their own")
	}
}

// highAllowed excludes "0%", which would stop a container at its first page.
const highAllowed = `a whole percentage from "1%" to "100%" ("100%" sets no memory.high)`

func validateIO(at *path, weight *int64, limits []DeviceMax, problems *Problems) {
	if weight != nil && (*weight < MinIOWeight || *weight > MaxIOWeight) {
		f := at.field("weight")
		problems.add(Problem{Path: f.String(), Value: strconv.FormatInt(*weight, 10), Allowed: fmt.Sprintf("%d to %d", MinIOWeight, MaxIOWeight)})
	}
	all := at.field("max")
	if len(limits) > MaxDevices {
		problems.add(Problem{Path: all.String(), Value: strconv.Itoa(len(limits)) + " entries", Allowed: fmt.Sprintf("up to %d", MaxDevices)})
	}
	for i, m := range limits {
		item := all.index(i)
		if !validDevice(m.Device) {
			f := item.field("device")
			problems.add(Problem{Path: f.String(), Value: units.Quote(m.Device), Allowed: `"MAJOR:MINOR", ssd, rotational, all`})
		}
		none := true
		for _, l := range m.limits() {
			none = none && l.value == 0
			if l.value < 0 || l.value > MaxIOLimit {
				f := item.field(l.key)
				problems.add(Problem{Path: f.String(), Value: strconv.FormatInt(l.value, 10), Allowed: fmt.Sprintf("0 (no limit) to %d", int64(MaxIOLimit))})
			}
		}
		if none {
			problems.add(Problem{Path: item.String(), Cause: "limits nothing", Allowed: "at least one of rbps, wbps, riops, wiops"})
		}
	}
}

type ioLimit struct {
	key   string
	value int64
}

func (m DeviceMax) limits() [4]ioLimit {
	return [4]ioLimit{{"rbps", m.RBps}, {"wbps", m.WBps}, {"riops", m.RIOPS}, {"wiops", m.WIOPS}}
}

// Classes of block devices that a DeviceMax may name instead of a number.
const (
	DeviceSSD        = "ssd"
	DeviceRotational = "rotational"
	DeviceAll        = "all"
)

func validDevice(s string) bool {
	switch s {
	case DeviceSSD, DeviceRotational, DeviceAll:
		return true
	}
	major, minor, ok := strings.Cut(s, ":")
	return ok && deviceNumber(major, 1<<12) && deviceNumber(minor, 1<<20)
}

// deviceNumber takes what the kernel prints: no sign, no leading zero. Majors have 12 bits, minors 20.
func deviceNumber(s string, below uint64) bool {
	n, err := strconv.ParseUint(s, 10, 32)
	return err == nil && n < below && (s == "0" || s[0] != '0')
}
