package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/cpuset"
	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/partition"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
	"github.com/tideline-io/tideline/resctrl"
)

// ResctrlReport is the JSON of `tideline resctrl`. Lists of CPUs are as the kernel writes them: "0-3,8". Fields are only
// ever added.
type ResctrlReport struct {
	APIVersion string                 `json:"apiVersion"` // "tideline.io/v1alpha1"
	Kind       string                 `json:"kind"`       // "ResctrlReport"
	Node       NodeSource             `json:"node"`
	State      resctrlState           `json:"state"`
	Mount      *resctrl.MountPoint    `json:"mount"`     // null while it is not mounted, and so are the next four
	CLOSIDs    *ReportedIDs           `json:"closids"`   // null too where nothing can be allocated
	RMIDs      *ReportedIDs           `json:"rmids"`     // null too where nothing can be monitored
	Resources  []resctrl.ResourceInfo `json:"resources"` // that can be allocated
	Monitors   []resctrl.MonitorInfo  `json:"monitors"`
	Groups     []ReportedResctrlGroup `json:"groups"` // the root group, ours, and others, each by name
	Problems   []string               `json:"problems"`
	aboutPods  string
}

type resctrlState string

const (
	resctrlMounted      resctrlState = "mounted"
	resctrlNotMounted   resctrlState = "notMounted"
	resctrlNotSupported resctrlState = "notSupported"
)

// ReportedIDs says how many of the hardware's classes or monitoring ids are in use, and by whom.
type ReportedIDs struct {
	Total    int `json:"total"`
	Root     int `json:"root"`     // the root group and, of RMIDs, its monitoring groups
	Tideline int `json:"tideline"` // groups whose name begins with "tideline-", and their monitoring groups
	Foreign  int `json:"foreign"`
	IO       int `json:"io,omitempty"` // of CLOSIDs: the one of io_alloc, by which I/O devices fill a cache
}

func (i ReportedIDs) free() int { return max(0, i.Total-i.Root-i.Tideline-i.Foreign-i.IO) }

// groupOwner is who made a group.
type groupOwner string

const (
	ownerRoot     groupOwner = "root"
	ownerTideline groupOwner = "tideline"
	ownerForeign  groupOwner = "foreign"
)

func ownerOf(name string) groupOwner {
	switch {
	case name == "":
		return ownerRoot
	case strings.HasPrefix(name, partition.Prefix):
		return ownerTideline
	}
	return ownerForeign
}

// ReportedResctrlGroup is one control group.
type ReportedResctrlGroup struct {
	Name       string             `json:"name"` // "" of the root group
	Owner      groupOwner         `json:"owner"`
	Mode       resctrl.Mode       `json:"mode"`
	CPUs       string             `json:"cpus"`
	Tasks      int                `json:"tasks"`
	Settings   []ReportedSetting  `json:"settings"`
	MonGroups  []ReportedMonGroup `json:"monGroups"`
	Containers []ReportedMember   `json:"containers"` // whose tasks are in it, null where that is not known
	HostTasks  int                `json:"hostTasks"`  // that are in no container
}

// ReportedMonGroup is a monitoring group of a control group.
type ReportedMonGroup struct {
	Name  string `json:"name"`
	CPUs  string `json:"cpus"`
	Tasks int    `json:"tasks"` // among those of the control group
}

// ReportedSetting is one line of a group's schemata.
type ReportedSetting struct {
	Resource string          `json:"resource"`
	Domains  []ReportedValue `json:"domains,omitempty"`
	Text     string          `json:"text,omitempty"` // of a resource that Tideline does not know
}

// ReportedValue is a setting in one domain: a mask of a cache, an amount of bandwidth.
type ReportedValue struct {
	ID     int           `json:"id"`
	Mask   *resctrl.Mask `json:"mask,omitempty"`
	Bytes  uint64        `json:"bytes,omitempty"` // that the mask comes to
	Amount *uint64       `json:"amount,omitempty"`
}

// ReportedMember is a container, as far as it is known.
type ReportedMember struct {
	ID        string         `json:"id"`
	Namespace string         `json:"namespace,omitempty"` // these four are told by a door
	Pod       string         `json:"pod,omitempty"`
	Name      string         `json:"name,omitempty"`
	Tier      *v1alpha1.Tier `json:"tier,omitempty"`   // "" is no tier
	Tasks     int            `json:"tasks"`            // in this group
	Wanted    *string        `json:"wanted,omitempty"` // the group that it was given, "" for the root group
}

// resctrlHost is what the resctrl commands use of the machine beside its files.
type resctrlHost struct {
	mount    func(resctrl.MountOptions) error
	terminal bool // stdout is one
	now      func() time.Time
	wait     func(context.Context, time.Duration) error
	height   func() int                             // of the terminal, 0 where it is not known
	open     func(resctrl.MountPoint) resctrl.Files // nil: the mounted file system
}

// thisHost is the machine that runs the program.
func thisHost(terminal bool) resctrlHost {
	terminal = terminal && os.Getenv("TERM") != "dumb"
	return resctrlHost{
		mount: resctrl.Mount, terminal: terminal, now: time.Now, height: func() int { return terminalHeight(os.Stdout) },
		wait: func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
				return nil
			}
		},
	}
}

// screen are the flags that all resctrl commands have.
type screen struct {
	nodeFile, output, color string
}

func (s *screen) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&s.output, "output", "o", "text", "text, json or yaml")
	f.StringVar(&s.color, "color", "auto", "auto (on a terminal, unless NO_COLOR is set), always or never")
}

func (s *screen) factsFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.nodeFile, "node-facts", "", `facts of another machine, a file of "tideline snapshot"`)
}

func (s *screen) check() error {
	if !slices.Contains([]string{"text", "json", "yaml"}, s.output) {
		return fmt.Errorf("-o %s: want text, json or yaml", s.output)
	}
	if !slices.Contains([]string{"auto", "always", "never"}, s.color) {
		return fmt.Errorf("--color %s: want auto, always or never", s.color)
	}
	return nil
}

func (c *cli) style(s screen) style {
	return style{width: c.width, color: s.color == "always" || s.color == "auto" && c.color}
}

// writeAs writes v as JSON or YAML.
func writeAs(w io.Writer, output string, v any) error {
	if output == "json" {
		return writeJSON(w, v)
	}
	data, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

func (c *cli) resctrl() *cobra.Command {
	cmd := c.resctrlShow()
	cmd.Use, cmd.Short = "resctrl", "Show how caches and memory bandwidth are shared out on this node"
	show := c.resctrlShow()
	show.Hidden = true // "tideline resctrl" is the same
	cmd.AddCommand(show, c.resctrlTop(), c.resctrlPlan())
	return cmd
}

func (c *cli) resctrlShow() *cobra.Command {
	var s screen
	var mount bool
	var options string
	cmd := &cobra.Command{
		Use: "show", Short: "The same as tideline resctrl",
		Long: `Resctrl shows what this node's kernel can share out of caches and memory bandwidth (Intel RDT, AMD PQoS, MPAM), and how
it is shared out: the ways of each cache as a bitmap and the bandwidth, one row a group, who made the groups, and which tasks,
containers and pods are in them. It changes nothing, but for --mount.

The pods and tiers are told by the door that runs here. Without one, tasks are counted by container. With --node-facts the
machine is that of a "tideline snapshot", which has no containers, and no names of groups but ours.`,
		Example: `  tideline resctrl
  tideline resctrl --mount
  tideline resctrl --mount --mount-options cdp
  tideline resctrl --node-facts node7.snapshot -o yaml
  tideline resctrl top
  tideline resctrl plan --policy policy.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return err
			}
			wanted, err := parseMountOptions(options)
			switch {
			case err != nil:
				return err
			case mount && s.nodeFile != "":
				return errors.New("--mount with --node-facts: only this machine's resctrl can be mounted")
			case options != "" && !mount:
				return errors.New("--mount-options without --mount: nothing is to be mounted")
			case mount:
				if err := c.mountResctrl(wanted); err != nil {
					return err
				}
			}
			r, err := c.reportResctrl(cmd.Context(), s.nodeFile)
			if err != nil {
				return err
			}
			if s.output != "text" {
				return writeAs(c.stdout, s.output, r)
			}
			_, err = io.WriteString(c.stdout, r.text(c.style(s)))
			return err
		},
	}
	c.controlFlag(cmd)
	s.flags(cmd)
	s.factsFlag(cmd)
	cmd.Flags().BoolVar(&mount, "mount", false, "mount resctrl first, if it is not mounted")
	cmd.Flags().StringVar(&options, "mount-options", "", "with --mount: cdp, cdpl2 and mba_MBps, with commas between them")
	return cmd
}

func parseMountOptions(text string) (resctrl.MountOptions, error) {
	var o resctrl.MountOptions
	if text == "" {
		return o, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		switch name {
		case "cdp":
			o.CDP = true
		case "cdpl2":
			o.CDPL2 = true
		case "mba_MBps":
			o.MBps = true
		case "debug":
			o.Debug = true
		default:
			return o, fmt.Errorf("--mount-options %s: want some of cdp, cdpl2, mba_MBps and debug, with commas between them", units.Quote(text))
		}
	}
	return o, nil
}

// mountResctrl mounts resctrl unless it is mounted so, and says on stderr what it did.
func (c *cli) mountResctrl(o resctrl.MountOptions) error {
	with := "no options"
	if text := o.String(); text != "" {
		with = "options " + text
	}
	switch m, err := resctrl.Locate(c.root); {
	case err == nil:
		if err := m.Check(o); err != nil {
			return fmt.Errorf("mount resctrl: %w", err)
		}
		fmt.Fprintf(c.stderr, "resctrl is mounted at %s with %s already; nothing was done\n", m.Point, with)
		return nil
	case !errors.Is(err, resctrl.ErrNotMounted):
		return notSupported(err)
	}
	if err := c.resctrlHost.mount(o); err != nil {
		switch {
		case errors.Is(err, resctrl.ErrNotSupported):
			return notSupported(err)
		case errors.Is(err, syscall.EINVAL):
			return fmt.Errorf("mount resctrl at %s with %s: this kernel or CPU lacks one of them; the kernel's log says which (dmesg)", resctrl.DefaultPoint, with)
		}
		return fmt.Errorf("mount resctrl: %w", err)
	}
	fmt.Fprintf(c.stderr, "mounted resctrl at %s with %s; it stays until the next boot, or: umount %s\n", resctrl.DefaultPoint, with, resctrl.DefaultPoint)
	return nil
}

// notSupported adds to an error of package resctrl what can be looked at.
func notSupported(err error) error {
	if !errors.Is(err, resctrl.ErrNotSupported) {
		return err
	}
	return fmt.Errorf("%w\n%s", err, whyNotSupported)
}

const whyNotSupported = `The CPU needs one of cat_l3, cat_l2, mba, cqm_occup_llc or cqm_mbm_total (grep them in /proc/cpuinfo), the kernel
CONFIG_X86_CPU_RESCTRL or, on arm64, CONFIG_ARM64_MPAM, and no rdt= on its command line that turns it off. Most virtual machines
do not have it.`

// resctrlOf finds the resctrl of a machine, and says why there is none to be had.
func (c *cli) resctrlOf(nodeFile string) (NodeSource, *hostfs.Resctrl, error) {
	source := "this machine"
	var f hostfs.Facts
	var err error
	if nodeFile != "" {
		source = nodeFile
		f, err = readNodeFacts(nodeFile)
	} else {
		f, err = hostfs.Open(c.root).ReadFacts()
	}
	if err != nil {
		return NodeSource{}, nil, err
	}
	n := nodeSource(source, f)
	switch r := f.Resctrl; {
	case r != nil && r.Files == nil:
		return n, nil, fmt.Errorf("%s: it was taken by an older tideline, without the resctrl tree; take it again", nodeFile)
	case r != nil:
		if c.resctrlHost.open != nil && nodeFile == "" {
			r.Files = c.resctrlHost.open(r.Mount)
		}
		return n, r, nil
	case nodeFile != "":
		// A snapshot tells by what the kernel registered.
		if need := f.Node.Features[policy.Resctrl].Need; strings.Contains(need, "--mount") {
			return n, nil, resctrl.ErrNotMounted
		}
		return n, nil, resctrl.ErrNotSupported
	}
	_, err = resctrl.Locate(c.root)
	return n, nil, err
}

// reportResctrl reads a machine.
func (c *cli) reportResctrl(ctx context.Context, nodeFile string) (ResctrlReport, error) {
	source, where, err := c.resctrlOf(nodeFile)
	r := ResctrlReport{APIVersion: v1alpha1.APIVersion, Kind: "ResctrlReport", Node: source, Problems: []string{}}
	switch {
	case errors.Is(err, resctrl.ErrNotMounted):
		r.State = resctrlNotMounted
		return r, nil
	case errors.Is(err, resctrl.ErrNotSupported):
		r.State = resctrlNotSupported
		return r, nil
	case err != nil:
		return r, err
	}
	tree, err := readResctrl(*where)
	if err != nil {
		return r, fmt.Errorf("read resctrl at %s: %w", where.Mount.Point, err)
	}
	r.State, r.Mount = resctrlMounted, &where.Mount
	r.fill(tree)
	if where.Mount.ReadOnly {
		r.problem("%s is mounted read-only here: nothing can be changed", where.Mount.Point)
	}
	if where.Copy != nil {
		r.aboutPods = "not known: a snapshot does not hold them"
		if n := where.Copy.LeftOut; n > 0 {
			r.problem("the snapshot holds %s less than the node has: they were too many", plural(n, "group", "groups"))
		}
		return r, nil
	}
	r.members(tree, lookUp{root: c.root}, c.askContainers(ctx))
	return r, nil
}

func (r *ResctrlReport) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// resctrlTree is one reading of the tree.
type resctrlTree struct {
	info   resctrl.Info
	groups []readGroup // the root, ours, others
}

type readGroup struct {
	*resctrl.Group
	schemata, sizes resctrl.Schemata
	mode            resctrl.Mode
	cpus            cpuset.CPUSet
	tasks           []int
	count           int // of tasks
	mon             []readGroup
}

// readResctrl reads it all. Groups that go away meanwhile are left out.
func readResctrl(where hostfs.Resctrl) (resctrlTree, error) {
	fs := resctrl.Open(where.Files)
	var t resctrlTree
	var err error
	if t.info, err = fs.Info(); err != nil {
		return t, err
	}
	groups, err := fs.Groups()
	if err != nil {
		return t, err
	}
	slices.SortStableFunc(groups, func(a, b *resctrl.Group) int {
		return rankOf(a.Name()) - rankOf(b.Name())
	})
	for _, g := range append([]*resctrl.Group{fs.Root()}, groups...) {
		read, err := readOneGroup(g, where)
		switch {
		case errors.Is(err, resctrl.ErrGone) && g.Name() != "":
		case err != nil:
			return t, err
		default:
			t.groups = append(t.groups, read)
		}
	}
	return t, nil
}

// rankOf puts our groups before those of others.
func rankOf(name string) int {
	if ownerOf(name) == ownerForeign {
		return 1
	}
	return 0
}

func readOneGroup(g *resctrl.Group, where hostfs.Resctrl) (readGroup, error) {
	r := readGroup{Group: g}
	err := r.common(where)
	if err != nil {
		return r, err
	}
	if r.schemata, err = g.Schemata(); err != nil {
		return r, err
	}
	if r.sizes, err = g.Sizes(); err != nil && !errors.Is(err, resctrl.ErrGone) { // kernels before 4.12 have no sizes
		return r, err
	}
	if r.mode, err = g.Mode(); err != nil && !errors.Is(err, resctrl.ErrGone) {
		return r, err
	}
	groups, err := g.MonGroups()
	if err != nil {
		return r, err
	}
	for _, m := range groups {
		mon := readGroup{Group: m}
		switch err := mon.common(where); {
		case errors.Is(err, resctrl.ErrGone):
		case err != nil:
			return r, err
		default:
			r.mon = append(r.mon, mon)
		}
	}
	return r, nil
}

func (r *readGroup) common(where hostfs.Resctrl) (err error) {
	if r.tasks, err = r.Tasks(); err != nil {
		return err
	}
	r.count = len(r.tasks)
	if where.Copy != nil {
		r.count = where.Copy.Tasks[r.Path()]
	}
	cpus, err := r.CPUs()
	r.cpus = cpuset.New(cpus...)
	return err
}

// fill takes over what the tree has.
func (r *ResctrlReport) fill(t resctrlTree) {
	r.Resources, r.Monitors, r.Groups = t.info.Resources, t.info.Monitors, []ReportedResctrlGroup{}
	if r.Resources == nil {
		r.Resources = []resctrl.ResourceInfo{}
	}
	if r.Monitors == nil {
		r.Monitors = []resctrl.MonitorInfo{}
	}
	closids, rmids := ReportedIDs{Total: t.info.NumCLOSIDs()}, ReportedIDs{Total: t.info.NumRMIDs()}
	if slices.ContainsFunc(t.info.Resources, func(x resctrl.ResourceInfo) bool { return x.Cache != nil && x.Cache.IOAlloc == "enabled" }) {
		closids.IO = 1
	}
	for _, g := range t.groups {
		owner := ownerOf(g.Name())
		closids.add(owner, 1)
		rmids.add(owner, 1+len(g.mon))
		out := ReportedResctrlGroup{
			Name: g.Name(), Owner: owner, Mode: g.mode, CPUs: units.FormatCPUs(g.cpus), Tasks: g.count, Settings: settings(g.schemata, g.sizes), MonGroups: []ReportedMonGroup{},
		}
		for _, m := range g.mon {
			out.MonGroups = append(out.MonGroups, ReportedMonGroup{Name: m.Name(), CPUs: units.FormatCPUs(m.cpus), Tasks: m.count})
		}
		r.Groups = append(r.Groups, out)
	}
	if closids.Total > 0 {
		r.CLOSIDs = &closids
	}
	if rmids.Total > 0 {
		r.RMIDs = &rmids
	}
}

func (i *ReportedIDs) add(owner groupOwner, n int) {
	switch owner {
	case ownerRoot:
		i.Root += n
	case ownerTideline:
		i.Tideline += n
	default:
		i.Foreign += n
	}
}

func settings(s, sizes resctrl.Schemata) []ReportedSetting {
	out := []ReportedSetting{}
	for _, l := range s {
		set := ReportedSetting{Resource: l.Resource, Text: l.Text}
		for _, d := range l.Domains {
			v := ReportedValue{ID: d.ID}
			if resctrl.KindOf(l.Resource) == resctrl.KindCache {
				mask := d.Mask()
				v.Mask = &mask
				v.Bytes, _ = sizes.Value(l.Resource, d.ID)
			} else {
				v.Amount = &d.Value
			}
			set.Domains = append(set.Domains, v)
		}
		out = append(out, set)
	}
	return out
}

// toldContainers is what a door tells of the containers.
type toldContainers struct {
	byID  map[string]control.Container // nil where none does
	about string
}

func (c *cli) askContainers(ctx context.Context) toldContainers {
	list, err := control.Dial(c.control).Containers(ctx)
	if err != nil {
		return toldContainers{about: "not known: " + err.Error()}
	}
	t := toldContainers{byID: map[string]control.Container{}}
	pods := map[string]bool{}
	for _, c := range list {
		if c.ID != "" {
			t.byID[c.ID] = c
		}
		pods[c.PodUID] = true
	}
	t.about = fmt.Sprintf("%s of %s, as the door has them", plural(len(list), "container", "containers"), plural(len(pods), "pod", "pods"))
	return t
}

// lookUp finds the containers of tasks.
type lookUp struct {
	root   string
	looked int
}

// maxLooked bounds how many tasks are looked at, a file each.
const maxLooked = 50_000

// containerID is a container's ID in the path of a cgroup: "…/cri-containerd-ID.scope", "…/podUID/ID".
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// container is the ID of the container that a task is in, "" for none. It is not ok if the task has ended.
func (l *lookUp) container(task int, known map[string]control.Container) (id string, ok bool) {
	l.looked++
	data, err := os.ReadFile(filepath.Join(l.root, "proc", strconv.Itoa(task), "cgroup"))
	if err != nil {
		return "", false
	}
	return containerOf(string(data), known), true
}

// containerOf finds a container in a file of /proc: one that is known, else the innermost, as nodes may be containers too.
//
//	0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-0123….scope
func containerOf(text string, known map[string]control.Container) string {
	found := ""
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for name := range strings.SplitSeq(parts[2], "/") {
			name = strings.TrimSuffix(name, ".scope")
			for _, candidate := range []string{name, name[strings.LastIndexByte(name, '-')+1:]} {
				if _, is := known[candidate]; is && candidate != "" {
					return candidate
				}
			}
			if id := containerID.FindString(name); id != "" {
				found = id
			}
		}
	}
	return found
}

// members finds the containers behind the tasks.
func (r *ResctrlReport) members(t resctrlTree, l lookUp, told toldContainers) {
	r.aboutPods = told.about
	skipped := 0
	for i := range r.Groups {
		g := &r.Groups[i]
		tasks := map[string]int{}
		for _, id := range t.groups[i].tasks {
			if l.looked >= maxLooked {
				skipped++
				continue
			}
			switch container, ok := l.container(id, told.byID); {
			case !ok:
			case container == "":
				g.HostTasks++
			default:
				tasks[container]++
			}
		}
		g.Containers = []ReportedMember{}
		for _, id := range slices.Sorted(maps.Keys(tasks)) {
			m := ReportedMember{ID: id, Tasks: tasks[id]}
			if c, ok := told.byID[id]; ok {
				m.Namespace, m.Pod, m.Name, m.Tier = c.Namespace, c.Pod, c.Name, &c.Decision.Tier
				m.Wanted = wantedGroup(c)
			}
			g.Containers = append(g.Containers, m)
		}
		slices.SortStableFunc(g.Containers, func(a, b ReportedMember) int {
			return strings.Compare(a.Namespace+"\x00"+a.Pod+"\x00"+a.Name, b.Namespace+"\x00"+b.Pod+"\x00"+b.Name)
		})
	}
	if skipped > 0 {
		r.problem("%d tasks were not looked at: %d are as many as this does", skipped, maxLooked)
	}
	var strays []string
	for _, g := range r.Groups {
		for _, m := range g.Containers {
			// A group of others is the choice of others, and the door leaves it.
			if m.Wanted != nil && *m.Wanted != g.Name && g.Owner != ownerForeign {
				strays = append(strays, fmt.Sprintf("pod %s/%s, container %s: %s in %s, not in %s",
					m.Namespace, m.Pod, m.Name, plural(m.Tasks, "task", "tasks"), groupName(g.Name), groupName(*m.Wanted)))
			}
		}
	}
	const shown = 3
	for _, s := range strays[:min(len(strays), shown)] {
		r.problem("%s", s)
	}
	if n := len(strays) - shown; n > 0 {
		r.problem("and so of %s more", plural(n, "container", "containers"))
	}
}

// wantedGroup is the group that a door decided for a container; nil where it decided none.
func wantedGroup(c control.Container) *string {
	for _, s := range c.Decision.Settings {
		if s.Knob == policy.Resctrl {
			return &s.Value
		}
	}
	return nil
}

// groupName is a group's name for people.
func groupName(name string) string {
	if name == "" {
		return "root"
	}
	return name
}
