package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/tideline-io/tideline/integration/parts"
)

// A Registry serves every image of the catalog from memory, whatever the host
// of its reference.
type Registry struct {
	listener net.Listener
	server   *http.Server
	done     chan error
}

// Serve starts a registry on a loopback address, such as 127.0.0.1:0, and
// returns when it holds all images. The caller has to close it.
func Serve(ctx context.Context, store *parts.Store, address string) (*Registry, error) {
	all, err := Catalog(ctx, store)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve images: %w", err)
	}
	quiet := log.New(io.Discard, "", 0)
	r := &Registry{
		listener: l,
		server:   &http.Server{Handler: registry.New(registry.Logger(quiet)), ErrorLog: quiet, ReadHeaderTimeout: time.Minute},
		done:     make(chan error, 1),
	}
	go func() { r.done <- r.server.Serve(l) }()
	for _, img := range all {
		if err := r.push(ctx, img); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

// push stores one image under its repository and tag.
func (r *Registry) push(ctx context.Context, img Image) error {
	tag, err := name.NewTag(img.Ref)
	if err != nil {
		return fmt.Errorf("parse image reference %s: %w", img.Ref, err)
	}
	// Repositories of different hosts share this one: containerd asks for
	// the path of a reference and names its host in a query only.
	to, err := name.NewTag(r.Address()+"/"+tag.RepositoryStr()+":"+tag.TagStr(), name.Insecure)
	if err != nil {
		return fmt.Errorf("parse image reference %s: %w", img.Ref, err)
	}
	if err := remote.Write(to, img.Image, remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("store image %s: %w", img.Ref, err)
	}
	return nil
}

// Address returns the host and port of the registry.
func (r *Registry) Address() string { return r.listener.Addr().String() }

// Close stops the registry and waits for its end.
func (r *Registry) Close() error {
	err := r.server.Close()
	if served := <-r.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
