package resctrltest

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/tideline-io/tideline/resctrl"
)

// staged are values that were parsed and are not applied yet.
type staged map[*resource]map[int]uint64

// storeSchemata parses all lines before it applies any; only amounts under mba_MBps are applied at once.
func (k *Kernel) storeSchemata(g *group, data string) error {
	lines, ok := strings.CutSuffix(data, "\n")
	if !ok {
		return syscall.EINVAL
	}
	k.hush()
	values := staged{}
	for line := range strings.SplitSeq(lines, "\n") {
		name, rest, ok := strings.Cut(line, ":")
		name = trim(name)
		switch {
		case !ok:
			k.say("Missing ':'\n")
			return syscall.EINVAL
		case rest == "":
			k.say("Missing '%s' value\n", name)
			return syscall.EINVAL
		}
		r := k.resource(name)
		if r == nil {
			k.say("Unknown or unsupported resource name '%s'\n", name)
			return syscall.EINVAL
		}
		if err := k.parseLine(g, r, rest, values); err != nil {
			return err
		}
	}
	for r, domains := range values {
		for id, v := range domains {
			g.values[r.name][id] = v
		}
	}
	return nil
}

func (k *Kernel) parseLine(g *group, r *resource, line string, values staged) error {
	for line != "" {
		part, rest, _ := strings.Cut(line, ";")
		line = rest
		idText, value, ok := strings.Cut(part, "=")
		id, err := strconv.ParseUint(strings.TrimPrefix(idText, "+"), 10, 64)
		if !ok || err != nil {
			k.say("Missing '=' or non-numeric domain\n")
			return syscall.EINVAL
		}
		i := slices.IndexFunc(k.on(r.domains), func(d Domain) bool { return uint64(d.ID) == id })
		if i < 0 {
			return syscall.EINVAL
		}
		if err := k.parseValue(g, r, int(id), trim(value), values); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) parseValue(g *group, r *resource, id int, text string, values staged) error {
	if _, twice := values[r][id]; twice {
		k.say("Duplicate domain %d\n", id)
		return syscall.EINVAL
	}
	var v uint64
	var ok bool
	if r.cache != nil {
		v, ok = k.parseMask(g, r, id, text)
	} else {
		v, ok = k.parseAmount(r, text)
	}
	if !ok {
		return syscall.EINVAL
	}
	if r.bw != nil && r.name == "MB" && k.options.MBps {
		g.values[r.name][id] = v
		return nil
	}
	if values[r] == nil {
		values[r] = map[int]uint64{}
	}
	values[r][id] = v
	return nil
}

func (k *Kernel) parseMask(g *group, r *resource, id int, text string) (uint64, bool) {
	digits := strings.TrimPrefix(text, "+")
	if lower := strings.ToLower(digits); strings.HasPrefix(lower, "0x") {
		digits = digits[2:]
	}
	v, err := strconv.ParseUint(digits, 16, 64)
	if err != nil {
		k.say("Non-hex character in the mask %s\n", text)
		return 0, false
	}
	m := resctrl.Mask(v)
	switch {
	case r.cache.MinBits > 0 && m == 0 || m > resctrl.Ways(0, r.cache.Bits):
		k.say("Mask out of range\n")
		return 0, false
	case !r.cache.Sparse && !m.Contiguous():
		k.say("The mask %x has non-consecutive 1-bits\n", v)
		return 0, false
	}
	// The first run has to be long enough, holes allowed or not.
	if runs := m.Runs(); len(runs) > 0 && runs[0].Bits() < r.cache.MinBits {
		k.say("Need at least %d bits in the mask\n", r.cache.MinBits)
		return 0, false
	}
	if k.overlaps(g, r, id, m, true) {
		k.say("Overlaps with exclusive group\n")
		return 0, false
	}
	if g.mode == resctrl.Exclusive && k.overlaps(g, r, id, m, false) {
		k.say("Overlaps with other group\n")
		return 0, false
	}
	return v, true
}

// overlaps tells whether a mask has bits of another group: of an exclusive one only, or of any and the hardware.
func (k *Kernel) overlaps(g *group, r *resource, id int, m resctrl.Mask, exclusive bool) bool {
	if !exclusive && m&r.cache.Shareable != 0 {
		return true
	}
	for _, o := range k.each() {
		if o == g || exclusive && o.mode != resctrl.Exclusive {
			continue
		}
		for _, half := range k.halves(r) {
			if m&resctrl.Mask(o.values[half.name][id]) != 0 {
				return true
			}
		}
	}
	return false
}

func (k *Kernel) parseAmount(r *resource, text string) (uint64, bool) {
	v, err := strconv.ParseUint(strings.TrimPrefix(text, "+"), 10, 32)
	switch {
	case err != nil:
		k.say("Invalid MB value %s\n", text)
		return 0, false
	case k.options.MBps && r.name == "MB":
		return v, true
	case v < r.bw.Min || v > r.bw.Max:
		k.say("MB value %d out of range [%d,%d]\n", v, r.bw.Min, r.bw.Max)
		return 0, false
	}
	return (v + r.bw.Gran - 1) / r.bw.Gran * r.bw.Gran, true
}

func (k *Kernel) storeMode(g *group, data string) error {
	text, ok := strings.CutSuffix(data, "\n")
	if !ok {
		return syscall.EINVAL
	}
	k.hush()
	mode := resctrl.Mode(text)
	switch {
	case mode == g.mode:
		return nil
	case mode == resctrl.Shareable:
		g.mode = mode
		return nil
	case mode == resctrl.Exclusive:
		return k.makeExclusive(g)
	case mode != resctrl.PseudoLockSet:
		k.say("Unknown or unsupported mode\n")
	case g == k.root:
		k.say("Cannot pseudo-lock default group\n")
	case k.options.CDP || k.options.CDPL2:
		k.say("CDP enabled\n")
	default:
		k.say("Pseudo-locking not supported\n")
	}
	return syscall.EINVAL
}

func (k *Kernel) makeExclusive(g *group) error {
	caches := false
	for _, r := range k.resources {
		if r.cache == nil {
			continue
		}
		caches = true
		for _, d := range k.on(r.domains) {
			if k.overlaps(g, r, d.ID, resctrl.Mask(g.values[r.name][d.ID]), false) {
				k.say("Schemata overlaps\n")
				return syscall.EINVAL
			}
		}
	}
	if !caches {
		k.say("Cannot be exclusive without CAT/CDP\n")
		return syscall.EINVAL
	}
	g.mode = resctrl.Exclusive
	return nil
}

func (k *Kernel) storeCPUs(g *group, data string, list bool) error {
	cpus, err := k.parseCPUs(data, list)
	if err != nil {
		k.say("Bad CPU list/mask\n")
		return err
	}
	for c := range cpus {
		if !k.online[c] {
			k.say("Can only assign online CPUs\n")
			return syscall.EINVAL
		}
	}
	if g.parent != nil {
		for c := range cpus {
			if !g.parent.cpus[c] {
				k.say("Can only add CPUs to mongroup that belong to parent\n")
				return syscall.EINVAL
			}
		}
		for _, sibling := range g.parent.mon {
			drop(sibling.cpus, cpus)
		}
		g.cpus = cpus
		return nil
	}
	for c := range g.cpus {
		if cpus[c] {
			continue
		}
		if g == k.root {
			k.say("Can't drop CPUs from default group\n")
			return syscall.EINVAL
		}
	}
	lost := map[int]bool{}
	for c := range g.cpus {
		if !cpus[c] {
			lost[c] = true
			k.root.cpus[c] = true
		}
	}
	for _, o := range k.each() {
		if o != g {
			drop(o.cpus, cpus)
		}
		for _, m := range o.mon {
			drop(m.cpus, cpus)
			if o == g {
				drop(m.cpus, lost)
			}
		}
	}
	g.cpus = cpus
	return nil
}

func drop(from, cpus map[int]bool) {
	for c := range cpus {
		delete(from, c)
	}
}

// parseCPUs reads as bitmap_parse and bitmap_parselist of the kernel do: up to the first end of a line.
func (k *Kernel) parseCPUs(text string, list bool) (map[int]bool, error) {
	text, _, _ = strings.Cut(text, "\n")
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	if list {
		return k.parseListOfCPUs(parts)
	}
	return k.parseMaskOfCPUs(parts)
}

// parseMaskOfCPUs reads words of 32 bits, the last one first.
func (k *Kernel) parseMaskOfCPUs(words []string) (map[int]bool, error) {
	cpus := map[int]bool{}
	for i, w := range slices.Backward(words) {
		first := 32 * (len(words) - 1 - i)
		v, err := strconv.ParseUint(w, 16, 32)
		switch {
		case first >= k.layout.CPUs, errors.Is(err, strconv.ErrRange), len(w) > 8 && err == nil:
			return nil, syscall.EOVERFLOW
		case err != nil:
			return nil, syscall.EINVAL
		case v>>min(32, k.layout.CPUs-first) != 0:
			return nil, syscall.EOVERFLOW
		}
		for c := range 32 {
			if v>>c&1 == 1 {
				cpus[first+c] = true
			}
		}
	}
	return cpus, nil
}

// parseListOfCPUs reads "4", "0-3", "0-7:1/2" (of each two the first), "all" and "N" for the last CPU.
func (k *Kernel) parseListOfCPUs(regions []string) (map[int]bool, error) {
	cpus := map[int]bool{}
	number := func(s string) (int, error) {
		if s == "N" {
			return k.layout.CPUs - 1, nil
		}
		n, err := strconv.ParseUint(s, 10, 32)
		if errors.Is(err, strconv.ErrRange) {
			return 0, syscall.EOVERFLOW
		}
		if err != nil {
			return 0, syscall.EINVAL
		}
		return int(n), nil
	}
	for _, region := range regions {
		span, pattern, patterned := strings.Cut(region, ":")
		from, to, ranged := strings.Cut(span, "-")
		if strings.EqualFold(span, "all") {
			from, to, ranged = "0", "N", true
		}
		if !ranged {
			if patterned {
				return nil, syscall.EINVAL
			}
			to = from
		}
		first, err := number(from)
		if err != nil {
			return nil, err
		}
		last, err := number(to)
		if err != nil {
			return nil, err
		}
		used, size := last+1, last+1
		if patterned {
			a, b, ok := strings.Cut(pattern, "/")
			if !ok {
				return nil, syscall.EINVAL
			}
			if used, err = number(a); err != nil {
				return nil, err
			}
			if size, err = number(b); err != nil {
				return nil, err
			}
		}
		switch {
		case last < first || size == 0 || used > size:
			return nil, syscall.EINVAL
		case last >= k.layout.CPUs:
			return nil, syscall.ERANGE
		}
		for c := first; c <= last; c++ {
			if (c-first)%size < used {
				cpus[c] = true
			}
		}
	}
	return cpus, nil
}
