package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// FuzzReadsAsEncodingJSON holds our reader against encoding/json: the same texts, the same values.
func FuzzReadsAsEncodingJSON(f *testing.F) {
	for _, s := range []string{
		`{"a":{"b":"1","c":[1,-0.5e+3,true,false,null,{}]},"":"\u00e9\ud800\n"}`, " [ ] ", `""`, "0", "", "nul", "01", "1 2", "[1,]", "[,1]", "[1 2]", "[1:2]",
		"[1}", `{"a":1,}`, `{"a",1}`, `{"a"::1}`, `{"a" "b"}`, `{1:2}`, `{"a":1`, `{"\`, `"\`, `"\x"`, `"\u12"`, "\"a\nb\"", `"a`, "[1\x00]", "1\x00", "\x00", "\xff", "1\v",
		`{"a":tru"e"}`, "-", strings.Repeat("[", 12) + strings.Repeat("]", 12), strings.Repeat("[", 13) + "0" + strings.Repeat("]", 13),
		`{"a":` + strings.Repeat("[", 13) + strings.Repeat("]", 13) + `,"a":0}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var problems Problems
		got, ok := parseJSON(s, &problems)
		if good := utf8.ValidString(s) && json.Valid([]byte(s)) && depth(s) <= maxDepth; ok != good || ok != (len(problems) == 0) {
			t.Fatalf("%q: read: %t, want %t; problems: %v", s, ok, good, problems)
		}
		if !ok {
			return
		}
		var want any
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, value(got, 0)); diff != "" {
			t.Fatalf("%q (-encoding/json +ours):\n%s", s, diff)
		}
	})
}

// depth is how many lists and objects the deepest value of a valid document stands in.
func depth(s string) int {
	level, deepest := 0, 0
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return deepest
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			level--
			continue
		}
		deepest = max(deepest, level)
		if _, opens := token.(json.Delim); opens {
			level++
		}
	}
}

// value is node i as encoding/json gives it; of keys that repeat the last one counts.
func value(t tree, i int) any {
	switch n := t[i]; n.kind {
	case isBool:
		return n.text == "true"
	case isNumber:
		return json.Number(n.text)
	case isString:
		return n.text
	case isArray:
		out := []any{}
		for j := range t.members(i) {
			out = append(out, value(t, j))
		}
		return out
	case isObject:
		out := map[string]any{}
		for j := range t.members(i) {
			out[t[j].key] = value(t, j)
		}
		return out
	}
	return nil
}
