// Package schema makes the JSON schemas of the types in api/v1alpha1 from the types themselves: keys and required fields
// from their tags, descriptions from their comments, enums and bounds from what validation uses. It is run by its own test;
// nothing that ships imports it.
//
//	docs, err := schema.ParseComments("../../v1alpha1/types.go")
//	text, err := schema.Generate(reflect.TypeFor[v1alpha1.IOQoS](), "io-qos", docs)
package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

// Object is a JSON schema.
type Object map[string]any

// Comments maps "Type" and "Type.Field" to the comment in the source.
type Comments map[string]string

// ParseComments reads the comments of the types in a Go file.
func ParseComments(file string) (Comments, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("read comments: %w", err)
	}
	c := Comments{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			t := s.(*ast.TypeSpec)
			c[t.Name.Name] = oneLine(g.Doc.Text())
			st, ok := t.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, field := range st.Fields.List {
				for _, n := range field.Names {
					text := oneLine(field.Doc.Text())
					if text == "" {
						text = oneLine(field.Comment.Text())
					}
					c[t.Name.Name+"."+n.Name] = text
				}
			}
		}
	}
	return c, nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Generate writes the schema of t, named as its file.
func Generate(t reflect.Type, name string, docs Comments) ([]byte, error) {
	s := of(t, docs)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["$id"] = "https://tideline.io/schemas/v1alpha1/" + name + ".json"
	s["title"] = t.Name()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		return nil, fmt.Errorf("generate schema %s: %w", name, err)
	}
	return b.Bytes(), nil
}

func of(t reflect.Type, docs Comments) Object {
	if s := special(t); s != nil {
		return describe(s, docs[t.Name()])
	}
	switch t.Kind() {
	case reflect.Pointer:
		return of(t.Elem(), docs)
	case reflect.Bool:
		return Object{"type": "boolean"}
	case reflect.Int64:
		return Object{"type": "integer"}
	case reflect.String:
		return Object{"type": "string"}
	case reflect.Slice:
		return Object{"type": "array", "items": of(t.Elem(), docs)}
	case reflect.Map:
		s := Object{"type": "object", "additionalProperties": of(t.Elem(), docs)}
		if names := special(t.Key()); names != nil {
			s["propertyNames"] = names
		}
		return s
	case reflect.Struct:
		properties, required := Object{}, []string{}
		for i := range t.NumField() {
			f := t.Field(i)
			key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if options == "" {
				required = append(required, key)
			}
			p := of(f.Type, docs)
			where := t.Name() + "." + f.Name
			for k, v := range bounds(where) {
				p[k] = v
			}
			properties[key] = describe(p, docs[where])
		}
		s := describe(Object{"type": "object", "properties": properties, "additionalProperties": false}, docs[t.Name()])
		if len(required) > 0 {
			s["required"] = required
		}
		if t == reflect.TypeFor[v1alpha1.Match]() {
			s["minProperties"] = 1
		}
		return s
	}
	panic("schema: no form for " + t.String()) // a type that v1alpha1 has not; the test of this package finds it
}

func describe(s Object, text string) Object {
	if text != "" {
		s["description"] = text
	}
	return s
}

// special is the schema of types that are not what their kind says; nil for the rest.
func special(t reflect.Type) Object {
	switch t {
	case reflect.TypeFor[v1alpha1.Tier]():
		return Object{"enum": v1alpha1.Tiers()}
	case reflect.TypeFor[v1alpha1.KubeQoS]():
		return Object{"enum": v1alpha1.KubeQoSClasses()}
	case reflect.TypeFor[v1alpha1.IOPriority]():
		return Object{"enum": v1alpha1.IOPriorities()}
	case reflect.TypeFor[v1alpha1.OnError]():
		return Object{"enum": v1alpha1.OnErrors()}
	case reflect.TypeFor[v1alpha1.Burst]():
		return Object{"enum": []any{v1alpha1.BurstLimit, v1alpha1.BurstOff, false}} // YAML 1.1 reads off as false
	case reflect.TypeFor[v1alpha1.Untiered]():
		return Object{"enum": v1alpha1.Untiereds()}
	case reflect.TypeFor[v1alpha1.Placement]():
		return Object{"enum": v1alpha1.Placements()}
	case reflect.TypeFor[v1alpha1.NUMA]():
		return Object{"enum": v1alpha1.NUMAs()}
	case reflect.TypeFor[v1alpha1.SMT]():
		return Object{"enum": v1alpha1.SMTs()}
	case reflect.TypeFor[v1alpha1.Percent]():
		return Object{"type": "string", "pattern": "^(100|[1-9]?[0-9])%$"}
	case reflect.TypeFor[v1alpha1.ResourceNames]():
		return Object{"type": "object", "additionalProperties": Object{"type": []string{"string", "number"}}}
	}
	return nil
}

// bounds is what validation says of a field beyond its type.
func bounds(field string) Object {
	switch field {
	case "QoSPolicy.APIVersion":
		return Object{"const": v1alpha1.APIVersion}
	case "QoSPolicy.Kind":
		return Object{"const": v1alpha1.KindQoSPolicy}
	case "Metadata.Name":
		return Object{"maxLength": v1alpha1.MaxName}
	case "Rule.Name":
		return Object{"minLength": 1, "maxLength": v1alpha1.MaxName}
	case "QoSPolicySpec.ReservedCPUs":
		return Object{"pattern": "^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$"}
	case "QoSPolicySpec.MinSharedCPUs":
		return Object{"minimum": 1, "maximum": v1alpha1.MaxSharedCPUs}
	case "QoSPolicySpec.Rules":
		return Object{"maxItems": v1alpha1.MaxRules}
	case "Match.Namespaces", "Match.Names":
		return Object{"maxItems": v1alpha1.MaxGlobs, "items": Object{"type": "string", "pattern": "^[a-z0-9.*?-]+$", "maxLength": v1alpha1.MaxName}}
	case "TierPolicy.OOMScoreAdj":
		return Object{"minimum": v1alpha1.MinOOMScoreAdj, "maximum": v1alpha1.MaxOOMScoreAdj}
	case "IOPolicy.Weight", "IOQoS.Weight":
		return Object{"minimum": v1alpha1.MinIOWeight, "maximum": v1alpha1.MaxIOWeight}
	case "IOPolicy.Max", "IOQoS.Max":
		return Object{"maxItems": v1alpha1.MaxDevices}
	case "MemoryPolicy.High", "MemoryQoS.High":
		return Object{"pattern": "^(100|[1-9][0-9]?)%$"}
	case "DeviceMax.Device":
		return Object{"pattern": "^(" + v1alpha1.DeviceSSD + "|" + v1alpha1.DeviceRotational + "|" + v1alpha1.DeviceAll + "|[0-9]+:[0-9]+)$"}
	case "DeviceMax.RBps", "DeviceMax.WBps", "DeviceMax.RIOPS", "DeviceMax.WIOPS":
		return Object{"minimum": 0, "maximum": v1alpha1.MaxIOLimit}
	}
	return nil
}
