package images

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/tideline-io/tideline/integration/parts"
)

// ArchiveName is the file name of the archive, also in the folder of
// parts.DirEnv.
const ArchiveName = "images.tar"

// The archive depends on this package, so its own sources are part of the key.
//
//go:embed *.go
var sources embed.FS

// Archive returns the path of a docker archive with the images Pause, Busybox
// and Web. It is made once for each state of the programs and of this package;
// where the store is a folder of finished parts it has to be there.
func Archive(ctx context.Context, store *parts.Store) (string, error) {
	if dir := store.Fixed(); dir != "" {
		path := filepath.Join(dir, ArchiveName)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("find the archive of images: %w", err)
		}
		return path, nil
	}
	dir, err := store.CacheDir("images")
	if err != nil {
		return "", err
	}
	key, err := archiveKey(ctx, store)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, key, ArchiveName)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	unlock, err := store.Lock(ctx, "images")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	store.Progress("packing images …")
	all, err := Catalog(ctx, store)
	if err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(dir, ".new-*")
	if err != nil {
		return "", fmt.Errorf("make a folder for the images: %w", err)
	}
	defer os.RemoveAll(temp)
	if err := writeArchive(filepath.Join(temp, ArchiveName), all, Pause, Busybox, Web); err != nil {
		return "", err
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(temp, filepath.Dir(path)); err != nil {
		return "", err
	}
	return path, nil
}

// archiveKey hashes what the archive depends on: the keys of the parts are in
// the paths of their programs.
func archiveKey(ctx context.Context, store *parts.Store) (string, error) {
	paths, err := store.Build(ctx, parts.Images()...)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, name := range parts.Images() {
		fmt.Fprintln(h, filepath.Base(filepath.Dir(paths[name])))
	}
	files, err := fs.Glob(sources, "*.go")
	if err != nil {
		return "", err
	}
	for _, name := range files {
		b, err := sources.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, name, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}

func writeArchive(path string, all []Image, refs ...string) error {
	images := map[name.Reference]v1.Image{}
	for _, img := range all {
		if !slices.Contains(refs, img.Ref) {
			continue
		}
		tag, err := name.NewTag(img.Ref)
		if err != nil {
			return fmt.Errorf("parse image reference %s: %w", img.Ref, err)
		}
		images[tag] = img.Image
	}
	if len(images) != len(refs) {
		return fmt.Errorf("write %s: got %d images, want %d", path, len(images), len(refs))
	}
	if err := tarball.MultiRefWriteToFile(path, images); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
