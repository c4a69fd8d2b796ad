package v1alpha1_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

const head = "apiVersion: tideline.io/v1alpha1\nkind: QoSPolicy\n"

// spec indents a spec under the head of a policy file.
func spec(s string) string {
	var b strings.Builder
	b.WriteString(head + "spec:\n")
	for line := range strings.Lines(s) {
		b.WriteString("  " + line)
	}
	return b.String()
}

func TestDefaultIsValidAndParsesBack(t *testing.T) {
	want := v1alpha1.Default()
	if err := want.Validate(); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := v1alpha1.ParsePolicy(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got, err = v1alpha1.ParsePolicy([]byte(head)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a file with nothing in it is not the default (-want +got):\n%s", diff)
	}
	for _, tier := range v1alpha1.Tiers() {
		p, ok := got.Spec.Tiers[tier]
		if !ok || p.CPU.Idle == nil || p.CPU.Burst == "" || p.Memory.Low == nil || p.IO.Weight == nil || p.OnError == "" {
			t.Errorf("tier %s is not complete: %+v", tier, p)
		}
	}
}

func TestExamples(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("..", "examples", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	got, err := v1alpha1.ParsePolicy([]byte(read("policy.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v1alpha1.Default(), got); diff != "" {
		t.Errorf("policy.yaml shows other values than the default (-default +example):\n%s", diff)
	}
	// What is commented out in it must parse too.
	uncommented := strings.NewReplacer("  # - ", "  - ", "  #   ", "    ", "        # ", "        ").Replace(read("policy.yaml"))
	got, err = v1alpha1.ParsePolicy([]byte(uncommented))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Spec.Rules) != 3 || len(got.Spec.Tiers[v1alpha1.BE].IO.Max) != 2 {
		t.Errorf("the comments of policy.yaml were not read: %+v", got.Spec)
	}
	_, err1 := v1alpha1.ParseRequests(read("requests.json"))
	_, err2 := v1alpha1.ParseBatchResources(read("batch-resources.json"))
	_, err3 := v1alpha1.ParseMemoryQoS(read("memory-qos.json"))
	_, err4 := v1alpha1.ParseIOQoS(read("io-qos.json"))
	_, err5 := v1alpha1.ParseCPUPlacement(read("cpu-placement.json"))
	_, err6 := v1alpha1.ParseResctrlClass(read("resctrl-class.json"))
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		t.Error(err)
	}
	if files, _ := filepath.Glob("../examples/*"); len(files) != 7 {
		t.Errorf("an example is not tested: %q", files)
	}
}

func TestParseLoops(t *testing.T) {
	for in, want := range map[string]v1alpha1.LoopMode{`{}`: "on", `{reconcile: on}`: "on", `{reconcile: "on"}`: "on", `{reconcile: off}`: "off", `{reconcile: dry-run}`: "dry-run"} {
		if p, err := v1alpha1.ParsePolicy([]byte(spec("loops: " + in))); err != nil || p.Spec.Loops.Reconcile != want {
			t.Errorf("%s: %q, %v; want %q", in, p.Spec.Loops.Reconcile, err, want)
		}
	}
	if _, err := v1alpha1.ParsePolicy([]byte(spec("loops: {reconcile: sometimes}"))); err == nil || err.Error() != `spec.loops.reconcile: "sometimes"; allowed: on, off, dry-run` {
		t.Error(err)
	}
}

func TestParsePolicyMerges(t *testing.T) {
	got, err := v1alpha1.ParsePolicy([]byte(spec(`
aliases: {volcano: false}
rules: []
reservedCPUs: 0-1
tiers:
  LS: {cpu: {burst: off}, memory: {low: 25%}}
  BE: {io: {max: [{device: all, wbps: 1048576}]}}
`)))
	if err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.Default()
	want.Spec.Aliases.Volcano = new(false)
	want.Spec.Rules = []v1alpha1.Rule{}
	want.Spec.ReservedCPUs = "0-1"
	ls := want.Spec.Tiers[v1alpha1.LS]
	ls.CPU.Burst, ls.Memory.Low = v1alpha1.BurstOff, new(v1alpha1.Percent(25))
	want.Spec.Tiers[v1alpha1.LS] = ls
	be := want.Spec.Tiers[v1alpha1.BE]
	be.IO.Max = []v1alpha1.DeviceMax{{Device: "all", WBps: 1 << 20}}
	want.Spec.Tiers[v1alpha1.BE] = be
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(v1alpha1.Default(), mustParse(t, head)); diff != "" {
		t.Errorf("a policy changed the default of the next (-want +got):\n%s", diff)
	}
}

func mustParse(t *testing.T, text string) v1alpha1.QoSPolicy {
	t.Helper()
	p, err := v1alpha1.ParsePolicy([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParsePolicyProblems(t *testing.T) {
	for _, tt := range []struct {
		name, in, want string
	}{
		{"empty file", "", `null; allowed: an object with the keys apiVersion, kind, metadata, spec`},
		{"no policy", "[]", `a list; allowed: an object with the keys apiVersion, kind, metadata, spec`},
		{"no version", "kind: QoSPolicy\n", `apiVersion: ""; allowed: tideline.io/v1alpha1`},
		{"other kind", "apiVersion: tideline.io/v1\nkind: Policy\n", "apiVersion: \"tideline.io/v1\"; allowed: tideline.io/v1alpha1\nkind: \"Policy\"; allowed: QoSPolicy"},
		{"keys of later versions", spec("loops: {suppress: on}\nnodes: []\ntiers:\n  BE: {resctrl: {l4: 30%}}"),
			"spec.loops.suppress: unknown key; allowed: reconcile\n" +
				"spec.nodes: unknown key; allowed: aliases, rules, reservedCPUs, minSharedCPUs, untiered, loops, tiers\n" +
				"spec.tiers.BE.resctrl.l4: unknown key; allowed: l3, l2, mb"},
		{"placement", spec("minSharedCPUs: 0\nuntiered: keep\ntiers:\n  LSE: {cpu: {placement: cpus, numa: one, smt: \"off\"}}\n  LSR: {cpu: {placement: core, smt: use}}\n  LS: {cpu: {placement: cpus, numa: spread, smt: idle, memoryMigration: true}}"),
			"spec.minSharedCPUs: 0; allowed: 1 to 8192\n" +
				"spec.untiered: \"keep\"; allowed: pool, leave\n" +
				"spec.tiers.LSE.cpu.placement: \"cpus\"; allowed: cores, none\n" +
				"spec.tiers.LSE.cpu.numa: \"one\"; allowed: prefer-single, require-single, spread\n" +
				"spec.tiers.LSE.cpu.smt: \"off\"; allowed: idle, use\n" +
				"spec.tiers.LSR.cpu.placement: \"core\"; allowed: cpus, none\n" +
				"spec.tiers.LSR.cpu.smt: \"use\"; allowed: no value; only LSE owns whole cores\n" +
				"spec.tiers.LS.cpu.placement: \"cpus\"; allowed: none; only LSE and LSR are placed on CPUs of their own\n" +
				"spec.tiers.LS.cpu.numa: \"spread\"; allowed: no value; only LSE and LSR are placed on CPUs of their own\n" +
				"spec.tiers.LS.cpu.smt: \"idle\"; allowed: no value; only LSE owns whole cores\n" +
				"spec.tiers.LS.cpu.memoryMigration: true; allowed: false; only LSE and LSR are placed on CPUs of their own"},
		{"case counts", spec("Rules: []"), `spec.Rules: unknown key; allowed: aliases, rules, reservedCPUs, minSharedCPUs, untiered, loops, tiers`},
		{"duplicate keys and more", spec("rules: []\nrules: []\nfoo: 1"),
			"line 5: key \"rules\" is a duplicate key\nspec.foo: unknown key; allowed: aliases, rules, reservedCPUs, minSharedCPUs, untiered, loops, tiers"},
		{"null", spec("rules:"), `spec.rules: null; allowed: a value, or leave the key out for its default`},
		{"types", spec("aliases: {volcano: 1}\nreservedCPUs: 3\ntiers: {BE: {oomScoreAdj: 1.5, memory: {high: 0.9}, io: {weight: \"10\"}}}"),
			"spec.aliases.volcano: 1; allowed: true or false\n" +
				"spec.reservedCPUs: 3; allowed: text (in quotes, where YAML reads it as something else)\n" +
				"spec.tiers.BE.io.weight: \"10\"; allowed: a whole number\n" +
				"spec.tiers.BE.memory.high: 0.9; allowed: a whole percentage from \"0%\" to \"100%\"\n" +
				"spec.tiers.BE.oomScoreAdj: 1.5; allowed: a whole number"},
		{"ranges", spec("reservedCPUs: 0-9999\ntiers: {BE: {oomScoreAdj: 1001, memory: {high: 0%}, io: {weight: 0, max: [{device: sda, rbps: -1}, {device: \"08:0\"}]}}}"),
			"spec.reservedCPUs: \"0-9999\"; allowed: a CPU list such as \"0-1,8\", up to CPU 8191\n" +
				"spec.tiers.BE.memory.high: \"0%\"; allowed: a whole percentage from \"1%\" to \"100%\" (\"100%\" sets no memory.high)\n" +
				"spec.tiers.BE.oomScoreAdj: 1001; allowed: -1000 to 1000\n" +
				"spec.tiers.BE.io.weight: 0; allowed: 1 to 1000\n" +
				"spec.tiers.BE.io.max[0].device: \"sda\"; allowed: \"MAJOR:MINOR\", ssd, rotational, all\n" +
				"spec.tiers.BE.io.max[0].rbps: -1; allowed: 0 (no limit) to 1125899906842624\n" +
				"spec.tiers.BE.io.max[1].device: \"08:0\"; allowed: \"MAJOR:MINOR\", ssd, rotational, all\n" +
				"spec.tiers.BE.io.max[1]: limits nothing; allowed: at least one of rbps, wbps, riops, wiops"},
		{"what a tier can't be", spec("tiers: {LS: {cpu: {idle: true}, memory: {high: 90%}, io: {priority: idle}, onError: refuse}, BE: {cpu: {burst: limit}, memory: {low: 1%}, io: {priority: realtime}}, SYSTEM: {io: {priority: none}}, XX: {}, LSE: {onError: maybe, cpu: {burst: all}}}"),
			"spec.tiers.XX: unknown tier; allowed: LSE, LSR, LS, BE, SYSTEM\n" +
				"spec.tiers.LSE.cpu.burst: \"all\"; allowed: limit, off\n" +
				"spec.tiers.LSE.onError: \"maybe\"; allowed: refuse, pass\n" +
				"spec.tiers.LS.cpu.idle: true; allowed: false; only BE gives way whenever anything else runs\n" +
				"spec.tiers.LS.memory.high: \"90%\"; allowed: no value; only BE has a batch-memory limit to take a percentage of\n" +
				"spec.tiers.LS.onError: \"refuse\"; allowed: pass; only LSE and LSR can be refused\n" +
				"spec.tiers.LS.io.priority: \"idle\"; allowed: none; only BE may lower it\n" +
				"spec.tiers.BE.cpu.burst: \"limit\"; allowed: off; only LS bursts\n" +
				"spec.tiers.BE.memory.low: \"1%\"; allowed: \"0%\"; only LSE, LSR and LS protect their memory\n" +
				"spec.tiers.BE.io.priority: \"realtime\"; allowed: none, best-effort:7, idle"},
		{"rules", spec("rules:\n- {match: {namespaces: [A]}, tier: LS}\n- {name: a, tier: BEE}\n- {name: a, match: {labels: \"a in\", kubeQoS: [Best]}, tier: BE}\n- {name: b, match: {labels: \" \"}, tier: BE}"),
			"spec.rules[0].name: \"\"; allowed: 1 to 253 bytes\n" +
				"spec.rules[0].match.namespaces[0]: \"A\"; allowed: lower-case letters, digits, '-', '.', and the wildcards '*' and '?'\n" +
				"spec.rules[1].tier: \"BEE\"; allowed: LSE, LSR, LS, BE, SYSTEM\n" +
				"spec.rules[1].match: matches nothing; allowed: at least one of namespaces, names, labels, kubeQoS\n" +
				"spec.rules[2].match.labels: \"a in\": unable to parse requirement: found '' expected: '('; allowed: a label selector, such as \"app in (a,b),!x\"\n" +
				"spec.rules[2].match.kubeQoS[0]: \"Best\"; allowed: Guaranteed, Burstable, BestEffort\n" +
				"spec.rules[2].name: \"a\": another rule has this name\n" +
				"spec.rules[3].match.labels: \" \": selects every pod; allowed: a label selector, such as \"app in (a,b),!x\""},
		{"two documents", head + "---\n" + head, `more than one YAML document; allowed: one`},
		{"not UTF-8", head + "# \xff", `not UTF-8`},
		{"too large", head + "#" + strings.Repeat("x", 1<<20), `1048626 bytes; allowed: up to 1048576 bytes`},
		{"not YAML", "a: b: c", `yaml: mapping values are not allowed in this context`},
		{"deep", spec("rules: " + strings.Repeat("[", 50) + strings.Repeat("]", 50)), `nested more than 12 levels deep`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := v1alpha1.ParsePolicy([]byte(tt.in))
			var problems v1alpha1.Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want Problems", err)
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			var one v1alpha1.Problem
			if !errors.As(err, &one) {
				t.Errorf("no Problem in %v", err)
			}
		})
	}
}

func TestParsePolicyAcceptsDocumentMarks(t *testing.T) {
	for _, in := range []string{"---\n" + head, "# a\n\n---\n" + head + "...\n", head + "---\n", "%YAML 1.1\n---\n" + head} {
		if _, err := v1alpha1.ParsePolicy([]byte(in)); err != nil {
			t.Errorf("ParsePolicy(%q): %v", in, err)
		}
	}
}

func TestAnnotations(t *testing.T) {
	requests := func(s string) error { _, err := v1alpha1.ParseRequests(s); return err }
	batch := func(s string) error { _, err := v1alpha1.ParseBatchResources(s); return err }
	memory := func(s string) error { _, err := v1alpha1.ParseMemoryQoS(s); return err }
	io := func(s string) error { _, err := v1alpha1.ParseIOQoS(s); return err }
	cpus := func(s string) error { _, err := v1alpha1.ParseCPUPlacement(s); return err }
	class := func(s string) error { _, err := v1alpha1.ParseResctrlClass(s); return err }
	for _, tt := range []struct {
		name  string
		parse func(string) error
		in    string
		want  string // "" for accepted
	}{
		{"requests", requests, `{"containers":{"app":{"cpu":"500m","memory":"1Gi","example.com/gpu":1,"hugepages-2Mi":"4Mi"}}}`, ""},
		{"no containers of a pod", requests, `{"containers":{}}`, ""},
		{"empty object", requests, `{}`, "containers: missing; allowed: an object of container names"},
		{"typo", requests, `{"containers":{"app":{"memroy":"1Gi"}}}`, "containers.app.memroy: unknown resource; allowed: cpu, memory, ephemeral-storage, hugepages-SIZE, or a name with a domain"},
		{"bad quantities", requests, `{"containers":{"b":{"memory":"-1"},"a":{"cpu":"1e17","memory":"NaN"}}}`,
			"containers.a.cpu: \"1e17\": too large; allowed: a quantity from 0, such as \"500m\", \"2k\" or \"1Gi\"\n" +
				"containers.a.memory: \"NaN\": not a quantity; allowed: a quantity from 0, such as \"500m\", \"2k\" or \"1Gi\"\n" +
				"containers.b.memory: \"-1\": negative; allowed: a quantity from 0, such as \"500m\", \"2k\" or \"1Gi\""},
		{"duplicate", requests, `{"containers":{"a":{"cpu":"1"},"a":{"cpu":"2"}},"containers":{}}`, "containers: duplicate key\ncontainers.a: duplicate key"},
		{"duplicate by escape", requests, `{"containers":{"a":{"cpu":"1"},"\u0061":{"cpu":"2"}}}`, "containers.a: duplicate key"},
		{"resource of no text", requests, `{"containers":{"a":{"cpu":true},"b":[]}}`,
			"containers.a.cpu: a boolean; allowed: a quantity, such as \"500m\" or \"1Gi\"\ncontainers.b: a list; allowed: an object of resource names and quantities"},
		{"empty name", requests, `{"containers":{"":{"cpu":"x"}}}`, "containers[\"\"].cpu: \"x\": not a quantity; allowed: a quantity from 0, such as \"500m\", \"2k\" or \"1Gi\""},
		{"batch", batch, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"2k"},"requests":{"kubernetes.io/batch-memory":1024,"example.com/x":"1"}}}}`, ""},
		{"of Koordinator with mid", batch, `{"containers":{"app":{"limits":{"kubernetes.io/mid-cpu":"2k"}}}}`, ""},
		{"batch typo", batch, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpus":"2k"},"limit":{}}}}`, "containers.app.limit: unknown key; allowed: requests, limits\n" +
			"containers.app.limits[\"kubernetes.io/batch-cpus\"]: unknown resource; allowed: kubernetes.io/batch-cpu, kubernetes.io/batch-memory, or a name with another domain than kubernetes.io"},
		{"resctrl class", class, `{"tier":"BE"}`, ""},
		{"resctrl class of no tier", class, `{"tier":"be"}`, `tier: "be"; allowed: LSE, LSR, LS, BE, SYSTEM`},
		{"resctrl class without a tier", class, `{}`, `tier: ""; allowed: LSE, LSR, LS, BE, SYSTEM`},
		{"resctrl class of plain text", class, `BE`, `"BE": not JSON: invalid character 'B' looking for beginning of value`},
		{"memory", memory, `{"low":"25%","high":"80%"}`, ""},
		{"nothing wished", memory, `{}`, ""},
		{"memory wrong", memory, `{"low":"101%","high":"0%","min":"1%"}`,
			"low: \"101%\"; allowed: a whole percentage from \"0%\" to \"100%\"\nmin: unknown key; allowed: low, high\nhigh: \"0%\"; allowed: a whole percentage from \"1%\" to \"100%\" (\"100%\" sets no memory.high)"},
		{"percent of a number", memory, `{"low":25}`, `low: 25; allowed: a whole percentage from "0%" to "100%"`},
		{"io", io, `{"weight":5,"max":[{"device":"254:0","rbps":1}]}`, ""},
		{"io wrong", io, `{"weight":5.5,"max":[{"device":"254:0"},3]}`,
			"weight: 5.5; allowed: a whole number\nmax[1]: 3; allowed: an object with the keys device, rbps, wbps, riops, wiops\n" +
				"max[0]: limits nothing; allowed: at least one of rbps, wbps, riops, wiops\n" +
				"max[1].device: \"\"; allowed: \"MAJOR:MINOR\", ssd, rotational, all\n" +
				"max[1]: limits nothing; allowed: at least one of rbps, wbps, riops, wiops"},
		{"placement", cpus, `{"numa":"require-single","smt":"use"}`, ""},
		{"no wish", cpus, `{}`, ""},
		{"placement wrong", cpus, `{"numa":"single","smt":true,"cores":4}`,
			"smt: true; allowed: text (in quotes, where YAML reads it as something else)\ncores: unknown key; allowed: numa, smt\nnuma: \"single\"; allowed: prefer-single, require-single, spread"},
		{"not JSON", io, `{"weight":`, `"{\"weight\":": not JSON: unexpected end of JSON input`},
		{"NaN", io, `{"weight":NaN}`, `"{\"weight\":NaN}": not JSON: invalid character 'N' looking for beginning of value`},
		{"two values", io, `{} {}`, `"{} {}": not JSON: invalid character '{' after top-level value`},
		{"empty", io, ``, `"": not JSON: unexpected end of JSON input`},
		{"no object", io, `"a"`, `"a"; allowed: an object with the keys weight, max`},
		{"null", io, `{"max":null}`, `max: null; allowed: a value, or leave the key out for its default`},
		{"not UTF-8", io, "{\"\xff\":1}", `not UTF-8`},
		{"too large", io, `{}` + strings.Repeat(" ", 64<<10), `65538 bytes; allowed: up to 65536 bytes`},
		{"deep", io, strings.Repeat("[", 9000) + strings.Repeat("]", 9000), `nested more than 12 levels deep`},
		{"deep objects", io, strings.Repeat(`{"a":`, 90) + "1" + strings.Repeat("}", 90), `nested more than 12 levels deep`},
		{"overflow", io, `{"weight":99999999999999999999}`, `weight: 99999999999999999999; allowed: a whole number`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := tt.parse(tt.in); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// However wrong a document is, the message stays readable.
func TestMessagesAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"containers":{`)
	for b.Len() < 60<<10 {
		b.WriteString(`"` + strings.Repeat("x", 200) + `":{"` + strings.Repeat("y", 500) + `":"` + strings.Repeat("z", 500) + `"},`)
	}
	b.WriteString(`"a":{}}}`)
	_, err := v1alpha1.ParseRequests(b.String())
	if err == nil || len(err.Error()) > 20000 || !strings.Contains(err.Error(), "more than 32 problems") {
		t.Errorf("message of %d bytes", len(err.Error()))
	}
	for _, text := range []string{spec("a: " + strings.Repeat("{a: ", 5000)), spec(strings.Repeat("x: 1\n", 5000)), strings.Repeat("?", 100000), "a: *" + strings.Repeat("b", 100000)} {
		if _, err := v1alpha1.ParsePolicy([]byte(text)); err == nil || len(err.Error()) > 20000 {
			t.Errorf("ParsePolicy(%.30q): message of %d bytes", text, len(err.Error()))
		}
	}
}

func TestAmounts(t *testing.T) {
	r, err := v1alpha1.ParseRequests(`{"containers":{"app":{"cpu":"500m","memory":"1Gi"},"bare":{}}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		container   string
		cpu, memory int64
		ok          bool
	}{{"app", 500, 1 << 30, true}, {"bare", 0, 0, true}, {"other", 0, 0, false}} {
		cpu, ok1 := r.MilliCPU(tt.container)
		memory, ok2 := r.MemoryBytes(tt.container)
		if cpu != tt.cpu || memory != tt.memory || ok1 != tt.ok || ok2 != tt.ok {
			t.Errorf("%s: %d %v, %d %v", tt.container, cpu, ok1, memory, ok2)
		}
	}
	b, err := v1alpha1.ParseBatchResources(`{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"2k"}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := b.Limit("app", v1alpha1.ResourceBatchCPU); n != 2000 || !ok {
		t.Errorf("limit %d, %v", n, ok)
	}
	if n, ok := b.Limit("x", v1alpha1.ResourceBatchCPU); n != 0 || ok {
		t.Errorf("limit of nobody %d, %v", n, ok)
	}
}

func TestPercent(t *testing.T) {
	for _, s := range []string{"0%", "7%", "50%", "100%"} {
		var p v1alpha1.Percent
		if err := json.Unmarshal([]byte(`"`+s+`"`), &p); err != nil || p.String() != s {
			t.Errorf("%s: %v, %v", s, p, err)
		}
		if text, err := json.Marshal(p); err != nil || string(text) != `"`+s+`"` {
			t.Errorf("%s: %s, %v", s, text, err)
		}
	}
	for _, s := range []string{`50`, `"50"`, `"101%"`, `"-1%"`, `"+1%"`, `"05%"`, `"00%"`, `"%"`, `""`, `"1.5%"`, `" 5%"`, `"5 %"`, `{}`} {
		var p v1alpha1.Percent
		if err := json.Unmarshal([]byte(s), &p); err == nil {
			t.Errorf("%s: accepted as %v", s, p)
		}
	}
}

func TestEnums(t *testing.T) {
	for _, v := range v1alpha1.Tiers() {
		if !v.Valid() || v.Exclusive() != (v == v1alpha1.LSE || v == v1alpha1.LSR) {
			t.Errorf("tier %s", v)
		}
	}
	for _, ok := range []bool{v1alpha1.None.Valid(), v1alpha1.Tier("ls").Valid(), v1alpha1.Unknown.Valid(), v1alpha1.Burst("").Valid(), v1alpha1.OnError("").Valid(), v1alpha1.Percent(101).Valid()} {
		if ok {
			t.Error("a value of no enum is valid")
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	example, err := os.ReadFile("../examples/policy.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	for _, s := range []string{head, spec("rules: [{name: a, match: {labels: \"a in (b),!c\"}, tier: LS}]"), "a: &a [*a]", "<<: {a: 1}", "? a", "!!binary x", "%TAG"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := v1alpha1.ParsePolicy(data)
		if err != nil {
			if len(err.Error()) > 50000 || err.Error() == "" {
				t.Errorf("message of %d bytes", len(err.Error()))
			}
			return
		}
		text, err := yaml.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := v1alpha1.ParsePolicy(text)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		// An empty list is left out when written, and rules then are the default ones.
		if len(p.Spec.Rules) == 0 {
			again.Spec.Rules = p.Spec.Rules
		}
		for tier, want := range p.Spec.Tiers {
			if got := again.Spec.Tiers[tier]; len(want.IO.Max) == 0 {
				got.IO.Max = want.IO.Max
				again.Spec.Tiers[tier] = got
			}
		}
		for i := range p.Spec.Rules {
			for _, m := range []*v1alpha1.Match{&p.Spec.Rules[i].Match, &again.Spec.Rules[i].Match} {
				if len(m.Namespaces) == 0 {
					m.Namespaces = nil
				}
				if len(m.Names) == 0 {
					m.Names = nil
				}
				if len(m.KubeQoS) == 0 {
					m.KubeQoS = nil
				}
			}
		}
		if p.Metadata.Name == "" {
			again.Metadata.Name = ""
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Errorf("-first +again:\n%s", diff)
		}
	})
}

// fuzzAnnotation checks that what is accepted is JSON, and that it is accepted again as it is written.
func fuzzAnnotation[T any](f *testing.F, parse func(string) (T, error), seeds ...string) {
	for _, s := range append(seeds, `{}`, `{"a":`, `[[[[]]]]`, `{"containers":{"\u0061":null}}`, "\xff", `{"max":[{"device":"\ud800"}]}`) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parse(s)
		if err != nil {
			if len(err.Error()) > 50000 || err.Error() == "" {
				t.Errorf("message of %d bytes", len(err.Error()))
			}
			return
		}
		var std T
		if err := json.Unmarshal([]byte(s), &std); err != nil && !strings.Contains(err.Error(), "cannot unmarshal number into Go") {
			t.Errorf("accepted %q, which encoding/json refuses: %v", s, err)
		} else if err == nil {
			if diff := cmp.Diff(std, v); diff != "" {
				t.Errorf("-encoding/json +got:\n%s", diff)
			}
		}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse(string(text)); err != nil {
			t.Errorf("%v in %s", err, text)
		}
	})
}

func FuzzParseRequests(f *testing.F) {
	fuzzAnnotation(f, v1alpha1.ParseRequests, `{"containers":{"app":{"cpu":"500m","memory":"1Gi"}}}`)
}

func FuzzParseBatchResources(f *testing.F) {
	fuzzAnnotation(f, v1alpha1.ParseBatchResources, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"2k"},"requests":{"kubernetes.io/batch-memory":1024}}}}`)
}

func FuzzParseMemoryQoS(f *testing.F) {
	fuzzAnnotation(f, v1alpha1.ParseMemoryQoS, `{"low":"25%","high":"80%"}`)
}

func FuzzParseCPUPlacement(f *testing.F) {
	fuzzAnnotation(f, v1alpha1.ParseCPUPlacement, `{"numa":"spread","smt":"idle"}`)
}

func FuzzParseResctrlClass(f *testing.F) {
	fuzzAnnotation(f, v1alpha1.ParseResctrlClass, `{"tier":"BE"}`)
}

func FuzzParseIOQoS(f *testing.F) {
	fuzzAnnotation(f, v1alpha1.ParseIOQoS, `{"weight":5,"max":[{"device":"254:0","rbps":1}]}`)
}
