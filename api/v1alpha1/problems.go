package v1alpha1

import (
	"fmt"
	"strings"

	"github.com/tideline-io/tideline/internal/units"
)

// Problem is one thing wrong with a file or an annotation.
type Problem struct {
	Path    string // "spec.tiers.BE.oomScoreAdj"; "" for the whole document
	Value   string // the value found, quoted and cut; "" where there is none to show
	Cause   string // "unknown key"; "" where Allowed says it all
	Allowed string // what is allowed there
}

// Error is one line: path, value, cause and what is allowed.
func (p Problem) Error() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{p.Path, p.Value, p.Cause} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	s := strings.Join(parts, ": ")
	if p.Allowed != "" {
		s += "; allowed: " + p.Allowed
	}
	return s
}

// Problems is every problem of a document, in its order, up to a limit. Functions of this package that parse or validate
// return it as their error.
type Problems []Problem

// maxProblems bounds a message: a document that is wrong throughout is not a list of typos.
const maxProblems = 32

// Error is one problem a line.
func (p Problems) Error() string {
	lines := make([]string, 0, len(p))
	for _, x := range p {
		lines = append(lines, x.Error())
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find each Problem.
func (p Problems) Unwrap() []error {
	errs := make([]error, 0, len(p))
	for _, x := range p {
		errs = append(errs, x)
	}
	return errs
}

func (p *Problems) add(x Problem) {
	switch {
	case len(*p) < maxProblems:
		*p = append(*p, x)
	case len(*p) == maxProblems:
		*p = append(*p, Problem{Cause: fmt.Sprintf("more than %d problems, the rest is not shown", maxProblems)})
	}
}

func (p Problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// list joins the values of an enum for people.
func list[S ~string](values []S) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(v))
	}
	return b.String()
}

// path is the way to a value, rendered only for problems.
type path struct {
	up   *path
	key  string
	item int // used where key is ""
}

func (p *path) String() string {
	if p == nil {
		return ""
	}
	up := p.up.String()
	switch {
	case p.key == "" && p.item >= 0:
		return fmt.Sprintf("%s[%d]", up, p.item)
	case !plain(p.key):
		return up + "[" + units.Quote(p.key) + "]"
	case up == "":
		return p.key
	}
	return up + "." + p.key
}

// field is the path of a key below p. An empty key of a foreign map is told from a list item by item.
func (p *path) field(key string) path { return path{up: p, key: key, item: -1} }

func (p *path) index(i int) path { return path{up: p, item: i} }

func plain(s string) bool {
	if s == "" || len(s) > units.QuoteLimit {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
