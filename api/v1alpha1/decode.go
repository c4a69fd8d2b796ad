package v1alpha1

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/internal/units"
)

// decode fills v, which must be settable, from node i of t and keeps what that does not name. Unlike encoding/json it
// minds the case of keys, refuses unknown and duplicate keys and null, and goes on after a problem, so that all are found
// at once.
func decode(at *path, t tree, i int, v reflect.Value, problems *Problems) {
	n := &t[i]
	wrong := func(allowed string) {
		shown := n.kind.String()
		if n.kind == isString {
			shown = units.Quote(n.text)
		} else if n.text != "" && n.kind != isNull {
			shown = cut(n.text)
		}
		problems.add(Problem{Path: at.String(), Value: shown, Allowed: allowed})
	}
	if n.kind == isNull && at != nil {
		wrong("a value, or leave the key out for its default")
		return
	}
	switch p := v.Addr().Interface().(type) {
	case *Percent:
		if x, err := ParsePercent(n.text); err == nil && n.kind == isString {
			*p = x
		} else {
			wrong(percentAllowed)
		}
		return
	case *Burst:
		// YAML 1.1 reads a bare off as false.
		if n.kind == isBool && n.text == "false" {
			*p = BurstOff
			return
		}
	case *ResourceNames:
		decodeResources(at, t, i, p, problems)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		x := reflect.New(v.Type().Elem())
		before := len(*problems)
		if decode(at, t, i, x.Elem(), problems); len(*problems) == before {
			v.Set(x)
		}
	case reflect.Bool:
		if n.kind != isBool {
			wrong("true or false")
			return
		}
		v.SetBool(n.text == "true")
	case reflect.Int64:
		x, err := strconv.ParseInt(n.text, 10, 64)
		if n.kind != isNumber || err != nil {
			wrong("a whole number")
			return
		}
		v.SetInt(x)
	case reflect.String:
		if n.kind != isString {
			wrong("text (in quotes, where YAML reads it as something else)")
			return
		}
		v.SetString(n.text)
	case reflect.Slice:
		if n.kind != isArray {
			wrong("a list")
			return
		}
		x := reflect.MakeSlice(v.Type(), n.size, n.size)
		item := 0
		for j := range t.members(i) {
			child := at.index(item)
			decode(&child, t, j, x.Index(item), problems)
			item++
		}
		v.Set(x)
	case reflect.Map:
		if n.kind != isObject {
			wrong("an object")
			return
		}
		if v.IsNil() {
			v.Set(reflect.MakeMapWithSize(v.Type(), n.size))
		}
		repeated := repeats(at, t, i, problems)
		for j := range t.members(i) {
			if repeated[j] {
				continue
			}
			key := t[j].key
			child := at.field(key)
			k := reflect.ValueOf(key).Convert(v.Type().Key())
			elem := reflect.New(v.Type().Elem()).Elem()
			if old := v.MapIndex(k); old.IsValid() {
				elem.Set(old)
			}
			decode(&child, t, j, elem, problems)
			v.SetMapIndex(k, elem)
		}
	case reflect.Struct:
		if n.kind != isObject {
			wrong("an object with the keys " + strings.Join(keysOf(v.Type()), ", "))
			return
		}
		repeated := repeats(at, t, i, problems)
		for j := range t.members(i) {
			if repeated[j] {
				continue
			}
			key := t[j].key
			child := at.field(key)
			f, ok := fieldOf(v, key)
			if !ok {
				problems.add(Problem{Path: child.String(), Cause: "unknown key", Allowed: strings.Join(keysOf(v.Type()), ", ")})
				continue
			}
			decode(&child, t, j, f, problems)
		}
	}
}

// decodeResources reads {"cpu":"500m"}. A bare number is a quantity too, as it is for Kubernetes.
func decodeResources(at *path, t tree, i int, p *ResourceNames, problems *Problems) {
	if k := t[i].kind; k != isObject {
		problems.add(Problem{Path: at.String(), Value: k.String(), Allowed: "an object of resource names and quantities"})
		return
	}
	out := make(ResourceNames, t[i].size)
	repeated := repeats(at, t, i, problems)
	for j := range t.members(i) {
		if repeated[j] {
			continue
		}
		if k := t[j].kind; k != isString && k != isNumber {
			child := at.field(t[j].key)
			problems.add(Problem{Path: child.String(), Value: k.String(), Allowed: `a quantity, such as "500m" or "1Gi"`})
			continue
		}
		out[t[j].key] = t[j].text
	}
	*p = out
}

// repeats reports and returns the members of the object at i whose key stood before already; nil if there are none.
func repeats(at *path, t tree, i int, problems *Problems) map[int]bool {
	var found map[int]bool
	report := func(j int) {
		if found == nil {
			found = map[int]bool{}
		}
		found[j] = true
		child := at.field(t[j].key)
		problems.add(Problem{Path: child.String(), Cause: "duplicate key"})
	}
	const small = 16 // up to here comparing costs less than a map; beyond, it would be a hostile document's square
	if t[i].size <= small {
		for j := range t.members(i) {
			for k := range t.members(i) {
				if k == j {
					break
				}
				if t[k].key == t[j].key {
					report(j)
					break
				}
			}
		}
		return found
	}
	seen := make(map[string]bool, t[i].size)
	for j := range t.members(i) {
		if seen[t[j].key] {
			report(j)
		}
		seen[t[j].key] = true
	}
	return found
}

func jsonKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	t := v.Type()
	for i := range t.NumField() {
		if jsonKey(t.Field(i)) == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func keysOf(t reflect.Type) []string {
	keys := make([]string, 0, t.NumField())
	for i := range t.NumField() {
		keys = append(keys, jsonKey(t.Field(i)))
	}
	return keys
}

// cut shortens a number or a boolean as it was written.
func cut(s string) string {
	if len(s) > units.QuoteLimit {
		return s[:units.QuoteLimit] + "..."
	}
	return s
}
