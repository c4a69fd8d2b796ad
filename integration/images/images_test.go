package images

import (
	"archive/tar"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/tideline-io/tideline/integration/parts"
)

func TestArchive(t *testing.T) {
	store, err := parts.Open(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	path, err := Archive(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{Pause, Busybox, Web} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		img, err := tarball.ImageFromPath(path, &tag)
		if err != nil {
			t.Fatalf("image %s: %v", ref, err)
		}
		cf, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if cf.OS != "linux" || cf.Architecture != runtime.GOARCH {
			t.Errorf("image %s: platform %s/%s, want linux/%s", ref, cf.OS, cf.Architecture, runtime.GOARCH)
		}
	}
	again, err := Archive(t.Context(), store)
	if err != nil || again != path {
		t.Errorf("second Archive: got %s, %v, want %s", again, err, path)
	}
}

// The image says whose programs it holds, whatever made it.
func TestWritePlugin(t *testing.T) {
	dir := t.TempDir()
	bin, archive := filepath.Join(dir, "bin"), filepath.Join(dir, "plugin.tar")
	for name, program := range map[string]string{"tideline-nri-plugin": "pause", "tideline": "nnp"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(bin, name), "./programs/"+program)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=arm64")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := WritePlugin(archive, bin); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(Plugin)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if cf.OS != "linux" || cf.Architecture != "arm64" || len(cf.Config.Entrypoint) != 1 {
		t.Errorf("image: %s/%s, entrypoint %q", cf.OS, cf.Architecture, cf.Config.Entrypoint)
	}
	rc := mutate.Extract(img)
	defer rc.Close()
	modes := map[string]int64{}
	for r := tar.NewReader(rc); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[h.Name] = h.Mode
	}
	if modes["usr/local/bin/tideline"] != 0o755 || "/"+pluginPath != cf.Config.Entrypoint[0] || modes[pluginPath] != 0o755 {
		t.Errorf("files %v", modes)
	}
	if err := WritePlugin(archive, dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the programs: got error %v, want ErrNotExist", err)
	}
}

func TestArchiveOfFinishedParts(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(parts.DirEnv, dir)
	store, err := parts.Open(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Archive(t.Context(), store); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: got error %v, want ErrNotExist", err)
	}
	want := filepath.Join(dir, ArchiveName)
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Archive(t.Context(), store); err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestBusyboxAppletsAreHardLinks(t *testing.T) {
	p := programs{"busybox": []byte("b"), "applets": []byte("busybox\nls\nhttpd\nsh\n")}
	l, err := p.busyboxLayer()
	if err != nil {
		t.Fatal(err)
	}
	rc, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	links := map[string]string{}
	for r := tar.NewReader(rc); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeLink {
			links[h.Name] = h.Linkname
		}
	}
	if len(links) != 2 || links["bin/ls"] != "bin/busybox" || links["bin/sh"] != "bin/busybox" {
		t.Errorf("hard links: got %v, want bin/ls and bin/sh to bin/busybox", links)
	}
}

func TestServe(t *testing.T) {
	store, err := parts.Open(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	r, err := Serve(t.Context(), store, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	digests := map[string]bool{}
	for _, path := range []string{"pause/manifests/3.9", "e2e-test-images/busybox/manifests/1.29-2", "k8s-staging-cri-tools/test-image-digest/manifests/latest"} {
		resp, err := http.Get("http://" + r.Address() + "/v2/" + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: status %s", path, resp.Status)
		}
		digests[resp.Header.Get("Docker-Content-Digest")] = true
	}
	if len(digests) != 3 {
		t.Errorf("digests: got %d different, want 3", len(digests))
	}
}
