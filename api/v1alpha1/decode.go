package v1alpha1

import (
	"reflect"
	"strconv"
	"strings"
)

// decode fills what into points to from node i of t and keeps what that does not name. Unlike encoding/json it minds the
// case of keys, refuses unknown and duplicate keys and null, and goes on after a problem, so that all are found at once.
func decode(t tree, i int, into any, problems *Problems) {
	n := &t[i]
	if n.kind == isNull && i != 0 {
		t.wrong(i, "a value, or leave the key out for its default", problems)
		return
	}
	switch p := into.(type) {
	case *Percent:
		if x, err := ParsePercent(n.text); err == nil && n.kind == isString {
			*p = x
		} else {
			t.wrong(i, percentAllowed, problems)
		}
		return
	case *Burst:
		// YAML 1.1 reads a bare off as false.
		if n.kind == isBool && n.text == "false" {
			*p = BurstOff
			return
		}
	case *LoopMode:
		// YAML 1.1 reads bare on and off as true and false.
		if n.kind == isBool {
			*p = LoopOff
			if n.text == "true" {
				*p = LoopOn
			}
			return
		}
	case *ResourceNames:
		decodeResources(t, i, p, problems)
		return
	case *map[string]ResourceNames:
		decodeMap(t, i, p, problems)
		return
	case *map[string]BatchContainer:
		decodeMap(t, i, p, problems)
		return
	case *map[Tier]TierPolicy:
		decodeMap(t, i, p, problems)
		return
	}
	switch v := reflect.ValueOf(into).Elem(); v.Kind() {
	case reflect.Pointer:
		x := reflect.New(v.Type().Elem())
		before := len(*problems)
		if decode(t, i, x.Interface(), problems); len(*problems) == before {
			v.Set(x)
		}
	case reflect.Bool:
		if n.kind != isBool {
			t.wrong(i, "true or false", problems)
			return
		}
		v.SetBool(n.text == "true")
	case reflect.Int64:
		x, err := strconv.ParseInt(n.text, 10, 64)
		if n.kind != isNumber || err != nil {
			t.wrong(i, "a whole number", problems)
			return
		}
		v.SetInt(x)
	case reflect.String:
		if n.kind != isString {
			t.wrong(i, "text (in quotes, where YAML reads it as something else)", problems)
			return
		}
		v.SetString(n.text)
	case reflect.Slice:
		if n.kind != isArray {
			t.wrong(i, "a list", problems)
			return
		}
		x := reflect.MakeSlice(v.Type(), n.size, n.size)
		item := 0
		for j := range t.members(i) {
			decode(t, j, x.Index(item).Addr().Interface(), problems)
			item++
		}
		v.Set(x)
	case reflect.Struct:
		if n.kind != isObject {
			t.wrong(i, "an object with the keys "+strings.Join(keysOf(v.Type()), ", "), problems)
			return
		}
		repeated := repeats(t, i, problems)
		for j := range t.members(i) {
			if repeated[j] {
				continue
			}
			f, ok := fieldOf(v, t[j].key)
			if !ok {
				t.problem(j, Problem{Cause: "unknown key", Allowed: strings.Join(keysOf(v.Type()), ", ")}, problems)
				continue
			}
			decode(t, j, f.Addr().Interface(), problems)
		}
	default:
		t.problem(i, Problem{Cause: "decode knows no " + v.Type().String()}, problems)
	}
}

func decodeMap[K ~string, V any](t tree, i int, p *map[K]V, problems *Problems) {
	if t[i].kind != isObject {
		t.wrong(i, "an object", problems)
		return
	}
	if *p == nil {
		*p = make(map[K]V, t[i].size)
	}
	repeated := repeats(t, i, problems)
	for j := range t.members(i) {
		if repeated[j] {
			continue
		}
		elem := (*p)[K(t[j].key)]
		decode(t, j, &elem, problems)
		(*p)[K(t[j].key)] = elem
	}
}

// decodeResources reads {"cpu":"500m"}. A bare number is a quantity too, as it is for Kubernetes.
func decodeResources(t tree, i int, p *ResourceNames, problems *Problems) {
	if k := t[i].kind; k != isObject {
		t.problem(i, Problem{Value: k.String(), Allowed: "an object of resource names and quantities"}, problems)
		return
	}
	out := make(ResourceNames, t[i].size)
	repeated := repeats(t, i, problems)
	for j := range t.members(i) {
		if repeated[j] {
			continue
		}
		if k := t[j].kind; k != isString && k != isNumber {
			t.problem(j, Problem{Value: k.String(), Allowed: `a quantity, such as "500m" or "1Gi"`}, problems)
			continue
		}
		out[t[j].key] = t[j].text
	}
	*p = out
}

// repeats reports and returns the members of the object at i whose key stood before already; nil if there are none.
func repeats(t tree, i int, problems *Problems) map[int]bool {
	var found map[int]bool
	report := func(j int) {
		if found == nil {
			found = map[int]bool{}
		}
		found[j] = true
		t.problem(j, Problem{Cause: "duplicate key"}, problems)
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
