// Package own builds Tideline's programs for the tests, static and with the same flags as a release.
//
//	dir, err := own.Build(ctx, os.Stderr) // before lab.Isolate: it may download modules
//	proxy := filepath.Join(dir, own.Proxy)
package own

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Names of the programs.
const (
	Proxy    = "tideline-runtime-proxy"
	Plugin   = "tideline-nri-plugin"
	CLI      = "tideline"
	Readback = "readback"
)

// DirEnv names the environment variable that points at a folder with finished programs. Where it is set nothing is
// built: a VM gets them so, and so does whoever tests a release.
const DirEnv = "TIDELINE_BIN"

// Build returns a folder with the programs. Go's own build cache makes it quick when nothing has changed. The working
// directory is in the repository.
func Build(ctx context.Context, log io.Writer) (string, error) {
	if dir := os.Getenv(DirEnv); dir != "" {
		return dir, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache", "bin")
	for _, b := range []struct{ module, pkg, name string }{
		{root, "./runtime-proxy", Proxy}, {root, "./nri-plugin", Plugin}, {root, "./cmd/tideline", CLI}, {filepath.Join(root, "integration"), "./cmd/readback", Readback},
	} {
		fmt.Fprintf(log, "own: building %s\n", b.name)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, b.name), b.pkg)
		cmd.Dir, cmd.Env = b.module, append(os.Environ(), "CGO_ENABLED=0")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", b.name, err, out.Bytes())
		}
	}
	return dir, nil
}

// Prepare builds before a lab isolates itself.
func Prepare(ctx context.Context) error {
	_, err := Build(ctx, os.Stderr)
	return err
}

// Dir is the folder that Build fills, or that DirEnv names; nothing is built.
func Dir() (string, error) {
	if dir := os.Getenv(DirEnv); dir != "" {
		return dir, nil
	}
	root, err := Root()
	return filepath.Join(root, ".cache", "bin"), err
}

// Root is the repository that holds the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "integration", "tools")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("find the repository: run inside a checkout")
}
