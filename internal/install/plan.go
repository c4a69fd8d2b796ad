package install

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/deploy"
	"github.com/tideline-io/tideline/internal/control"
)

// Options is what the operator asks for.
type Options struct {
	Door       Door
	Mode       control.Mode // of the door; "": that of its file, else of the other door's, else observe
	Force      bool         // replace or remove files that somebody has edited
	KeepValues bool         // uninstall without taking kernel values back
}

// planner collects a plan.
type planner struct {
	Plan
	f     Facts
	o     Options
	state *State
	made  map[string]bool // folders
	errs  []error
}

func (p *planner) add(steps ...Step) { p.Steps = append(p.Steps, steps...) }

func (p *planner) run(why string, args ...string) { p.add(Step{Op: Run, Args: args, Why: why}) }

func (p *planner) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

func (p *planner) remember() { p.add(Step{Op: Remember, State: p.state.clone()}) }

func (p *planner) there(name string) bool {
	_, ok := p.f.Texts[name]
	return ok
}

func newPlanner(f Facts, o Options) *planner {
	p := &planner{f: f, o: o, made: map[string]bool{}, state: &State{Version: 1}}
	if f.State != nil {
		p.state = f.State.clone()
	}
	p.state.KubeletUnit = cmp.Or(f.Kubelet.Unit, p.state.KubeletUnit)
	p.state.RuntimeUnit = cmp.Or(f.Runtime.Unit, p.state.RuntimeUnit)
	return p
}

func (p *planner) kubeletUnit() string { return cmp.Or(p.state.KubeletUnit, "kubelet.service") }

func (p *planner) runtimeUnit() string { return cmp.Or(p.state.RuntimeUnit, "containerd.service") }

// kubeletFile is our drop-in of the kubelet, "" where it has no place.
func (p *planner) kubeletFile() string {
	for _, f := range p.state.Files {
		if f.Door == CRI && path.Base(f.Path) == kubeletDropIn {
			return f.Path
		}
	}
	if p.f.Kubelet.ConfigDir == "" {
		return ""
	}
	return path.Join(p.f.Kubelet.ConfigDir, kubeletDropIn)
}

// runtimeFile is our drop-in of the runtime that is there or remembered, "" for none.
func (p *planner) runtimeFile() string {
	for _, f := range p.state.Files {
		if f.Path == crioDropIn || path.Base(f.Path) == tomlDropIn {
			return f.Path
		}
	}
	return ""
}

func shipped(name string) string {
	data, err := deploy.Files.ReadFile(name)
	if err != nil { // it is compiled in
		panic(err)
	}
	return string(data)
}

// defaultPolicy is the built-in policy as a file.
func defaultPolicy() string {
	data, err := yaml.Marshal(v1alpha1.Default())
	if err != nil { // a literal
		panic(err)
	}
	return "# The policy that holds where there is no file. docs/policy.md explains it; what a file leaves out keeps the value shown here.\n" + string(data)
}

// want takes a file into the plan's state and says whether it is to be written.
func (p *planner) want(name string, door Door, text string) (step Step, write bool) {
	cur, there := p.f.Texts[name]
	rec := p.state.file(name)
	file := File{Path: name, Door: door, SHA256: []string{hash(text)}}
	if rec != nil {
		file.Before = rec.Before
	}
	switch {
	case there && cur == text:
		p.state.put(file)
		return Step{}, false
	case there && file.config():
		if rec == nil {
			file.Before = &cur
		}
	case there && (rec == nil || !rec.ours(cur)):
		if !p.o.Force {
			p.errs = append(p.errs, fmt.Errorf("%s is there, and somebody has edited it or made it by hand. Move it away, or replace it with --force; --dry-run --force shows the difference", name))
		}
		file.Before = &cur
	}
	step = Step{Op: Write, Path: name, Text: text, Mode: 0o644}
	if there {
		step.Was = &cur
		file.SHA256 = append(file.SHA256, hash(cur)) // until it is written
	}
	p.state.put(file)
	var missing []string
	for dir := path.Dir(name); dir != "/" && !p.f.Folders[dir]; dir = path.Dir(dir) {
		missing = append(missing, dir)
	}
	slices.Reverse(missing)
	for _, dir := range missing {
		if !slices.Contains(p.state.Folders, dir) {
			p.state.Folders = append(p.state.Folders, dir)
		}
	}
	return step, true
}

var (
	modeFlag = regexp.MustCompile(`--mode[ =](\w+)`)
	argsLine = regexp.MustCompile(`(?m)^TIDELINE_ARGS=.*$`)
)

// modeOf is the mode that an env file starts a door with: enforce, unless it says otherwise; "" without a file.
func modeOf(env string) control.Mode {
	if env == "" {
		return ""
	}
	if m := modeFlag.FindStringSubmatch(argsLine.FindString(env)); m != nil {
		return control.Mode(m[1])
	}
	return control.ModeEnforce
}

// withArg gives TIDELINE_ARGS of an env file another value of a flag.
func withArg(env string, flag *regexp.Regexp, name, value string) string {
	line := argsLine.FindString(env)
	changed := flag.ReplaceAllLiteralString(line, name+" "+value)
	switch {
	case line == "":
		return env + "TIDELINE_ARGS=" + name + " " + value + "\n"
	case !flag.MatchString(line):
		quote := ""
		if text, ok := strings.CutSuffix(line, `"`); ok {
			changed, quote = text, `"`
		}
		changed += " " + name + " " + value + quote
	}
	return strings.Replace(env, line, changed, 1)
}

// enforces says whether a door here was set to enforce.
func (p *planner) enforces() bool {
	for _, d := range []Door{CRI, NRI} {
		if modeOf(p.f.Texts[path.Join(configDir, d.parts().env)]) == control.ModeEnforce {
			return true
		}
	}
	return false
}

// envText is the env file of the door: as it stands where it stands, with the mode that was asked for.
func (p *planner) envText(door Door) (name, text string) {
	parts := door.parts()
	name = path.Join(configDir, parts.env)
	text, there := p.f.Texts[name]
	mode := p.o.Mode
	if !there {
		text = shipped("systemd/" + parts.env)
		if mode == "" {
			mode = modeOf(p.f.Texts[path.Join(configDir, door.other().parts().env)])
		}
		if s := p.f.Runtime.Socket; door == NRI && s != nriSocket {
			text = withArg(text, regexp.MustCompile(`--nri-socket[ =]\S+`), "--nri-socket", s)
		}
	}
	if mode != "" {
		text = withArg(text, modeFlag, "--mode", string(mode))
	}
	return name, text
}

// Install decides what puts a door on the node, in place of the other one where that is there.
func Install(f Facts, o Options) (Plan, error) {
	p := newPlanner(f, o)
	if !o.Door.Valid() {
		return p.Plan, fmt.Errorf("--door %q: want cri or nri", o.Door)
	}
	if o.Mode != "" && o.Mode != control.ModeEnforce && o.Mode != control.ModeObserve {
		return p.Plan, fmt.Errorf("--mode %q: want enforce or observe", o.Mode)
	}
	door, parts := o.Door, o.Door.parts()
	old := door.other()
	if err := p.fits(); err != nil {
		return p.Plan, err
	}
	p.Title = "install the " + string(door) + " door"
	full := f.State == nil || !f.State.Done || f.State.Disabled || f.State.Door != door
	switching := p.adopt(old)
	full = full || switching
	p.state.Door, p.state.Done = door, false

	// What has to be there before the door starts.
	var writes []Step
	put := func(name string, door Door, text string) bool {
		s, write := p.want(name, door, text)
		if write {
			writes = append(writes, s)
		}
		return write
	}
	changed := false
	for _, u := range parts.units {
		changed = put(path.Join(unitDir, u), door, shipped("systemd/"+u)) || changed
	}
	units := changed
	env, envText := p.envText(door)
	cur, there := f.Texts[env]
	p.adoptEnv(door)
	switch rec := p.state.file(env); {
	case there && cur == envText:
	case there && rec != nil && !rec.ours(cur): // the operator's; uninstall leaves it
		writes, changed = append(writes, Step{Op: Write, Path: env, Text: envText, Was: &cur, Mode: 0o644}), true
	default:
		changed = put(env, door, envText) || changed
	}
	if !p.there(policyFile) {
		put(policyFile, "", defaultPolicy())
	}
	var kubelet []Step
	runtime := false
	if door == CRI {
		if s, write := p.want(p.kubeletFile(), CRI, shipped("systemd/kubelet.conf.d/"+kubeletDropIn)); write {
			kubelet = append(kubelet, s)
		}
	} else if name, text := p.runtimeDropIn(); name != "" {
		runtime = put(name, NRI, text) || full
	}
	if len(p.errs) > 0 {
		return p.Plan, errors.Join(p.errs...)
	}

	calm := modeOf(envText) == control.ModeObserve && p.enforces() // values of ours must not stand beside a door that only observes
	p.state.Disabled = p.state.Disabled || calm && f.Answers != No
	if !full && len(writes)+len(kubelet) == 0 {
		p.Title = "the " + string(door) + " door is installed: only check it"
	} else {
		p.remember()
	}
	switch {
	case calm && f.Answers != No:
		p.add(Step{Op: Disable})
	case calm && f.Ran:
		p.note("no door answers, so kernel values of ours stay: run tideline disable when it does, and tideline bypass off then")
	}
	p.add(writes...)
	if full || units {
		p.run("", "systemctl", "daemon-reload")
	}
	if runtime {
		if f.Runtime.Name == "containerd" {
			p.add(Step{Op: CheckNRI, Args: f.Runtime.Dump})
		}
		p.run("containers go on", "systemctl", "restart", p.runtimeUnit())
		p.add(Step{Op: WaitUnit, Unit: p.runtimeUnit()})
	}
	if full || changed {
		p.run("", append([]string{"systemctl", "enable"}, parts.units...)...)
	}
	// One engine a node: the lock of the run directory keeps the new door out until the old one has stopped.
	if switching {
		if old == CRI && p.kubeletBack() {
			p.add(Step{Op: WaitUnit, Unit: p.kubeletUnit()})
		}
		p.stop(old)
	}
	if full || changed {
		for _, u := range parts.units[:len(parts.units)-1] {
			p.run("", "systemctl", "start", u)
		}
		p.run("", "systemctl", "restart", parts.service())
	}
	p.add(Step{Op: WaitDoor, Door: door, QoS: modeOf(envText)})
	if p.state.Disabled {
		p.add(Step{Op: EndBypass})
		p.state.Disabled, p.state.Restored = false, false
	}
	if door == CRI {
		if full || len(kubelet) > 0 {
			p.add(kubelet...)
			p.run("pods go on", "systemctl", "restart", p.kubeletUnit())
		}
		p.add(Step{Op: WaitUnit, Unit: p.kubeletUnit()})
	} else if !runtime {
		p.add(Step{Op: WaitUnit, Unit: p.runtimeUnit()})
	}
	if switching {
		drop := p.runtimeFile()
		if old != NRI {
			drop = ""
		}
		p.removeFiles(func(f File) bool { return f.Door == old })
		p.run("", "systemctl", "daemon-reload")
		if drop != "" {
			p.run("containers go on", "systemctl", "restart", p.runtimeUnit())
			p.add(Step{Op: WaitUnit, Unit: p.runtimeUnit()})
		}
	}
	if len(p.Steps) > 0 && p.Steps[0].Op == Remember {
		p.state.Done = true
		for i := range p.state.Files {
			p.state.Files[i].SHA256 = p.state.Files[i].SHA256[:1]
		}
		p.remember()
	}
	p.Next = next(door, modeOf(envText))
	return p.Plan, nil
}

func next(door Door, mode control.Mode) string {
	text := "See tideline status"
	if door == CRI {
		text = "See tideline check and tideline status"
	}
	text += "; start a labelled pod and see tideline explain pod NAMESPACE/NAME."
	if mode == control.ModeObserve {
		text += fmt.Sprintf(" The door only observes; to let it act: tideline install --door %s --mode enforce.", door)
	}
	return text + " The way back: tideline uninstall."
}

// fits says why the door can't be put on this node, and what to do.
func (p *planner) fits() error {
	f, k := p.f, p.f.Kubelet
	if !f.Systemd {
		return errors.New("this machine was not booted with systemd: install the parts by hand (docs/install-node.md)")
	}
	if program := p.o.Door.parts().program; !f.Programs[program] {
		return fmt.Errorf("%s is not there: put the programs on the node first (docs/install-node.md, step 1)", program)
	}
	if k.Endpoint == criSocket {
		return p.byHand()
	}
	if p.o.Door == NRI {
		return p.fitsNRI()
	}
	switch {
	case !k.Running && p.kubeletFile() == "":
		return errors.New("no kubelet runs here, so it is not known where its drop-ins go: start it first")
	case !k.Running: // ours stopped on the way
	case k.Flag:
		return fmt.Errorf("the kubelet has its runtime by flag --container-runtime-endpoint, which wins over files: take it from the kubelet's command line (kubeadm keeps it in /var/lib/kubelet/kubeadm-flags.env), restart the kubelet, then run this again (docs/install-node.md, step 5, case B)")
	case k.ConfigDir == "":
		return fmt.Errorf("the kubelet runs without --config-dir, so there is no place for a drop-in, and %s is not ours to write. Put KUBELET_EXTRA_ARGS=--config-dir=/etc/kubernetes/kubelet.conf.d into /etc/default/kubelet, make that folder, restart the kubelet, then run this again (docs/install-node.md, step 5, case A); or change the file by hand (case C)", k.Config)
	case f.Runtime.Name == "cri-o" || strings.HasSuffix(k.Endpoint, "/crio.sock"):
		return errors.New("the kubelet's runtime is CRI-O, and behind a proxy it would read container statistics another way: use --door nri")
	case k.From > p.kubeletFile() && k.From != k.Config && strings.HasPrefix(k.From, k.ConfigDir+"/"):
		return fmt.Errorf("%s sets containerRuntimeEndpoint and comes after our %s, so it would win: take the line from it, then run this again", k.From, kubeletDropIn)
	case k.Endpoint != containerd:
		return fmt.Errorf("the kubelet's runtime is at %s (by %s), and the proxy serves %s: this node can't be set up by this command; use --door nri", k.Endpoint, cmp.Or(k.From, "default"), containerd)
	}
	return nil
}

// byHand says that the kubelet was led to the proxy by something that is not ours.
func (p *planner) byHand() error {
	return fmt.Errorf("the kubelet talks to the proxy by %s, which this command does not write: point it back at unix://%s there and restart it, then run this again (docs/install-node.md, \"The way back\")", p.f.Kubelet.From, containerd)
}

func (p *planner) fitsNRI() error {
	r := p.f.Runtime
	const lines = "\n\n  [plugins.\"" + nriPlugin + "\"]\n    disable = false\n\n"
	restart := "restart " + p.runtimeUnit() + ", then run this again"
	switch {
	case r.Name == "":
		return errors.New("neither containerd nor CRI-O runs here: start the runtime first")
	case r.NRI || r.Name == "cri-o" || p.runtimeFile() != "":
		return nil
	case r.Blocked:
		return fmt.Errorf("NRI is among disabled_plugins of containerd, which no drop-in undoes: take %q from disabled_plugins in %s, %s", nriPlugin, r.Config, restart)
	case r.Error != "":
		return fmt.Errorf("it is not known whether containerd has NRI on: %s", r.Error)
	case r.dropInDir() == "":
		return fmt.Errorf("containerd has NRI off, and %s imports no folder for a drop-in. Add to that file by hand:%sor imports = [\"/etc/containerd/conf.d/*.toml\"] at its top; %s", r.Config, lines, restart)
	}
	return nil
}

// runtimeDropIn is the file that turns NRI on, "" where it is on without.
func (p *planner) runtimeDropIn() (name, text string) {
	name = p.runtimeFile()
	switch r := p.f.Runtime; {
	case name == "" && r.NRI:
		return "", ""
	case r.Name == "cri-o":
		return crioDropIn, shipped("crio/" + kubeletDropIn)
	case name == "":
		name = path.Join(r.dropInDir(), tomlDropIn)
	}
	return name, shipped("containerd/" + tomlDropIn)
}

// adopt takes the files of a door that was put here by hand into the state, as ours, and says whether the door is here.
func (p *planner) adopt(d Door) bool {
	names := map[string]string{}
	for _, u := range d.parts().units {
		names[path.Join(unitDir, u)] = shipped("systemd/" + u)
	}
	if name := p.kubeletFile(); d == CRI && name != "" {
		names[name] = shipped("systemd/kubelet.conf.d/" + kubeletDropIn)
	}
	here := false
	for name, text := range names {
		cur, there := p.f.Texts[name]
		rec := p.state.file(name)
		here = here || there || rec != nil
		switch {
		case !there || rec != nil && rec.ours(cur):
		case cur == text || p.o.Force:
			p.state.put(File{Path: name, Door: d, SHA256: []string{hash(cur)}})
		default:
			p.errs = append(p.errs, edited(name))
		}
	}
	if here {
		p.adoptEnv(d)
	}
	return here
}

// adoptEnv takes the env file of a door into the state where it is as shipped, in any mode.
func (p *planner) adoptEnv(d Door) {
	env := path.Join(configDir, d.parts().env)
	cur, there := p.f.Texts[env]
	if there && p.state.file(env) == nil && withArg(cur, modeFlag, "--mode", string(control.ModeObserve)) == shipped("systemd/"+d.parts().env) {
		p.state.put(File{Path: env, Door: d, SHA256: []string{hash(cur)}})
	}
}

func edited(name string) error {
	return fmt.Errorf("%s was edited since it was installed. Look at it, keep what you need elsewhere, then remove it with --force", name)
}

// stop ends a door for good.
func (p *planner) stop(d Door) {
	var units []string
	for _, u := range slices.Backward(d.parts().units) {
		if p.there(path.Join(unitDir, u)) {
			units = append(units, u)
		}
	}
	if len(units) > 0 {
		p.run("", append([]string{"systemctl", "disable", "--now"}, units...)...)
	}
}

// kubeletBack points the kubelet at the runtime again.
func (p *planner) kubeletBack() bool {
	name := p.kubeletFile()
	if p.state.file(name) == nil {
		return false
	}
	p.removeFiles(func(f File) bool { return f.Path == name })
	p.run("pods go on", "systemctl", "restart", p.kubeletUnit())
	return true
}

// removeFiles takes files back and out of the state.
func (p *planner) removeFiles(which func(File) bool) {
	var rest []File
	for _, f := range p.state.Files {
		if !which(f) {
			rest = append(rest, f)
			continue
		}
		cur, there := p.f.Texts[f.Path]
		switch back := f.back(); {
		case !there:
		case f.config() && !f.ours(cur):
			p.note("%s stays: it was edited", f.Path)
		case back != nil && *back == cur:
		case back != nil:
			p.add(Step{Op: Write, Path: f.Path, Text: *back, Was: &cur, Mode: 0o644, Why: "as it was before"})
		default:
			p.add(Step{Op: Remove, Path: f.Path, Was: &cur})
		}
	}
	p.state.Files = rest
}

// ErrNeedsDoor says that values can't be taken back, since no door runs that could.
var ErrNeedsDoor = errors.New("no door answers, so nobody can put kernel values back; they would stay until a reboot")

// Uninstall decides what takes everything back that Install did.
func Uninstall(f Facts, o Options) (Plan, error) {
	p := newPlanner(f, o)
	p.Title = "uninstall"
	if f.State == nil {
		p.Title = "nothing is installed by this command"
		for _, d := range []Door{CRI, NRI} {
			for _, u := range d.parts().units {
				if name := path.Join(unitDir, u); p.there(name) {
					p.note("%s was put there by hand: undo it by hand (docs/install-node.md, \"Undo everything\"), or run tideline install --door %s, which takes it over, and uninstall then", name, d)
				}
			}
		}
		return p.Plan, nil
	}
	if f.Kubelet.Endpoint == criSocket {
		return p.Plan, p.byHand()
	}
	for _, file := range p.state.Files {
		if cur, there := f.Texts[file.Path]; there && !file.config() && !file.ours(cur) && !o.Force {
			p.errs = append(p.errs, edited(file.Path))
		}
	}
	clean := false // no kernel value of ours is left
	p.state.Done = false
	switch {
	case o.KeepValues:
		p.remember()
		p.note("kernel values of ours stay until containers are made anew or the node reboots; %s stays, it holds the old ones", runDir)
	case p.state.Restored && f.Answers == No:
		p.remember()
		clean = true
	case f.Answers == No && f.Ran:
		p.errs = append(p.errs, fmt.Errorf("%w. Start it (systemctl start %s) and run this again, or leave the values with --keep-values", ErrNeedsDoor, p.state.Door.parts().service()))
	case f.Answers == No:
		p.note("no door has run since the boot: there is no kernel value of ours")
		p.remember()
		clean = true
	default:
		p.state.Disabled = true
		p.remember()
		p.add(Step{Op: Disable})
		p.state.Restored = true
		p.remember()
		clean = true
	}
	if len(p.errs) > 0 {
		return Plan{Title: p.Title}, errors.Join(p.errs...)
	}
	var active []string
	if p.kubeletBack() {
		active = append(active, p.kubeletUnit())
	}
	p.stop(CRI)
	p.stop(NRI)
	drop := p.runtimeFile()
	folders := p.state.Folders
	p.removeFiles(func(File) bool { return true })
	for _, dir := range slices.Backward(folders) {
		if f.Folders[dir] {
			p.add(Step{Op: RemoveFolder, Path: dir})
		}
	}
	p.run("", "systemctl", "daemon-reload")
	if drop != "" {
		p.run("containers go on", "systemctl", "restart", p.runtimeUnit())
		active = append(active, p.runtimeUnit())
	}
	if clean {
		p.add(Step{Op: RemoveTree, Path: runDir})
	}
	p.add(Step{Op: Forget})
	for _, u := range active {
		p.add(Step{Op: WaitUnit, Unit: u})
	}
	p.Next = "The programs in /usr/local/bin are yours to remove."
	return p.Plan, nil
}
