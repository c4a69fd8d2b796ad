// Package images makes the few small container images that the integration
// tests run and that critest asks for, from local programs, without pulling
// anything. They stand in for the real ones under the real names; a container
// runtime that takes them from the archive or from the loopback registry never
// needs a network.
//
// It never talks to a real registry.
//
//	store, err := parts.Open(os.Stderr)
//	tar, err := images.Archive(ctx, store)          // for ctr images import
//	reg, err := images.Serve(ctx, store, "127.0.0.1:5000")
package images

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tideline-io/tideline/integration/parts"
)

// References of the images of Archive.
const (
	// Pause is the sandbox image of the lab's containerd.
	Pause = "registry.k8s.io/pause:3.10"
	// Busybox has a shell and the usual small programs.
	Busybox = "docker.io/library/busybox:latest"
	// Web serves a page on the port WEB_PORT, 80 by default.
	Web = "registry.k8s.io/e2e-test-images/nginx:1.14-2"
)

// An Image is one image under one reference.
type Image struct {
	Ref   string
	Image v1.Image
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n"
	group  = "root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n"
	path   = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Catalog returns every image, sorted by reference: those of Archive, and all
// that critest of cri-tools 1.37 names.
func Catalog(ctx context.Context, store *parts.Store) ([]Image, error) {
	programs, err := readPrograms(ctx, store)
	if err != nil {
		return nil, err
	}
	base, err := programs.busyboxLayer()
	if err != nil {
		return nil, err
	}
	c := catalog{programs: programs, base: base}

	pause39 := c.pause("3.9")
	c.add("registry.k8s.io/pause:3.9", pause39)
	c.add("k8s.gcr.io/pause:3.9", pause39) // critest wants both to have one digest
	c.add(Pause, c.pause("3.10"))

	busybox := c.image(v1.Config{})
	c.add(Busybox, busybox)
	c.add("registry.k8s.io/e2e-test-images/busybox:1.29-2", busybox)

	c.add(Web, c.web("nginx", "80"))
	c.add("registry.k8s.io/e2e-test-images/httpd:2.4.39-4", c.web("httpd", "80"))
	c.add("gcr.io/k8s-staging-cri-tools/hostnet-nginx-amd64:latest", c.web("nginx", "12003"))
	c.add("registry.k8s.io/e2e-test-images/nonewprivs:1.3", c.image(v1.Config{Entrypoint: []string{"/nnp"}},
		file{name: "nnp", mode: 0o4755, data: programs["nnp"]}))

	// The images of critest's own tests differ in their user and in one file,
	// so that each has a digest of its own.
	own := func(name string, cfg v1.Config) v1.Image {
		return c.image(cfg, file{name: "name", mode: 0o644, data: []byte(name + "\n")})
	}
	for name, user := range map[string]string{
		"user-uid": "1002", "user-username": "www-data", "user-uid-group": "1003:1004",
		"user-username-group": "www-data:www-data", "latest": "", "digest": "", "1": "", "2": "", "3": "",
	} {
		c.add("gcr.io/k8s-staging-cri-tools/test-image-"+name+":latest", own(name, v1.Config{User: user}))
	}
	c.add("gcr.io/k8s-staging-cri-tools/test-image-tag:test", own("tag-test", v1.Config{}))
	c.add("gcr.io/k8s-staging-cri-tools/test-image-tag:all", own("tag-all", v1.Config{}))
	tags := own("tags", v1.Config{}) // one image with three tags
	for _, tag := range []string{"1", "2", "3"} {
		c.add("gcr.io/k8s-staging-cri-tools/test-image-tags:"+tag, tags)
	}
	c.add("gcr.io/k8s-staging-cri-tools/test-image-predefined-group:latest", c.image(v1.Config{User: "1000"},
		file{name: "etc/passwd", mode: 0o644, data: []byte(passwd + "default-user:x:1000:1000:Linux User,,,:/home/default-user:/bin/sh\n")},
		file{name: "etc/group", mode: 0o644, data: []byte(group + "default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n")},
		file{name: "home/default-user/", mode: 0o755, uid: 1000, gid: 1000}))

	if c.err != nil {
		return nil, fmt.Errorf("make images: %w", c.err)
	}
	slices.SortFunc(c.images, func(a, b Image) int { return strings.Compare(a.Ref, b.Ref) })
	return c.images, nil
}

// catalog collects images; its first error stops it.
type catalog struct {
	programs programs
	base     v1.Layer
	images   []Image
	err      error
}

func (c *catalog) add(ref string, img v1.Image) {
	c.images = append(c.images, Image{Ref: ref, Image: img})
}

// image is busybox with more files. Where cfg names no program it is a shell.
func (c *catalog) image(cfg v1.Config, files ...file) v1.Image {
	if len(cfg.Entrypoint) == 0 && len(cfg.Cmd) == 0 {
		cfg.Cmd = []string{"sh"}
	}
	cfg.Env = append(cfg.Env, path)
	layers := []v1.Layer{c.base}
	if len(files) > 0 {
		layers = append(layers, c.layer(files))
	}
	return c.make(cfg, layers...)
}

func (c *catalog) web(name, port string) v1.Image {
	return c.image(v1.Config{Entrypoint: []string{"/usr/bin/" + name}, Env: []string{"WEB_PORT=" + port}},
		file{name: "usr/bin/" + name, mode: 0o755, data: c.programs["websrv"]})
}

func (c *catalog) pause(version string) v1.Image {
	return c.make(v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535", Labels: map[string]string{"version": version}},
		c.layer([]file{{name: "pause", mode: 0o755, data: c.programs["pause"]}}))
}

func (c *catalog) layer(files []file) v1.Layer {
	if c.err != nil {
		return nil
	}
	l, err := layer(files)
	c.err = err
	return l
}

func (c *catalog) make(cfg v1.Config, layers ...v1.Layer) v1.Image {
	if c.err != nil {
		return nil
	}
	img, err := image(runtime.GOARCH, cfg, layers...)
	c.err = err
	return img
}

// programs maps the names of the programs inside the images to their bytes.
type programs map[string][]byte

func readPrograms(ctx context.Context, store *parts.Store) (programs, error) {
	paths, err := store.Build(ctx, parts.Images()...)
	if err != nil {
		return nil, err
	}
	p := programs{}
	for name, path := range paths {
		if p[name], err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("read the program of an image: %w", err)
		}
	}
	list, err := exec.CommandContext(ctx, paths["busybox"], "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of %s: %w", paths["busybox"], err)
	}
	p["applets"] = list
	return p, nil
}

// busyboxLayer is the root file system that most images share.
func (p programs) busyboxLayer() (v1.Layer, error) {
	var files []file
	for _, dir := range []string{"bin", "etc", "dev", "proc", "sys", "root", "var", "var/run", "var/www", "home", "usr", "usr/bin"} {
		files = append(files, file{name: dir + "/", mode: 0o755})
	}
	files = append(files,
		file{name: "tmp/", mode: 0o1777},
		file{name: "bin/busybox", mode: 0o755, data: p["busybox"]})
	for _, applet := range strings.Fields(string(p["applets"])) {
		if slices.Contains([]string{"busybox", "httpd", "nginx"}, applet) {
			continue
		}
		// Hard links: a test that masks /bin/ls must not mask busybox itself.
		files = append(files, file{name: "bin/" + applet, mode: 0o755, hardLink: "bin/busybox"})
	}
	files = append(files,
		file{name: "etc/passwd", mode: 0o644, data: []byte(passwd)},
		file{name: "etc/group", mode: 0o644, data: []byte(group)},
		// Debian's busybox-static lacks two applets that critest calls.
		file{name: "bin/pgrep", mode: 0o755, data: []byte("#!/bin/sh\nexec pidof \"$1\"\n")},
		file{name: "bin/ipcs", mode: 0o755, data: []byte("#!/bin/sh\nawk 'NR>1{printf \"0x%08x %s root %s %s\\n\",$1,$2,$3,$4}' /proc/sysvipc/shm\n")})
	return layer(files)
}
