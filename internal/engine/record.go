package engine

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
)

// Record is what is kept of a container across a restart of ours: what the kubelet asked last and what was decided.
// It is written to a tmpfs, and dies with the boot as cgroups do: after a creation in the background, since the birth
// record tells as much, and before an update is forwarded.
type Record struct {
	Key        Key               `json:"key"`
	ID         string            `json:"id"`
	State      policy.State      `json:"state"`
	Pod        RecordedPod       `json:"pod"`
	Asked      *policy.Resources `json:"asked"`
	Decision   policy.Decision   `json:"decision"`
	Changed    bool              `json:"changed"`
	Unweighted bool              `json:"unweighted"`
	Stored     string            `json:"stored,omitempty"` // the cpuset.cpus of ours in the runtime's stored spec
}

// RecordedPod is what the runtime's list does not tell of a pod.
type RecordedPod struct {
	CgroupParent string `json:"cgroupParent"`
}

// maxRecord bounds a record file; ours are a few KiB, io.max lines included.
const maxRecord = 1 << 20

// records keeps one file a container. Its methods do I/O and may be called by several goroutines.
type records struct {
	dir  string
	lost bool       // until the runtime's containers were read: those that were updated before may lack their record
	mu   sync.Mutex // a half written file is nobody else's to clear away
}

// file is the path of a record. The kubelet's names are DNS labels; anything else is escaped, so that no name leaves
// the folder and no two keys share a file, or hashed where it is too long for a file.
func (r *records) file(k Key) string {
	escape := func(s string) string { return strings.ReplaceAll(url.PathEscape(s), "_", "%5F") }
	name := fmt.Sprintf("%s_%s_%d", escape(k.PodUID), escape(k.Name), k.Attempt)
	if len(name) > 200 {
		name = fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(name)))
	}
	return filepath.Join(r.dir, name+".json")
}

// open makes the folder. Where there was none the records of an earlier process of ours are lost.
func (r *records) open() error {
	err := os.Mkdir(r.dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	r.lost = true
	if err != nil {
		return fmt.Errorf("make folder of records: %w", err)
	}
	return nil
}

func (r *records) write(rec Record) error {
	return r.put(rec, os.Rename)
}

// writeFirst writes a record unless the container has one: that of a later update. An earlier container of that key may
// have left its own: a kubelet that lost a container's end makes the next one with the same attempt.
func (r *records) writeFirst(rec Record) error {
	return r.put(rec, func(tmp, path string) error {
		if there, err := readRecord(path); err == nil && there.ID == rec.ID {
			return os.Remove(tmp)
		}
		return os.Rename(tmp, path)
	})
}

// put writes a record beside its place, and has it moved there.
func (r *records) put(rec Record, move func(tmp, path string) error) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode record %s: %w", rec.Key, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	path := r.file(rec.Key)
	tmp := path + ".tmp"
	if err = os.WriteFile(tmp, data, 0o600); err == nil {
		err = move(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// remove removes the record of a container, and not that of a later one of its key.
func (r *records) remove(k Key, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := r.file(k)
	if there, err := readRecord(path); err == nil && there.ID != id {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}

// suspect says that a container without a record may have had one.
func (r *records) suspect(k Key) bool {
	_, err := os.Lstat(r.file(k) + setAside)
	return r.lost || !errors.Is(err, fs.ErrNotExist)
}

// setAside ends the name of a record that can't be used.
const setAside = ".bad"

// read gives every record. A file that is none of ours is set aside under a name of its own and reported; the
// container is then one whose asked values are unknown. A nil map means that nothing could be read at all.
func (r *records) read() (map[Key]Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read records: %w", err)
	}
	out := map[Key]Record{}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(r.dir, e.Name())
		if strings.HasSuffix(path, ".tmp") { // a write that a crash cut short
			errs = append(errs, os.Remove(path))
			continue
		}
		if !strings.HasSuffix(path, ".json") {
			continue
		}
		rec, err := readRecord(path)
		if err == nil && r.file(rec.Key) != path {
			err = fmt.Errorf("read record %s: it is about container %.300q", path, rec.Key.String())
		}
		if err != nil {
			errs = append(errs, err, os.Rename(path, path+setAside))
			continue
		}
		out[rec.Key] = rec
	}
	return out, errors.Join(errs...)
}

func readRecord(path string) (Record, error) {
	data, err := readSmall(path)
	if err != nil {
		return Record{}, err
	}
	rec, err := parseRecord(data)
	if err != nil {
		return Record{}, fmt.Errorf("read record %s: %w", path, err)
	}
	return rec, nil
}

// readSmall reads a regular file of at most maxRecord bytes.
func readSmall(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read record: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read record %s: no regular file", path)
	case info.Size() > maxRecord:
		return nil, fmt.Errorf("read record %s: %d bytes, at most %d", path, info.Size(), maxRecord)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	return data, nil
}

// parseRecord reads a record. What it says is trusted as far as it is of our making: values go to the runtime.
func parseRecord(data []byte) (Record, error) {
	var rec Record
	if err := json.Unmarshal(data, &rec); err != nil {
		return Record{}, err
	}
	switch rec.State {
	case policy.Managed, policy.Adopted, policy.Missed:
	default:
		return Record{}, fmt.Errorf("unknown state %.32q", rec.State)
	}
	for _, s := range rec.Decision.Settings {
		if s.Level != policy.LevelContainer || !slices.Contains(policy.Knobs(), s.Knob) {
			return Record{}, fmt.Errorf("setting %.32q of a %.32q is none of a container", s.Knob, s.Level)
		}
	}
	return rec, nil
}

// Birth is the JSON of the annotation v1alpha1.AnnotationDecision: what was asked and decided when a container was
// made. It never changes, since runtimes do not store annotations of updates.
type Birth struct {
	Tier  string            `json:"tier"`
	Asked policy.Resources  `json:"asked"`
	Set   map[string]string `json:"set"` // knob -> value
	// CgroupParent of the pod, which runtimes don't list.
	CgroupParent string `json:"cgroupParent"`
	Policy       string `json:"policy"`
	Generation   int    `json:"generation"`
}

// parseBirth reads a birth record; false for anything but one of ours. A program that makes containers may write what
// it likes there, so no more than knobs and a tier are taken from it. Without a tier it tells of CPUs that others own.
func parseBirth(s string) (Birth, bool) {
	var b Birth
	if s == "" || len(s) > maxRecord || json.Unmarshal([]byte(s), &b) != nil || !v1alpha1.Tier(b.Tier).Valid() && (b.Tier != "" || len(b.Set) == 0) {
		return Birth{}, false
	}
	return b, true
}

// BornView is the view that a birth record gives, for a container that the engine does not know yet; nil for anything
// but a record of ours.
func BornView(birth string) *View {
	b, ok := parseBirth(birth)
	if !ok {
		return nil
	}
	return &View{Asked: b.Asked, Settings: b.decision().Settings}
}

// parent gives the pod's facts as they were when the container was made: runtimes don't list the cgroup.
func (b Birth) parent(pod policy.Pod) policy.Pod {
	if b.CgroupParent != "" {
		pod.CgroupParent, pod.KubeQoS = b.CgroupParent, cri.KubeQoS(b.CgroupParent)
	}
	return pod
}

// decision gives what a birth record tells of a decision: values without reasons.
func (b Birth) decision() policy.Decision {
	d := policy.Decision{Tier: v1alpha1.Tier(b.Tier)}
	for _, k := range policy.Knobs() {
		if v, ok := b.Set[string(k)]; ok {
			d.Settings = append(d.Settings, policy.Setting{Knob: k, Level: policy.LevelContainer, Value: v, Rule: v1alpha1.AnnotationDecision, Reason: "decided when the container was made"})
		}
	}
	return d
}
