package schema_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/internal/schema"
	"github.com/tideline-io/tideline/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the schemas to api/schemas")

// documents are the types that users write, by the name of their schema and example.
var documents = map[string]reflect.Type{
	"policy":          reflect.TypeFor[v1alpha1.QoSPolicy](),
	"requests":        reflect.TypeFor[v1alpha1.Requests](),
	"batch-resources": reflect.TypeFor[v1alpha1.BatchResources](),
	"memory-qos":      reflect.TypeFor[v1alpha1.MemoryQoS](),
	"io-qos":          reflect.TypeFor[v1alpha1.IOQoS](),
	"cpu-placement":   reflect.TypeFor[v1alpha1.CPUPlacement](),
	"resctrl-class":   reflect.TypeFor[v1alpha1.ResctrlClass](),
}

func TestSchemasAreThoseOfTheTypes(t *testing.T) {
	docs, err := schema.ParseComments("../../v1alpha1/types.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, typ := range documents {
		t.Run(name, func(t *testing.T) {
			got, err := schema.Generate(typ, name, docs)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("..", "..", "schemas", name+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s is stale; run this test with -update (-file +types):\n%s", file, diff)
			}
		})
	}
}

func TestNoStraySchemas(t *testing.T) {
	files, err := filepath.Glob("../../schemas/*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(documents) {
		t.Errorf("api/schemas holds %d files, the types make %d", len(files), len(documents))
	}
}

// Every key of a schema must be described: users read schemas in their editor.
func TestEveryPropertyIsDescribed(t *testing.T) {
	docs, err := schema.ParseComments("../../v1alpha1/types.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, typ := range documents {
		text, err := schema.Generate(typ, name, docs)
		if err != nil {
			t.Fatal(err)
		}
		var s map[string]any
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		undescribed(t, name, s)
	}
}

func undescribed(t *testing.T, at string, s map[string]any) {
	t.Helper()
	if properties, ok := s["properties"].(map[string]any); ok {
		for key, p := range properties {
			p := p.(map[string]any)
			if p["description"] == nil {
				t.Errorf("%s.%s has no description: its field in types.go has no comment", at, key)
			}
			undescribed(t, at+"."+key, p)
		}
	}
	for _, k := range []string{"items", "additionalProperties"} {
		if sub, ok := s[k].(map[string]any); ok {
			undescribed(t, at+"."+k, sub)
		}
	}
}
