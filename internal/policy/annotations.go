package policy

import (
	"errors"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

// wishes is what the annotations of a pod ask for, without those that are bad.
type wishes struct {
	requests  *v1alpha1.Requests
	batch     *v1alpha1.BatchResources
	batchKey  string // the annotation that batch came from
	memory    v1alpha1.MemoryQoS
	io        v1alpha1.IOQoS
	placement v1alpha1.CPUPlacement
	class     v1alpha1.Tier // whose resctrl group it wants; None: that of its own tier
	bad       []badAnnotation
}

type badAnnotation struct {
	key     string
	ours    bool
	message string
}

// readWishes reads our annotations, and Koordinator's batch resources where ours are absent. All are read whatever the
// tier, so that a mistake shows even where the value would not matter.
func (p *Policy) readWishes(pod Pod, tier v1alpha1.Tier) wishes {
	var w wishes
	if len(pod.Annotations) == 0 {
		return w
	}
	if s, ok := pod.Annotations[v1alpha1.AnnotationRequests]; ok {
		if r, err := v1alpha1.ParseRequests(s); err != nil {
			w.refuse(v1alpha1.AnnotationRequests, true, problems(err))
		} else {
			w.requests = &r
		}
	}
	key := v1alpha1.AnnotationBatchResources
	s, ours := pod.Annotations[key]
	ok := ours
	if !ok && p.batch {
		key = v1alpha1.AliasKoordinatorBatch
		s, ok = pod.Annotations[key]
	}
	if ok {
		if b, err := v1alpha1.ParseBatchResources(s); err != nil {
			w.refuse(key, ours, problems(err))
		} else {
			w.batch, w.batchKey = &b, key
		}
	}
	if s, ok := pod.Annotations[v1alpha1.AnnotationMemoryQoS]; ok {
		m, err := v1alpha1.ParseMemoryQoS(s)
		if err != nil {
			w.refuse(v1alpha1.AnnotationMemoryQoS, true, problems(err))
		} else if excess := p.memoryExcess(m, tier); excess != "" {
			w.refuse(v1alpha1.AnnotationMemoryQoS, true, excess)
		} else {
			w.memory = m
		}
	}
	if s, ok := pod.Annotations[v1alpha1.AnnotationIOQoS]; ok {
		q, err := v1alpha1.ParseIOQoS(s)
		if err != nil {
			w.refuse(v1alpha1.AnnotationIOQoS, true, problems(err))
		} else if excess := p.ioExcess(q, tier); excess != "" {
			w.refuse(v1alpha1.AnnotationIOQoS, true, excess)
		} else {
			w.io = q
		}
	}
	if s, ok := pod.Annotations[v1alpha1.AnnotationCPUPlacement]; ok {
		c, err := v1alpha1.ParseCPUPlacement(s)
		if err != nil {
			w.refuse(v1alpha1.AnnotationCPUPlacement, true, problems(err))
		} else if excess := p.placementExcess(c, tier); excess != "" {
			w.refuse(v1alpha1.AnnotationCPUPlacement, true, excess)
		} else {
			w.placement = c
		}
	}
	if s, ok := pod.Annotations[v1alpha1.AnnotationResctrlClass]; ok {
		c, err := v1alpha1.ParseResctrlClass(s)
		if err != nil {
			w.refuse(v1alpha1.AnnotationResctrlClass, true, problems(err))
		} else if excess := p.classExcess(c.Tier, tier); excess != "" {
			w.refuse(v1alpha1.AnnotationResctrlClass, true, excess)
		} else {
			w.class = c.Tier
		}
	}
	return w
}

func (w *wishes) refuse(key string, ours bool, message string) {
	w.bad = append(w.bad, badAnnotation{key: key, ours: ours, message: "annotation " + key + ": " + message})
}

// memoryExcess says what m asks beyond what the tier gives; "" for nothing.
func (p *Policy) memoryExcess(m v1alpha1.MemoryQoS, tier v1alpha1.Tier) string {
	var excess []string
	tp := p.tiers[tier]
	if l := m.Low; l != nil {
		most := v1alpha1.Percent(0)
		if tp.Memory.Low != nil {
			most = *tp.Memory.Low
		}
		if *l > most {
			excess = append(excess, `low: "`+l.String()+`" is more than tier `+string(tier)+` gives; allowed: up to "`+most.String()+`"`)
		}
	}
	if h := m.High; h != nil {
		switch most := tp.Memory.High; {
		case most == nil:
			excess = append(excess, `high: "`+h.String()+`" can't be set, tier `+string(tier)+` has no memory.high; allowed: no high`)
		case *h > *most:
			excess = append(excess, `high: "`+h.String()+`" is more than tier `+string(tier)+` gives; allowed: up to "`+most.String()+`"`)
		}
	}
	return strings.Join(excess, "; ")
}

// kernelIOWeight is the weight of a cgroup that nobody has given one.
const kernelIOWeight = 100

// ioExcess says what q asks beyond what the tier gives; "" for nothing. Limits can't be too much: the lower one holds.
func (p *Policy) ioExcess(q v1alpha1.IOQoS, tier v1alpha1.Tier) string {
	if q.Weight == nil {
		return ""
	}
	most := int64(kernelIOWeight)
	if w := p.tiers[tier].IO.Weight; w != nil {
		most = *w
	}
	if *q.Weight <= most {
		return ""
	}
	return "weight: " + strconv.FormatInt(*q.Weight, 10) + " is more than tier " + string(tier) + " gives; allowed: up to " + strconv.FormatInt(most, 10)
}

// problems is the text of a parse error for one line, bounded whatever the annotation holds.
func problems(err error) string {
	const most = 4
	var all v1alpha1.Problems
	if !errors.As(err, &all) {
		return err.Error()
	}
	var b strings.Builder
	for i, x := range all {
		if i == most {
			b.WriteString("; and ")
			b.WriteString(strconv.Itoa(len(all) - most))
			b.WriteString(" more")
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(x.Error())
	}
	return b.String()
}

// who is what a pod is, as far as its own words go.
type who struct {
	tier    v1alpha1.Tier
	source  Source
	notes   []Note
	wishes  wishes
	refusal *Refusal
}

// identify finds the tier, reads the annotations, and looks whether the pod could be placed. A bad annotation is ignored
// whole, and noted. Where the tier is exclusive and its policy refuses what can't be honoured, a pod of our own label with
// a bad annotation is refused, since it would run with other protection than it asked for, and one of a peer's label or a
// rule falls to LS. A pod that could not be placed is refused likewise, and falls to LS too where the policy passes.
func (p *Policy) identify(pod Pod) who {
	var w who
	w.tier, w.source, w.notes = p.Tier(pod)
	if w.tier == v1alpha1.None {
		return w
	}
	w.wishes = p.readWishes(pod, w.tier)
	if w.tier.Exclusive() && p.tiers[w.tier].OnError == v1alpha1.Refuse {
		var first *badAnnotation
		for i := range w.wishes.bad {
			if w.wishes.bad[i].ours {
				first = &w.wishes.bad[i]
				break
			}
		}
		switch {
		case first == nil:
		case p.refuses(w.tier, w.source):
			w.refusal = &Refusal{Key: first.key, Message: first.message + "; tier " + string(w.tier) + " refuses the container rather than run it with other settings than asked (tiers." + string(w.tier) + ".onError)"}
		default:
			w.notes = append(w.notes, Note{
				Code:    NoteBadAnnotation,
				Message: "tier " + string(w.tier) + " from " + w.source.text() + " can't be honoured with a bad annotation " + first.key + ", so the pod is treated as LS",
			})
			w.tier = v1alpha1.LS
			w.wishes = p.readWishes(pod, w.tier)
		}
	}
	if w.tier.Exclusive() && w.refusal == nil && pod.Placed != nil && pod.Placed.Why != "" {
		tier := w.tier
		if p.refuses(tier, w.source) {
			w.refusal = &Refusal{Key: w.source.Key, Message: pod.Placed.Why + "; tier " + string(tier) + " refuses the container rather than run it without CPUs of its own (tiers." + string(tier) + ".onError)"}
		} else {
			w.notes = append(w.notes, Note{Code: NoteUnplaced, Knob: CPUSetCPUs,
				Message: "tier " + string(tier) + " from " + w.source.text() + " can't be honoured, so the pod is treated as LS: " + pod.Placed.Why})
			w.tier = v1alpha1.LS
			w.wishes = p.readWishes(pod, w.tier)
		}
	}
	for _, b := range w.wishes.bad {
		w.notes = append(w.notes, Note{Code: NoteBadAnnotation, Message: b.message + "; ignored"})
	}
	return w
}

func (s Source) text() string {
	if s.Kind == FromRule {
		return "rule " + strconv.Quote(s.Rule)
	}
	return s.Key + "=" + s.Value
}
