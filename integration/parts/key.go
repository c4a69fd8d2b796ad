package parts

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// recipe is what the bytes of a built part depend on.
type recipe struct {
	Part Part
	// Args are the arguments of the go command, without the output file.
	Args []string
	// Go is the version of the toolchain that runs this process. A tools
	// module that asks for a newer one says so in its go.mod, which is part
	// of Files.
	Go     string
	GOARCH string
	// Release is the Debian release, for what comes from its packages.
	Release string
	// Files maps the names of the source files to the hashes of their
	// content: go.mod and go.sum of a tools module, which pin the content of
	// every module below them, or the sources of an own program.
	Files map[string]string

	version string
}

// recipeFor reads what p depends on below root, the folder integration.
func recipeFor(root string, p Part) (recipe, error) {
	r := recipe{Part: p, GOARCH: runtime.GOARCH, Files: map[string]string{}}
	if p.DebianPackage != "" {
		// /etc/os-release of Debian: VERSION_CODENAME=bookworm
		b, err := os.ReadFile("/etc/os-release")
		if err != nil {
			return r, fmt.Errorf("read the Debian release: %w", err)
		}
		for line := range strings.Lines(string(b)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
				r.Release = name
			}
		}
		r.version = "of Debian " + r.Release
		return r, nil
	}
	r.Go = runtime.Version()
	if p.Project == "" {
		r.version = "of this repository"
		r.Args = goArgs(p, p.LDFlags)
		dir := filepath.Join(root, p.Folder)
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			return r.add(root, path)
		})
		if err == nil && len(r.Files) == 0 {
			err = fmt.Errorf("hash %s: no files", dir)
		}
		return r, err
	}
	dir := filepath.Join(root, "tools", p.Project)
	for _, name := range []string{"go.mod", "go.sum"} {
		if err := r.add(root, filepath.Join(dir, name)); err != nil {
			return r, err
		}
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return r, fmt.Errorf("read the version of %s: %w", p.Name, err)
	}
	if r.version, err = requiredVersion(mod, p.Module); err != nil {
		return r, fmt.Errorf("read the version of %s in %s: %w", p.Name, filepath.Join(dir, "go.mod"), err)
	}
	if p.CFolder != "" {
		r.Args = cArgs()
		return r, nil
	}
	major, rest, _ := strings.Cut(r.version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	r.Args = goArgs(p, strings.NewReplacer("VERSION", r.version, "MAJOR", major, "MINOR", minor).Replace(p.LDFlags))
	return r, nil
}

// add puts the content of one file into the recipe.
func (r *recipe) add(root, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("hash a source file: %w", err)
	}
	name, err := filepath.Rel(root, path)
	if err != nil {
		return fmt.Errorf("hash %s: %w", path, err)
	}
	sum := sha256.Sum256(b)
	r.Files[name] = hex.EncodeToString(sum[:])
	return nil
}

// key is the name under which the part is kept. Twelve hex digits are plenty
// for a folder that holds a few versions of twenty programs.
func (r recipe) key() (string, error) {
	b, err := json.Marshal(r) // maps are marshalled in the order of their keys
	if err != nil {
		return "", fmt.Errorf("hash the recipe of %s: %w", r.Part.Name, err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6]), nil
}

// goArgs are the arguments of the go command that builds p, but for the
// output file and the package.
func goArgs(p Part, ldflags string) []string {
	args := []string{"build"}
	if p.TestBinary {
		args = []string{"test", "-c"}
	}
	// -buildvcs=false: the state of this repository is not a property of the
	// part. -trimpath: nor is the place of the module cache.
	args = append(args, "-trimpath", "-buildvcs=false", "-ldflags", strings.TrimSpace("-s -w "+ldflags))
	if p.Tags != "" {
		args = append(args, "-tags", p.Tags)
	}
	return args
}

// cArgs are the arguments of gcc that build a C program, but for the output
// file and the sources.
func cArgs() []string { return []string{"-std=c99", "-O2", "-static", "-s"} }

// requiredVersion returns the version of module in a go.mod, without its v.
func requiredVersion(mod []byte, module string) (string, error) {
	sc := bufio.NewScanner(bytes.NewReader(mod))
	for sc.Scan() {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(sc.Text()), "require "))
		if len(f) >= 2 && f[0] == module {
			if v, ok := strings.CutPrefix(f[1], "v"); ok {
				return v, nil
			}
		}
	}
	if err := sc.Err(); err != nil {
		return "", err
	}
	return "", fmt.Errorf("no version of module %s", module)
}
