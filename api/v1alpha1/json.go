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
	if !json.Valid([]byte(s)) {
		var v any
		problems.add(Problem{Value: units.Quote(s), Cause: fmt.Sprintf("not JSON: %v", json.Unmarshal([]byte(s), &v))})
		return nil, false
	}
	r := reader{s: s, nodes: make(tree, 0, 4+strings.Count(s, ":")+strings.Count(s, ","))}
	r.value("", 0)
	if r.deep {
		problems.add(Problem{Cause: fmt.Sprintf("nested more than %d levels deep", maxDepth)})
		return nil, false
	}
	return r.nodes, true
}

// reader walks text that json.Valid has accepted, so it need not check the grammar again.
type reader struct {
	s     string
	i     int
	nodes tree
	deep  bool
}

func (r *reader) next() byte {
	for {
		switch r.s[r.i] {
		case ' ', '\t', '\r', '\n', ',', ':':
			r.i++
		default:
			return r.s[r.i]
		}
	}
}

func (r *reader) value(key string, depth int) {
	if depth > maxDepth {
		r.deep = true
	}
	if r.deep {
		return
	}
	at := len(r.nodes)
	r.nodes = append(r.nodes, node{key: key})
	switch c := r.next(); c {
	case '{', '[':
		size := 0
		for r.i++; !r.deep && r.next() != c+2; size++ { // in ASCII the closing one is two after the opening one
			member := ""
			if c == '{' {
				member = r.str()
			}
			r.value(member, depth+1)
		}
		r.i++
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
		r.nodes[at].text = r.s[start:r.i]
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
	r.next()
	start, escaped := r.i, false
	for r.i++; r.s[r.i] != '"'; r.i++ {
		if r.s[r.i] == '\\' {
			escaped = true
			r.i++
		}
	}
	r.i++
	if !escaped {
		return r.s[start+1 : r.i-1]
	}
	var s string
	if err := json.Unmarshal([]byte(r.s[start:r.i]), &s); err != nil {
		return r.s[start:r.i] // not reached after json.Valid
	}
	return s
}
