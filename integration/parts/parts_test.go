package parts

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestEveryPartHasARecipe(t *testing.T) {
	seen := map[string]bool{}
	keys := map[string]string{}
	for _, p := range All() {
		if seen[p.Name] {
			t.Errorf("part %s is there twice", p.Name)
		}
		seen[p.Name] = true
		r, err := recipeFor("..", p)
		if err != nil {
			t.Errorf("recipe of %s: %v", p.Name, err)
			continue
		}
		if r.version == "" || p.Cold == "" {
			t.Errorf("part %s: version %q, time %q: want both", p.Name, r.version, p.Cold)
		}
		if strings.Contains(strings.Join(r.Args, " "), "VERSION") {
			t.Errorf("part %s: arguments %q: want the version put in", p.Name, r.Args)
		}
		key, err := r.key()
		if err != nil {
			t.Fatal(err)
		}
		if keys[key] != "" {
			t.Errorf("parts %s and %s have one key", p.Name, keys[key])
		}
		keys[key] = p.Name
		for _, need := range append(p.NeedsToBuild, p.NeedsToRun...) {
			if proofs[need] == "" {
				t.Errorf("part %s: no proof for Debian package %s", p.Name, need)
			}
		}
	}
	for _, set := range [][]string{ContainerRuntime(), CRIO(), Images(), ControlPlane()} {
		for _, name := range set {
			if !seen[name] {
				t.Errorf("part %s is in a set and not in the table", name)
			}
		}
	}
}

func TestKeyFollowsContent(t *testing.T) {
	base := func() recipe {
		return recipe{
			Part: Part{Name: "p", Project: "x", Package: "example.test/p"}, Args: []string{"build", "-trimpath"},
			Go: "go1.26.8", GOARCH: "amd64", Files: map[string]string{"go.mod": "aa", "go.sum": "bb"}, version: "1.2.3",
		}
	}
	tests := []struct {
		name   string
		change func(*recipe)
		same   bool
	}{
		{name: "nothing", change: func(*recipe) {}, same: true},
		// It comes from go.mod and is in Files already.
		{name: "shown version", change: func(r *recipe) { r.version = "9" }, same: true},
		{name: "go.mod", change: func(r *recipe) { r.Files["go.mod"] = "ab" }},
		{name: "go.sum", change: func(r *recipe) { r.Files["go.sum"] = "bc" }},
		{name: "toolchain", change: func(r *recipe) { r.Go = "go1.26.9" }},
		{name: "architecture", change: func(r *recipe) { r.GOARCH = "arm64" }},
		{name: "flags", change: func(r *recipe) { r.Args = []string{"build"} }},
		{name: "cgo", change: func(r *recipe) { r.Part.Cgo = true }},
		{name: "package", change: func(r *recipe) { r.Part.Package = "example.test/q" }},
		{name: "Debian release", change: func(r *recipe) { r.Release = "trixie" }},
	}
	want, err := base().key()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := base()
			tt.change(&r)
			got, err := r.key()
			if err != nil {
				t.Fatal(err)
			}
			if (got == want) != tt.same {
				t.Errorf("key: got %s, base %s, want same %v", got, want, tt.same)
			}
		})
	}
}

func TestRequiredVersion(t *testing.T) {
	const mod = "module m\n\ngo 1.26.0\n\ntool example.test/a/cmd/x\n\nrequire example.test/single v1.0.0\n\nrequire (\n\texample.test/a v1.2.3 // indirect\n\texample.test/a/v2 v2.0.0-rc.1\n)\n\nreplace (\n\texample.test/r => example.test/s v0.1.0\n)\n"
	tests := []struct{ module, want string }{
		{"example.test/a", "1.2.3"},
		{"example.test/a/v2", "2.0.0-rc.1"},
		{"example.test/single", "1.0.0"},
		{"example.test/r", ""},
		{"example.test", ""},
	}
	for _, tt := range tests {
		got, err := requiredVersion([]byte(mod), tt.module)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("module %s: got %q, %v, want %q", tt.module, got, err, tt.want)
		}
	}
}

// checkout makes a folder that looks like a checkout with the program pause,
// and enters it.
func checkout(t *testing.T, program string) {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"integration/tools/README":                  "",
		"integration/go.mod":                        "module example.test/integration\n\ngo 1.26.0\n",
		"integration/images/programs/pause/main.go": program,
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(root, "integration", "images"))
}

// buffer is a bytes.Buffer for several writers.
type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func TestBuildOnceForManyStores(t *testing.T) {
	checkout(t, "package main\n\nfunc main() {}\n")
	var log buffer
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			store, err := Open(&log)
			if err != nil {
				t.Error(err)
				return
			}
			paths, err := store.Build(t.Context(), "pause")
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(paths["pause"]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := strings.Count(log.String(), "building pause"); got != 1 {
		t.Errorf("builds: got %d, want 1; log:\n%s", got, log.String())
	}
	left, err := filepath.Glob("../../.cache/parts/.*")
	if err != nil || len(left) > 0 {
		t.Errorf("folders of builds: got %q, %v, want none", left, err)
	}
}

func TestBuildFailure(t *testing.T) {
	checkout(t, "package main\n\nfunc main() { undefined() }\n")
	store, err := Open(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = store.Build(t.Context(), "pause"); err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("error: got %v, want what the compiler said", err)
	}
	if _, err := store.Path("pause"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("path after a failed build: got %v, want ErrNotExist", err)
	}
}

func TestPruneKeepsThePresent(t *testing.T) {
	store := &Store{root: "..", cache: t.TempDir(), log: t.Output()}
	present, _, err := store.locate("pause")
	if err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(store.cache, "parts", "pause-000000000000")
	for _, dir := range []string{filepath.Dir(present), stale} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := store.Prune()
	if err != nil || len(removed) != 1 || removed[0] != stale {
		t.Errorf("removed: got %q, %v, want %q", removed, err, stale)
	}
	if _, err := os.Stat(filepath.Dir(present)); err != nil {
		t.Error(err)
	}
}

func TestFinishedParts(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(DirEnv, dir)
	store, err := Open(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Build(t.Context(), "runc"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: got error %v, want ErrNotExist", err)
	}
	want := filepath.Join(dir, "runc")
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	paths, err := store.Build(t.Context(), "runc")
	if err != nil || paths["runc"] != want {
		t.Errorf("got %v, %v, want %s", paths, err, want)
	}
}

func TestBuildRemovesItsUnfinishedBuilds(t *testing.T) {
	checkout(t, "package main\n\nfunc main() {}\n")
	const folder = "../../.cache/parts/"
	other := folder + ".pause-next-1234" // of another part, whose builder may be alive
	for _, dir := range []string{folder + ".pause-1234", other} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	store, err := Open(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Build(t.Context(), "pause"); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(folder + ".*"); err != nil || len(left) != 1 || left[0] != other {
		t.Errorf("unfinished builds: got %q, %v, want %q", left, err, other)
	}
}
