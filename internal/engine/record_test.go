package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/internal/policy"
)

// No two keys share a file, and none leaves the folder.
func TestRecordFiles(t *testing.T) {
	t.Parallel()
	r := &records{dir: t.TempDir()}
	long := strings.Repeat("x", 300)
	keys := []Key{
		{"a", "b_c", 0}, {"a_b", "c", 0}, {"a", "b", 0}, {"a", "b", 1}, {"", "a_b", 0}, {"..", "/etc", 0}, {"a/../b", "c", 0},
		{long, "a", 0}, {long, "b", 0}, {"a", long + "/", 0}, {".", ".", 0}, {"", "", 0}, {"a", "%5F", 0}, {"a", "_", 0}, {"\x00", "é", 0},
	}
	files := map[string]Key{}
	for _, k := range keys {
		file := r.file(k)
		if other, ok := files[file]; ok || filepath.Dir(file) != r.dir || len(filepath.Base(file)) > 250 {
			t.Errorf("%v: %s, as %v", k, file, other)
		}
		files[file] = k
		if err := r.write(Record{Key: k, State: policy.Managed}); err != nil {
			t.Errorf("%v: %v", k, err)
		}
	}
	got, err := r.read()
	if err != nil || len(got) != len(keys) {
		t.Errorf("read %d of %d: %v", len(got), len(keys), err)
	}
	for _, k := range keys {
		if err := r.remove(k, ""); err != nil {
			t.Error(err)
		}
		if err := r.remove(k, ""); err != nil {
			t.Errorf("again: %v", err)
		}
	}
	if got, err := r.read(); err != nil || len(got) != 0 {
		t.Errorf("left: %v, %v", got, err)
	}
}

// One key has one file, which is that of the container that was made last: kubelets reuse a key where they lost its end.
func TestRecordOfTheSameKey(t *testing.T) {
	t.Parallel()
	r := &records{dir: t.TempDir()}
	k := Key{"u", "n", 0}
	rec := func(id, cpus string) Record {
		return Record{Key: k, ID: id, State: policy.Managed, Asked: &policy.Resources{CPUSetCPUs: cpus}}
	}
	for _, step := range []struct {
		name string
		do   func() error
		want string // ID and CPUs
	}{
		{"made", func() error { return r.writeFirst(rec("a", "0")) }, "a 0"},
		{"another one made, without word of its end", func() error { return r.writeFirst(rec("b", "0")) }, "b 0"},
		{"the end of the first, told late", func() error { return r.remove(k, "a") }, "b 0"},
		{"updated", func() error { return r.write(rec("b", "1")) }, "b 1"},
		{"its creation reported late", func() error { return r.writeFirst(rec("b", "0")) }, "b 1"},
		{"removed", func() error { return r.remove(k, "b") }, ""},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		recs, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if there, ok := recs[k]; ok {
			got = there.ID + " " + there.Asked.CPUSetCPUs
		}
		if got != step.want {
			t.Errorf("%s: the record is %q, want %q", step.name, got, step.want)
		}
	}
}

// A folder that is not there at the start means that records are lost. One that is removed later is not made again: at
// the next start it would hold a part of the records and look whole.
func TestRecordFolder(t *testing.T) {
	t.Parallel()
	k := Key{PodUID: "u", Name: "n"}
	dir := filepath.Join(t.TempDir(), "records")
	r := &records{dir: dir}
	if err := r.open(); err != nil || !r.suspect(k) {
		t.Errorf("first start: %v, suspect: %t", err, r.suspect(k))
	}
	r = &records{dir: dir}
	if err := r.open(); err != nil || r.suspect(k) {
		t.Errorf("second start: %v, suspect: %t", err, r.suspect(k))
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := r.read(); got == nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if err := r.write(Record{State: policy.Managed}); err == nil {
		t.Error("no error")
	}
	if err := (&records{dir: filepath.Join(dir, "records")}).open(); err == nil {
		t.Error("no error without a run directory")
	}
}

func FuzzRecord(f *testing.F) {
	good, err := json.Marshal(Record{Key: Key{"u", "n", 1}, ID: "id", State: policy.Managed, Asked: &policy.Resources{CPUShares: new(int64(2))}, Changed: true,
		Decision: policy.Decision{Tier: "BE", Settings: []policy.Setting{{Knob: policy.CPUIdle, Level: policy.LevelContainer, Value: "1"}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte("null"))
	f.Add([]byte(`{"state":"adopted","asked":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := parseRecord(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(rec)
		if err != nil {
			t.Fatalf("does not encode again: %v", err)
		}
		back, err := parseRecord(again)
		if err != nil {
			t.Fatalf("does not come back: %v", err)
		}
		once, err := json.Marshal(back)
		if err != nil || string(once) != string(again) {
			t.Errorf("comes back as\n%s\nwas\n%s", once, again)
		}
	})
}

func FuzzBirth(f *testing.F) {
	f.Add(`{"tier":"BE","asked":{"cpuShares":2},"set":{"cpu.idle":"1","cpu.weight":"unset"},"policy":"default","generation":1}`)
	f.Add(`{"tier":"odd"}`)
	f.Add(`null`)
	f.Add(``)
	f.Add(`{"tier":"LS","set":{"io.weight":"1","nothing":"x"}}`)
	f.Fuzz(func(t *testing.T, s string) {
		b, ok := parseBirth(s)
		if !ok {
			return
		}
		d := b.decision()
		if !d.Tier.Valid() || len(d.Settings) > len(policy.Knobs()) {
			t.Errorf("%q gives %+v", s, d)
		}
		for _, x := range d.Settings {
			if x.Level != policy.LevelContainer || x.Value != b.Set[string(x.Knob)] {
				t.Errorf("%q gives %+v", s, x)
			}
			policy.Neutral(policy.Node{}, x, b.Asked) // takes any value
		}
		if again, _ := parseBirth(s); cmp.Diff(b, again) != "" {
			t.Error("not deterministic")
		}
	})
}
