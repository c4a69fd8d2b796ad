package resctrl

import (
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Info is what the kernel says about this machine in info/ and by the domains of the root group's schemata. Files that
// a kernel doesn't have leave their zero value.
type Info struct {
	Resources []ResourceInfo `json:"resources,omitempty"` // what can be allocated, by name
	Monitors  []MonitorInfo  `json:"monitors,omitempty"`  // what can be monitored, by name
}

// ResourceInfo is a resource that can be allocated. Under CDP the halves of a cache (L3CODE, L3DATA) are two resources.
type ResourceInfo struct {
	Name       string         `json:"name"`
	NumCLOSIDs int            `json:"numCLOSIDs"`          // the root group's is among them
	Domains    []int          `json:"domains,omitempty"`   // IDs that are online, with gaps
	Cache      *CacheInfo     `json:"cache,omitempty"`     // of a resource that has a cbm_mask
	Bandwidth  *BandwidthInfo `json:"bandwidth,omitempty"` // of a resource that has a bandwidth_gran
}

// CacheInfo is what masks of a cache must be like.
type CacheInfo struct {
	Mask      Mask       `json:"mask"`              // all bits that there are
	MinBits   int        `json:"minBits"`           // AMD: 0, the empty mask is allowed
	Shareable Mask       `json:"shareable"`         // bits that other hardware (I/O) fills too
	Sparse    bool       `json:"sparse"`            // masks may have holes; false too where the kernel (before 6.7) doesn't say
	Usage     []BitUsage `json:"usage,omitempty"`   // by domain
	IOAlloc   string     `json:"ioAlloc,omitempty"` // io_alloc: "enabled", "disabled", "not supported"
	IOMasks   string     `json:"ioMasks,omitempty"` // io_alloc_cbm, as it is
}

// BandwidthInfo is what amounts of a bandwidth resource must be like.
type BandwidthInfo struct {
	Unit         BandwidthUnit `json:"unit"`
	Min          uint64        `json:"min"`
	Max          uint64        `json:"max"`                    // no limit
	Gran         uint64        `json:"gran"`                   // the kernel rounds up to multiples of it
	Linear       bool          `json:"linear"`                 // the delay grows evenly
	ThrottleMode string        `json:"throttleMode,omitempty"` // "max": SMT siblings suffer the slower one's throttle; "per-thread"
}

// BandwidthUnit is what an amount counts.
type BandwidthUnit string

const (
	Percent BandwidthUnit = "percent" // of what the memory can do, by throttling; Intel, MPAM
	MBps    BandwidthUnit = "MBps"    // MB/s, kept by the kernel's own loop (mount option mba_MBps)
	Eighth  BandwidthUnit = "1/8GBps" // units of 1/8 GB/s; AMD
)

// MonitorInfo is a resource that can be monitored.
type MonitorInfo struct {
	Name      string   `json:"name"`     // "L3_MON"
	Features  []string `json:"features"` // events: llc_occupancy, mbm_total_bytes, mbm_local_bytes and others
	NumRMIDs  int      `json:"numRMIDs"` // the root group's is among them
	Threshold uint64   `json:"threshold"`

	// Assignable counters, where there are fewer counters than RMIDs.
	AssignMode  string   `json:"assignMode,omitempty"`  // "mbm_event" or "default"
	AssignModes []string `json:"assignModes,omitempty"` // what could be chosen
	Counters    []Domain `json:"counters,omitempty"`    // how many there are, by domain
	Available   []Domain `json:"available,omitempty"`   // how many of them are free
	OnMkdir     *bool    `json:"onMkdir,omitempty"`     // a new group is given counters
}

// BitUsage is who uses the bits of a cache in one domain, a letter a bit, from the highest.
type BitUsage struct {
	ID      int    `json:"id"`
	Letters string `json:"letters"`
}

// Letters of BitUsage.
const (
	BitUnused    = '0'
	BitShared    = 'S' // used by groups
	BitExclusive = 'E' // used by an exclusive group
	BitHardware  = 'H' // used by other hardware
	BitBoth      = 'X' // used by other hardware and by groups
	BitLocked    = 'P' // pseudo-locked
)

// Mask has the bits of a letter.
func (u BitUsage) Mask(letter byte) Mask {
	var m Mask
	for i := range len(u.Letters) {
		if u.Letters[i] == letter {
			m |= Ways(len(u.Letters)-1-i, 1)
		}
	}
	return m
}

// Resource finds a resource by its name.
func (i Info) Resource(name string) (ResourceInfo, bool) {
	for _, r := range i.Resources {
		if r.Name == name {
			return r, true
		}
	}
	return ResourceInfo{}, false
}

// Monitor finds a monitored resource by its name.
func (i Info) Monitor(name string) (MonitorInfo, bool) {
	for _, m := range i.Monitors {
		if m.Name == name {
			return m, true
		}
	}
	return MonitorInfo{}, false
}

// NumCLOSIDs is how many control groups there can be, the root group among them: the smallest number of all resources. 0
// means that nothing can be allocated.
func (i Info) NumCLOSIDs() int {
	n := 0
	for _, r := range i.Resources {
		if r.NumCLOSIDs > 0 && (n == 0 || r.NumCLOSIDs < n) {
			n = r.NumCLOSIDs
		}
	}
	return n
}

// NumRMIDs is how many groups of both kinds there can be, the root group among them. 0 means that nothing is monitored.
func (i Info) NumRMIDs() int {
	n := 0
	for _, m := range i.Monitors {
		if m.NumRMIDs > 0 && (n == 0 || m.NumRMIDs < n) {
			n = m.NumRMIDs
		}
	}
	return n
}

// CDP tells whether code and data of a cache ("L3") have masks of their own.
func (i Info) CDP(cache string) bool {
	_, ok := i.Resource(cache + "CODE")
	return ok
}

// Info reads what this machine can do.
func (f *FS) Info() (Info, error) {
	var info Info
	names, err := f.readDir("info")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrNotMounted
		}
		return Info{}, err
	}
	root, err := f.Root().Schemata()
	if err != nil {
		return Info{}, err
	}
	for _, e := range names {
		if !e.Dir {
			continue
		}
		r := infoReader{fs: f, dir: "info/" + e.Name}
		if r.has("mon_features") {
			info.Monitors = append(info.Monitors, r.monitor(e.Name))
		} else if r.has("num_closids") {
			line, _ := root.Line(e.Name)
			info.Resources = append(info.Resources, r.resource(e.Name, line.Domains))
		}
		if r.err != nil {
			return Info{}, r.err
		}
	}
	return info, nil
}

// infoReader reads the files of one directory and keeps the first error.
type infoReader struct {
	fs  *FS
	dir string
	err error
}

// text is a file's text, "" where the kernel has no such file.
func (r *infoReader) text(file string) (string, bool) {
	if r.err != nil {
		return "", false
	}
	text, err := r.fs.read(r.dir + "/" + file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if r.err = err; err != nil {
		return "", false
	}
	return text, true
}

func (r *infoReader) has(file string) bool {
	_, ok := r.text(file)
	return ok
}

func (r *infoReader) number(file string, size int) uint64 {
	text, ok := r.text(file)
	if !ok {
		return 0
	}
	n, err := parseNumber(r.dir+"/"+file, text, size)
	r.keep(err)
	return n
}

func (r *infoReader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *infoReader) mask(file string) Mask {
	text, ok := r.text(file)
	if !ok {
		return 0
	}
	m, err := parseMaskFile(r.dir+"/"+file, text)
	r.keep(err)
	return m
}

func (r *infoReader) flag(file string) bool {
	text, ok := r.text(file)
	if !ok {
		return false
	}
	on, err := parseFlag(r.dir+"/"+file, text)
	r.keep(err)
	return on
}

func (r *infoReader) resource(name string, domains []Domain) ResourceInfo {
	info := ResourceInfo{Name: name, NumCLOSIDs: int(r.number("num_closids", 31))}
	for _, d := range domains {
		info.Domains = append(info.Domains, d.ID)
	}
	switch {
	case r.has("cbm_mask"):
		info.Cache = r.cache()
	case r.has("bandwidth_gran"):
		info.Bandwidth = r.bandwidth(domains)
	}
	return info
}

func (r *infoReader) cache() *CacheInfo {
	c := &CacheInfo{
		Mask:      r.mask("cbm_mask"),
		MinBits:   int(r.number("min_cbm_bits", 31)),
		Shareable: r.mask("shareable_bits"),
		Sparse:    r.flag("sparse_masks"),
	}
	if text, ok := r.text("bit_usage"); ok {
		usage, err := ParseBitUsage(text)
		r.keep(err)
		c.Usage = usage
	}
	io, _ := r.text("io_alloc")
	masks, _ := r.text("io_alloc_cbm")
	c.IOAlloc, c.IOMasks = strings.TrimSpace(io), strings.TrimSpace(masks)
	return c
}

// bandwidth tells the unit by the numbers, as no file names it. A percentage has a minimum above 0 and ends at 100; with
// mba_MBps the same files stay and amounts go up to 4294967295, which the root group has unless somebody gave it 100 MB/s
// or less in each domain; AMD counts from 0 to a power of two, with even steps of 1 that it calls not linear.
func (r *infoReader) bandwidth(domains []Domain) *BandwidthInfo {
	b := &BandwidthInfo{
		Unit:   Percent,
		Max:    100,
		Min:    r.number("min_bandwidth", 32),
		Gran:   max(1, r.number("bandwidth_gran", 32)),
		Linear: r.flag("delay_linear"),
	}
	mode, _ := r.text("thread_throttle_mode")
	b.ThrottleMode = strings.TrimSpace(mode)
	var most uint64
	for _, d := range domains {
		most = max(most, d.Value)
	}
	switch {
	case b.Min == 0 && !b.Linear && b.Gran == 1:
		// The root group has the maximum unless somebody lowered it.
		const common = 2048
		b.Unit, b.Max = Eighth, max(most, common)
	case most > 100:
		b.Unit, b.Min, b.Gran, b.Max = MBps, 0, 1, 1<<32-1
	}
	return b
}

func (r *infoReader) monitor(name string) MonitorInfo {
	m := MonitorInfo{
		Name:      name,
		NumRMIDs:  int(r.number("num_rmids", 31)),
		Threshold: r.number("max_threshold_occupancy", 64),
	}
	features, _ := r.text("mon_features")
	m.Features = strings.Fields(features)
	if text, ok := r.text("mbm_assign_mode"); ok {
		var err error
		m.AssignMode, m.AssignModes, err = parseChoice(r.dir+"/mbm_assign_mode", text)
		r.keep(err)
	}
	m.Counters = r.counts("num_mbm_cntrs")
	m.Available = r.counts("available_mbm_cntrs")
	if r.has("mbm_assign_on_mkdir") {
		on := r.flag("mbm_assign_on_mkdir")
		m.OnMkdir = &on
	}
	return m
}

// counts reads a number a domain: "0=32;1=32".
func (r *infoReader) counts(file string) []Domain {
	text, ok := r.text(file)
	if !ok {
		return nil
	}
	domains, err := parseDomains(r.dir+"/"+file, strings.TrimSpace(text), amount)
	r.keep(err)
	return domains
}

func parseNumber(file, text string, size int) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, size)
	if err != nil {
		return 0, &ParseError{file, strings.TrimSpace(text), "a decimal number below 2^" + strconv.Itoa(size)}
	}
	return n, nil
}

func parseMaskFile(file, text string) (Mask, error) {
	m, err := ParseMask(strings.TrimSpace(text))
	if err != nil {
		return 0, &ParseError{file, strings.TrimSpace(text), "a hexadecimal mask"}
	}
	return m, nil
}

func parseFlag(file, text string) (bool, error) {
	switch t := strings.TrimSpace(text); t {
	case "0":
		return false, nil
	case "1":
		return true, nil
	default:
		return false, &ParseError{file, t, "0 or 1"}
	}
}

// parseChoice reads a list with the chosen one in brackets, a line each.
//
//	[mbm_event]
//	default
func parseChoice(file, text string) (chosen string, all []string, err error) {
	for _, word := range strings.Fields(text) {
		if name, ok := strings.CutPrefix(word, "["); ok {
			name, ok = strings.CutSuffix(name, "]")
			if !ok || name == "" || chosen != "" {
				return "", nil, &ParseError{file, word, "one name in brackets"}
			}
			chosen, word = name, name
		}
		all = append(all, word)
	}
	return chosen, all, nil
}

// ParseBitUsage reads info/L3/bit_usage.
//
//	0=XXSSSSSEEEE;1=XXSSSSSSSSS
func ParseBitUsage(text string) ([]BitUsage, error) {
	const file = "bit_usage"
	var usage []BitUsage
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ";") {
		idText, letters, ok := strings.Cut(part, "=")
		id, err := strconv.ParseUint(idText, 10, 31)
		if !ok || err != nil || letters == "" || len(letters) > 64 || strings.Trim(letters, "0SEHXP") != "" {
			return nil, &ParseError{file, part, "DOMAIN=LETTERS, up to 64 of 0SEHXP"}
		}
		if slices.ContainsFunc(usage, func(u BitUsage) bool { return u.ID == int(id) }) {
			return nil, &ParseError{file, part, "each domain once"}
		}
		usage = append(usage, BitUsage{ID: int(id), Letters: letters})
	}
	return usage, nil
}
