package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tideline-io/tideline/integration/parts"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	runc := filepath.Join(dir, "runc")
	if err := os.WriteFile(runc, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(parts.DirEnv, dir)
	tests := []struct {
		name string
		args []string
		want string // a part of the output
		err  error
	}{
		{name: "path", args: []string{"path", "runc"}, want: runc + "\n"},
		{name: "path of a missing part", args: []string{"path", "etcd"}, err: os.ErrNotExist},
		{name: "build", args: []string{"build", "runc"}},
		{name: "list", args: []string{"list"}, want: "not built, takes about"},
		{name: "prune", args: []string{"prune"}},
		{name: "nothing", err: errUsage},
		{name: "unknown verb", args: []string{"make"}, err: errUsage},
		{name: "build without names", args: []string{"build"}, err: errUsage},
		{name: "path of two", args: []string{"path", "runc", "etcd"}, err: errUsage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), tt.args, &out, t.Output())
			if !errors.Is(err, tt.err) || (tt.err == nil && err != nil) {
				t.Errorf("error: got %v, want %v", err, tt.err)
			}
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("output: got %q, want it to contain %q", out.String(), tt.want)
			}
		})
	}
}
