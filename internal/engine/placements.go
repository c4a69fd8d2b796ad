package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/units"
)

// Placement is what is kept of a pod's placement across a restart of ours. It is written when the pod is placed, before
// any of its containers is made, and dies with the boot.
type Placement struct {
	UID   string         `json:"uid"`
	Tier  v1alpha1.Tier  `json:"tier"`
	Count int            `json:"count"`
	NUMA  placement.NUMA `json:"numa,omitempty"`
	SMT   placement.SMT  `json:"smt,omitempty"`
	Since int64          `json:"since"`
	CPUs  string         `json:"cpus"`
}

func placementOf(a placement.Assignment) Placement {
	return Placement{UID: a.UID, Tier: a.Tier, Count: a.Count, NUMA: a.NUMA, SMT: a.SMT, Since: a.Since, CPUs: units.FormatCPUs(a.CPUs)}
}

// assignment is what placement.Rebuild takes; what makes no sense it does not keep.
func (p Placement) assignment() (placement.Assignment, error) {
	set, err := units.ParseCPUs(p.CPUs)
	return placement.Assignment{
		Request: placement.Request{UID: p.UID, Tier: p.Tier, Count: p.Count, NUMA: p.NUMA, SMT: p.SMT, Since: p.Since}, CPUs: set,
	}, err
}

// placements keeps one file a pod. Its methods do I/O and may be called by several goroutines.
type placements struct {
	dir     string
	mu      sync.Mutex
	written map[string]Placement // by pod UID: what the files say
}

func (p *placements) file(uid string) string {
	return filepath.Join(p.dir, strings.ReplaceAll(url.PathEscape(uid), ".", "%2E")+".json")
}

// maxUID is far above the 36 bytes of a UID.
const maxUID = 80

// read gives every placement. A file that is none of ours is set aside.
func (p *placements) read() ([]placement.Assignment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written = map[string]Placement{}
	if err := os.Mkdir(p.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make folder of placements: %w", err)
	}
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, fmt.Errorf("read placements: %w", err)
	}
	var out []placement.Assignment
	var errs []error
	for _, entry := range entries {
		path := filepath.Join(p.dir, entry.Name())
		if strings.HasSuffix(path, ".tmp") {
			errs = append(errs, os.Remove(path))
			continue
		}
		if !strings.HasSuffix(path, ".json") {
			continue
		}
		var kept Placement
		data, err := readSmall(path)
		if err == nil {
			err = json.Unmarshal(data, &kept)
		}
		if err == nil && p.file(kept.UID) != path {
			err = fmt.Errorf("it is about pod %.300q", kept.UID)
		}
		var a placement.Assignment
		if err == nil {
			a, err = kept.assignment()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read placement %s: %w", path, err), os.Rename(path, path+setAside))
			continue
		}
		p.written[kept.UID] = kept
		out = append(out, a)
	}
	return out, errors.Join(errs...)
}

// keep makes the files say what the state does.
func (e *Engine) keep(ctx context.Context) {
	p := &e.placements
	p.mu.Lock()
	defer p.mu.Unlock()
	now := map[string]Placement{}
	if err := e.query(ctx, func(s *state) {
		for uid, a := range s.cpus.placed {
			now[uid] = placementOf(a)
		}
	}); err != nil {
		return // the engine ends, or is told again
	}
	var errs []error
	for uid, kept := range now {
		if p.written[uid] == kept || len(uid) > maxUID {
			continue
		}
		err := p.write(kept)
		if err == nil {
			p.written[uid] = kept
		}
		errs = append(errs, err)
	}
	for uid := range p.written {
		if _, placed := now[uid]; placed {
			continue
		}
		err := os.Remove(p.file(uid))
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			delete(p.written, uid)
			continue
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if err != nil {
		e.cfg.Log.Warn("keep placements", "err", err)
	}
	e.outcome("placements", "", err)
}

func (p *placements) write(kept Placement) error {
	data, err := json.Marshal(kept)
	if err != nil {
		return fmt.Errorf("encode placement: %w", err)
	}
	path := p.file(kept.UID)
	if err = os.WriteFile(path+".tmp", data, 0o600); err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return fmt.Errorf("write placement: %w", err)
	}
	return nil
}
