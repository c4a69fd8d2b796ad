package cgroup

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tideline-io/tideline/internal/policy"
)

// Path is an absolute cgroup path, the same in all hierarchies: "/kubepods/burstable/podX/ID". Make one with ParsePath or
// Container; a Path made otherwise is checked again before it is used.
type Path string

const (
	maxPath = 4096 // PATH_MAX
	maxName = 255  // NAME_MAX
)

// ParsePath reads a cgroup's name as the kubelet and runtimes write it: an absolute path ("/kubepods/burstable/podX"), a
// systemd slice ("kubepods-burstable-podX.slice") or the OCI form of a systemd unit ("SLICE:PREFIX:NAME"). It
// refuses the root, relative paths, ".", "..", empty components, control characters and what no file system could hold.
func ParsePath(s string) (Path, error) {
	if len(s) > maxPath {
		return "", fmt.Errorf("parse cgroup path of %d bytes: longer than %d", len(s), maxPath)
	}
	expanded := s
	if !strings.HasPrefix(s, "/") {
		var err error
		if expanded, err = expandUnit(s); err != nil {
			return "", fmt.Errorf("parse cgroup path %q: %w", s, err)
		}
	}
	if err := checkPath(expanded); err != nil {
		return "", fmt.Errorf("parse cgroup path %q: %w", s, err)
	}
	return Path(expanded), nil
}

// expandUnit turns a slice name into its path, as systemd nests slices: a-b.slice lies in a.slice.
func expandUnit(s string) (string, error) {
	slice, unit := s, ""
	if parts := strings.Split(s, ":"); len(parts) == 3 {
		slice = parts[0]
		switch {
		case parts[2] == "":
			return "", fmt.Errorf("no unit name")
		case parts[1] == "":
			unit = "/" + parts[2] + ".scope"
		default:
			unit = "/" + parts[1] + "-" + parts[2] + ".scope"
		}
		if strings.Contains(unit[1:], "/") {
			return "", fmt.Errorf("a unit name has no slash")
		}
	}
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || strings.Contains(name, "/") {
		return "", fmt.Errorf("neither an absolute path nor a systemd slice")
	}
	var b strings.Builder
	prefix := ""
	for part := range strings.SplitSeq(name, "-") {
		if part == "" {
			return "", fmt.Errorf("empty part in slice name")
		}
		prefix += part
		b.WriteString("/" + prefix + ".slice")
		// Each level repeats all before it, so a long name grows with its square.
		if b.Len() > maxPath {
			return "", fmt.Errorf("longer than %d bytes", maxPath)
		}
		prefix += "-"
	}
	return b.String() + unit, nil
}

func checkPath(s string) error {
	if len(s) > maxPath {
		return fmt.Errorf("longer than %d bytes", maxPath)
	}
	rest, ok := strings.CutPrefix(s, "/")
	switch {
	case !ok:
		return fmt.Errorf("not absolute")
	case rest == "":
		return fmt.Errorf("the root of the hierarchy")
	case !utf8.ValidString(s):
		return fmt.Errorf("not UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("control character")
	}
	for name := range strings.SplitSeq(rest, "/") {
		switch {
		case name == "":
			return fmt.Errorf("empty component")
		case name == "." || name == "..":
			return fmt.Errorf("component %q", name)
		case len(name) > maxName:
			return fmt.Errorf("component longer than %d bytes", maxName)
		}
	}
	return nil
}

// Level says what a cgroup is to the kubelet, by its name alone: a QoS class (kubepods itself included), a pod, or a
// container, which is a direct child of a pod. It is "" for everything else: groups that a container nests, system
// services, whatever lies outside the kubelet's tree.
func (p Path) Level() policy.Level {
	names := strings.Split(strings.TrimPrefix(string(p), "/"), "/")
	last := len(names) - 1
	for i, name := range names {
		if !isPod(name) {
			continue
		}
		switch i {
		case last:
			return policy.LevelPod
		case last - 1:
			return policy.LevelContainer
		}
		return ""
	}
	name := names[last]
	if name == "kubepods" {
		return policy.LevelClass
	}
	if (name == "burstable" || name == "besteffort") && last > 0 && names[last-1] == "kubepods" {
		return policy.LevelClass
	}
	if base, ok := strings.CutSuffix(name, ".slice"); ok {
		base = strings.TrimSuffix(strings.TrimSuffix(base, "-burstable"), "-besteffort")
		if base == "kubepods" || strings.HasSuffix(base, "-kubepods") {
			return policy.LevelClass
		}
	}
	return ""
}

// isPod knows pod7f… (cgroupfs) and kubepods[-CLASS]-pod7f….slice (systemd; the kubelet turns the dashes of a UID into underscores).
func isPod(name string) bool {
	if base, ok := strings.CutSuffix(name, ".slice"); ok {
		head, pod, found := cutLast(base, "-")
		return found && len(pod) > len("pod") && strings.HasPrefix(pod, "pod") && strings.Contains("-"+head+"-", "-kubepods-")
	}
	return len(name) > len("pod") && strings.HasPrefix(name, "pod")
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// permit is the rule of who owns what. It stands in the writer so that no caller can break it: since Kubernetes 1.36 the
// kubelet publishes the weight of a pod's cgroup as the pod's CPU request, and a class that refuses the kubelet's weight
// (as one with cpu.idle does) stops the upkeep of all classes.
func permit(p Path, k policy.Knob) error {
	if err := checkPath(string(p)); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	level := p.Level()
	switch {
	case k.OfProcess():
		return fmt.Errorf("%w: %s belongs to processes, at creation only", ErrRefused, k)
	case level == "":
		return fmt.Errorf("%w: neither a class, a pod nor a container of the kubelet", ErrRefused)
	case (k == policy.CPUWeight || k == policy.CPUIdle) && level != policy.LevelContainer:
		return fmt.Errorf("%w: CPU weight and idle of a %s are the kubelet's", ErrRefused, level)
	}
	return nil
}
