package policy

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// Tier says which tier a pod has and why: by our label; without that label by the aliases of peers, in the order
// Koordinator (a label), Volcano, Katalyst (annotations); without those by the first rule that matches. A value of our
// label that names no tier is no tier, whatever the others say: somebody meant something, and guessing is worse than
// leaving the pod as it is. A value of an alias that names no tier is noted and passed over; an empty one is no value.
func (p *Policy) Tier(pod Pod) (v1alpha1.Tier, Source, []Note) {
	if v, ok := pod.Labels[v1alpha1.LabelQoS]; ok {
		if t := v1alpha1.Tier(v); t.Valid() {
			return t, Source{Kind: FromLabel, Key: v1alpha1.LabelQoS, Value: v}, nil
		}
		return v1alpha1.None, Source{Kind: FromNone}, []Note{{
			Code:    NoteBadLabel,
			Message: "label " + v1alpha1.LabelQoS + "=" + units.Quote(v) + " names no tier, so the pod has none; allowed: LSE, LSR, LS, BE, SYSTEM",
		}}
	}
	var notes []Note
	for i := range p.aliases {
		a := &p.aliases[i]
		from, what := pod.Labels, "label "
		if a.annotation {
			from, what = pod.Annotations, "annotation "
		}
		v := from[a.key]
		if v == "" {
			continue
		}
		for _, n := range a.names {
			if n.value == v {
				return n.tier, Source{Kind: FromAlias, Key: a.key, Value: n.value}, notes
			}
		}
		notes = append(notes, Note{
			Code:    NoteBadLabel,
			Message: what + a.key + "=" + units.Quote(v) + " names no tier and is passed over; allowed: " + a.allowed,
		})
	}
	for i := range p.rules {
		if r := &p.rules[i]; r.matches(pod) {
			return r.Tier, Source{Kind: FromRule, Rule: r.Name}, notes
		}
	}
	return v1alpha1.None, Source{Kind: FromNone}, notes
}

// OnError is what to do with a container of the pod when no decision can be had: Refuse only for an LSE or LSR of our own
// label whose tier says so. Peers' labels and rules never refuse a pod.
func (p *Policy) OnError(pod Pod) v1alpha1.OnError {
	t, source, _ := p.Tier(pod)
	if p.refuses(t, source) {
		return v1alpha1.Refuse
	}
	return v1alpha1.Pass
}

func (p *Policy) refuses(t v1alpha1.Tier, source Source) bool {
	return t.Exclusive() && source.Kind == FromLabel && p.tiers[t].OnError == v1alpha1.Refuse
}

func (r *rule) matches(pod Pod) bool {
	m := &r.Match
	return (len(m.Namespaces) == 0 || anyGlob(m.Namespaces, pod.Namespace)) &&
		(len(m.Names) == 0 || anyGlob(m.Names, pod.Name)) &&
		(len(m.KubeQoS) == 0 || slices.Contains(m.KubeQoS, pod.KubeQoS)) &&
		(r.selector == nil || r.selector.Matches(labels.Set(pod.Labels)))
}

// anyGlob matches nothing longer than a name can be, which bounds the work for what a runtime may hand us.
func anyGlob(globs []string, s string) bool {
	if len(s) > v1alpha1.MaxName {
		return false
	}
	for _, g := range globs {
		if glob(g, s) {
			return true
		}
	}
	return false
}

// glob knows '*' for any text and '?' for any byte. It goes back to the last star only, so it takes at most
// len(pattern) * len(s) steps.
func glob(pattern, s string) bool {
	i, j, star, mark := 0, 0, -1, 0
	for j < len(s) {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, mark = i, j
			i++
		case i < len(pattern) && (pattern[i] == '?' || pattern[i] == s[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(pattern) && pattern[i] == '*' {
		i++
	}
	return i == len(pattern)
}
