package v1alpha1

import (
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"

	"github.com/tideline-io/tideline/internal/units"
)

// node is a JSON value that keeps what encoding/json drops: the order of keys, duplicates, and how a number is written.
// The values of a document stand in one slice, a container before its members.
type node struct {
	kind kind
	key  string // of a member of an object
	text string // of a string: its value; of a number or a bool: as written
	size int    // how many members it has
	next int    // index of the first node that is not below this one
}

// tree is a document, its root first.
type tree []node

// members yields the indexes of what stands directly in the object or list at i.
func (t tree) members(i int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for j := i + 1; j < t[i].next; j = t[j].next {
			if !yield(j) {
				return
			}
		}
	}
}

// path is the way from the root to node i.
func (t tree) path(i int) *path {
	var p *path
	for at := 0; at != i; {
		j, item := at+1, 0
		for ; t[j].next <= i; j = t[j].next {
			item++
		}
		step := p.field(t[j].key)
		if t[at].kind == isArray {
			step = p.index(item)
		}
		p, at = &step, j
	}
	return p
}

// problem adds a problem of node i. It looks for the path of those only that are shown, since the search takes a time
// that grows with the document.
func (t tree) problem(i int, p Problem, problems *Problems) {
	if len(*problems) < maxProblems {
		p.Path = t.path(i).String()
	}
	problems.add(p)
}

// wrong adds the problem that node i is not of the kind that is allowed.
func (t tree) wrong(i int, allowed string, problems *Problems) {
	n := &t[i]
	shown := n.kind.String()
	if n.kind == isString {
		shown = units.Quote(n.text)
	} else if n.text != "" && n.kind != isNull {
		shown = cut(n.text)
	}
	t.problem(i, Problem{Value: shown, Allowed: allowed}, problems)
}

// cut shortens a number or a boolean as it was written.
func cut(s string) string {
	if len(s) > units.QuoteLimit {
		return s[:units.QuoteLimit] + "..."
	}
	return s
}

type kind byte

const (
	isNull kind = iota
	isBool
	isNumber
	isString
	isArray
	isObject
)

func (k kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "a list", "an object"}[k]
}

// maxDepth is deeper than any document of ours.
const maxDepth = 12

// parseJSON reads one JSON document. What it can't read becomes one problem.
func parseJSON(s string, problems *Problems) (tree, bool) {
	if !utf8.ValidString(s) {
		problems.add(Problem{Cause: "not UTF-8"})
		return nil, false
	}
	r := reader{s: s, nodes: make(tree, 0, 1+strings.Count(s, ":"))}
	if r.value("", 0); r.next() == 0 && r.i == len(s) && !r.bad {
		return r.nodes, true
	}
	if json.Valid([]byte(s)) {
		problems.add(Problem{Cause: fmt.Sprintf("nested more than %d levels deep", maxDepth)})
		return nil, false
	}
	var v any
	problems.add(Problem{Value: units.Quote(s), Cause: fmt.Sprintf("not JSON: %v", json.Unmarshal([]byte(s), &v))})
	return nil, false
}

// reader takes what json.Valid does, but for what is nested too deep. It leaves to encoding/json what escapes, numbers and
// names may look like.
type reader struct {
	s     string
	i     int
	nodes tree
	bad   bool // s can't be read, and what is in nodes means nothing
}

// next skips space and gives the byte behind, 0 at the end.
func (r *reader) next() byte {
	for ; r.i < len(r.s); r.i++ {
		switch c := r.s[r.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

func (r *reader) take(c byte) bool {
	ok := r.next() == c
	if ok {
		r.i++
	}
	return ok
}

func (r *reader) value(key string, depth int) {
	r.bad = r.bad || depth > maxDepth
	if r.bad {
		return
	}
	at := len(r.nodes)
	r.nodes = append(r.nodes, node{key: key})
	switch c := r.next(); c {
	case '{', '[':
		r.i++
		size, end := 0, c+2 // in ASCII the closing one is two after the opening one
		for done := r.take(end); !done; size++ {
			member := ""
			if c == '{' {
				member = r.str()
				r.bad = r.bad || !r.take(':')
			}
			r.value(member, depth+1)
			done = r.take(end)
			if r.bad = r.bad || !done && !r.take(','); r.bad {
				return
			}
		}
		r.nodes[at].kind, r.nodes[at].size = isArray, size
		if c == '{' {
			r.nodes[at].kind = isObject
		}
	case '"':
		r.nodes[at].kind, r.nodes[at].text = isString, r.str()
	default:
		start := r.i
		for r.i < len(r.s) && strings.IndexByte(" \t\r\n,]}", r.s[r.i]) < 0 {
			r.i++
		}
		text := r.s[start:r.i]
		r.bad = !json.Valid([]byte(text))
		r.nodes[at].text = text
		switch c {
		case 'n':
			r.nodes[at].kind = isNull
		case 't', 'f':
			r.nodes[at].kind = isBool
		default:
			r.nodes[at].kind = isNumber
		}
	}
	r.nodes[at].next = len(r.nodes)
}

func (r *reader) str() string {
	if !r.take('"') {
		r.bad = true
		return ""
	}
	start, escaped := r.i, false
	for ; r.i < len(r.s) && r.s[r.i] != '"'; r.i++ {
		switch c := r.s[r.i]; {
		case c == '\\':
			escaped = true
			r.i++
		case c < ' ':
			r.bad = true
		}
	}
	if r.i >= len(r.s) {
		r.bad = true
		return ""
	}
	r.i++
	if !escaped {
		return r.s[start : r.i-1]
	}
	var s string
	if err := json.Unmarshal([]byte(r.s[start-1:r.i]), &s); err != nil {
		r.bad = true
	}
	return s
}
