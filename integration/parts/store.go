package parts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// DirEnv names the environment variable that points at a folder with finished
// parts, each under its own name. Where it is set nothing is built: a VM gets
// its parts so.
const DirEnv = "TIDELINE_PARTS"

// Paths maps the names of parts to their programs.
type Paths map[string]string

// A Store finds, builds and keeps parts. It is safe for concurrent use, also
// by several processes on one folder.
type Store struct {
	root  string // the folder integration
	cache string
	fixed string // the folder of DirEnv
	log   io.Writer
}

// Open returns the store of the repository that holds the working directory.
// One line for each slow step goes to log.
func Open(log io.Writer) (*Store, error) {
	if dir := os.Getenv(DirEnv); dir != "" {
		return &Store{fixed: dir, log: log}, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the folder integration/tools: %w", err)
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "integration", "tools")); err == nil {
			return &Store{root: filepath.Join(d, "integration"), cache: filepath.Join(d, ".cache"), log: log}, nil
		}
		if d == filepath.Dir(d) {
			return nil, fmt.Errorf("find the folder integration/tools above %s: run inside a checkout of the repository, or set %s to a folder with finished parts", dir, DirEnv)
		}
	}
}

// Fixed returns the folder of finished parts, or "" where parts are built.
func (s *Store) Fixed() string { return s.fixed }

// CacheDir returns the folder for built things, made if missing; "" where
// parts are not built.
func (s *Store) CacheDir(elem ...string) (string, error) {
	if s.fixed != "" {
		return "", nil
	}
	dir := filepath.Join(append([]string{s.cache}, elem...)...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	return dir, nil
}

// Progress prints one line for the one who waits.
func (s *Store) Progress(format string, args ...any) {
	fmt.Fprintf(s.log, "parts: "+format+"\n", args...)
}

// Path returns the program of the part called name if it is built, and an
// error that wraps fs.ErrNotExist if not. Nothing is built.
func (s *Store) Path(name string) (string, error) {
	path, _, err := s.locate(name)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find part %s: %w", name, err)
	}
	return path, nil
}

// Version returns the pinned version of the part called name.
func (s *Store) Version(name string) (string, error) {
	_, r, err := s.locate(name)
	return r.version, err
}

// locate returns where the program of a part is or will be.
func (s *Store) locate(name string) (string, recipe, error) {
	p, err := find(name)
	if err != nil {
		return "", recipe{}, err
	}
	if s.fixed != "" {
		return filepath.Join(s.fixed, name), recipe{Part: p}, nil
	}
	r, err := recipeFor(s.root, p)
	if err != nil {
		return "", r, err
	}
	key, err := r.key()
	if err != nil {
		return "", r, err
	}
	return filepath.Join(s.cache, "parts", name+"-"+key, name), r, nil
}

// Build returns the programs of the named parts, after it has built those that
// are missing. It installs the Debian packages that the parts need where they
// are missing too.
func (s *Store) Build(ctx context.Context, names ...string) (Paths, error) {
	paths := Paths{}
	var needs []string
	for _, name := range names {
		path, r, err := s.locate(name)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(path); err != nil {
			if s.fixed != "" {
				return nil, fmt.Errorf("find part %s in %s=%s: %w", name, DirEnv, s.fixed, err)
			}
			if err := s.build(ctx, path, r); err != nil {
				return nil, fmt.Errorf("build part %s: %w", name, err)
			}
		}
		paths[name] = path
		needs = append(needs, r.Part.NeedsToRun...)
	}
	if s.fixed == "" {
		if err := s.Install(ctx, needs...); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// build makes one part, unless another process does so first.
func (s *Store) build(ctx context.Context, path string, r recipe) error {
	name := r.Part.Name
	if _, err := s.CacheDir("parts"); err != nil {
		return err
	}
	unlock, err := s.lock(ctx, filepath.Join(s.cache, "parts", name+".lock"), name)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	s.Progress("building %s %s (first time, about %s on 2 cores) …", name, r.version, r.Part.Cold)
	start := time.Now()
	if err := s.Install(ctx, r.Part.NeedsToBuild...); err != nil {
		return err
	}
	// Who holds the lock is the only builder: what is there is of one that was
	// killed.
	stale, err := filepath.Glob(filepath.Join(s.cache, "parts", "."+name+"-[0-9]*"))
	if err != nil {
		return err
	}
	for _, dir := range stale {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove an unfinished build: %w", err)
		}
	}
	// The folder is renamed into place when it is complete, so a part that
	// can be seen is whole whatever happened before.
	temp, err := os.MkdirTemp(filepath.Join(s.cache, "parts"), "."+name+"-*")
	if err != nil {
		return fmt.Errorf("make a folder to build in: %w", err)
	}
	defer os.RemoveAll(temp)
	switch {
	case r.Part.DebianPackage != "":
		err = s.unpack(ctx, r.Part, temp)
	case r.Part.CFolder != "":
		err = s.compileC(ctx, r, filepath.Join(temp, name))
	default:
		err = s.compile(ctx, r, filepath.Join(temp, name))
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Dir(path)); err != nil {
		return err
	}
	s.Progress("%s %s ready in %.0f s", name, r.version, time.Since(start).Seconds())
	return nil
}

// compile runs the go command for r.
func (s *Store) compile(ctx context.Context, r recipe, out string) error {
	cmd, err := s.goCommand(ctx, r.Part, append(slices.Clone(r.Args), "-o", out, r.Part.Package)...)
	if err != nil {
		return err
	}
	return run(cmd)
}

// compileC runs gcc on the C sources in the module of r, which go.sum pins as
// it does the Go ones.
func (s *Store) compileC(ctx context.Context, r recipe, out string) error {
	cmd, err := s.goCommand(ctx, r.Part, "mod", "download", "-json", r.Part.Module)
	if err != nil {
		return err
	}
	// {"Path": "github.com/cri-o/cri-o", "Dir": "/root/go/pkg/mod/github.com/cri-o/cri-o@v1.34.0", …}
	b, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("download module %s: %w: %s", r.Part.Module, err, b)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(b, &module); err != nil {
		return fmt.Errorf("download module %s: %w", r.Part.Module, err)
	}
	sources, err := filepath.Glob(filepath.Join(module.Dir, r.Part.CFolder, "*.c"))
	if err != nil {
		return err
	}
	return run(exec.CommandContext(ctx, "gcc", append(append(slices.Clone(r.Args), "-o", out), sources...)...))
}

// goCommand is a go command in the module that p is built from.
func (s *Store) goCommand(ctx context.Context, p Part, args ...string) (*exec.Cmd, error) {
	goCmd, err := exec.LookPath("go")
	if err != nil {
		return nil, fmt.Errorf("find the go command: %w", err)
	}
	dir := s.root
	if p.Project != "" {
		dir = filepath.Join(s.root, "tools", p.Project)
	}
	cmd := exec.CommandContext(ctx, goCmd, args...)
	cmd.Dir = dir
	cgo := "0"
	if p.Cgo {
		cgo = "1"
	}
	// GOFLAGS of the user could choose other sources (-mod, -modfile) or
	// another kind of program (-race) than the key says.
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS=linux", "GOARCH="+runtime.GOARCH,
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "PWD="+dir)
	return cmd, nil
}

// run runs a command to its end; its output is in the error.
func run(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// The whole group has to end with the context: compilers are children of
	// the go command.
	setGroup(cmd)
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		lines = lines[max(0, len(lines)-20):]
		return fmt.Errorf("run %s in %s: %w\n%s", strings.Join(cmd.Args, " "), cmd.Dir, err, strings.Join(lines, "\n"))
	}
	return nil
}

// Prune removes what the present sources no longer lead to, and returns the
// removed folders.
func (s *Store) Prune() ([]string, error) {
	if s.fixed != "" {
		return nil, nil
	}
	keep := map[string]bool{}
	for _, p := range All() {
		path, _, err := s.locate(p.Name)
		if err != nil {
			return nil, err
		}
		keep[filepath.Dir(path)] = true
	}
	found, err := filepath.Glob(filepath.Join(s.cache, "parts", "*-*"))
	if err != nil {
		return nil, err
	}
	var removed []string
	var errs []error
	for _, dir := range found {
		if fi, err := os.Stat(dir); err != nil || !fi.IsDir() || keep[dir] || strings.HasPrefix(filepath.Base(dir), ".") {
			continue // a folder with a leading dot is being built
		}
		removed = append(removed, dir)
		errs = append(errs, os.RemoveAll(dir))
	}
	return removed, errors.Join(errs...)
}
