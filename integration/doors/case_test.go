package doors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"
	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/policy"
)

// topic is one file of testdata.
type topic struct {
	Topic string     `json:"topic"`
	Cases []testCase `json:"cases"`
	file  string
}

// testCase is one pod, from its manifest to what its containers end with.
type testCase struct {
	Name      string `json:"name"`
	Why       string `json:"why"`
	Machine   string `json:"machine"`   // of machines.yaml; "" is v2
	Driver    string `json:"driver"`    // of cgroups: cgroupfs (also "") or systemd
	Policy    string `json:"policy"`    // spec of a policy file, laid over the defaults
	Admission string `json:"admission"` // "off": the cluster has no admission policy, so no annotation is added
	// Pod is the manifest. "${fill N}" in it stands for N bytes.
	Pod json.RawMessage `json:"pod"`
	// Kubelet is what a node adds that no manifest tells.
	Kubelet kubeletAdds `json:"kubelet"`
	// Because names the difference, by door, that gives this pod another decision there.
	Because map[string]string `json:"because"`
	Want    want              `json:"want"`
	Updates []testUpdate      `json:"updates"`
}

type kubeletAdds struct {
	CgroupParent *string           `json:"cgroupParent"` // instead of the usual one
	NoUID        bool              `json:"noUID"`        // as of crictl and a file without one
	KeepsInit    bool              `json:"keepsInit"`    // init containers that have ended are not removed
	PauseLabels  map[string]string `json:"pauseLabels"`  // of the pause image
	Containers   map[string]asks   `json:"containers"`
}

// asks is what is put into a CRI message beside what the manifest says.
type asks struct {
	Nothing    bool              `json:"nothing"` // no LinuxContainerResources at all
	CPUSetCPUs string            `json:"cpusetCPUs"`
	CPUSetMems string            `json:"cpusetMems"`
	CPUShares  int64             `json:"cpuShares"`
	CPUQuota   int64             `json:"cpuQuota"`
	CPUPeriod  int64             `json:"cpuPeriod"`
	Memory     int64             `json:"memory"`
	Swap       int64             `json:"swap"`
	OOM        int64             `json:"oomScoreAdj"`
	Hugepages  map[string]uint64 `json:"hugepages"`
	Unified    map[string]string `json:"unified"`
	Restarts   uint32            `json:"restarts"`
}

// testUpdate is one step of a running pod.
type testUpdate struct {
	Name         string                                 `json:"name"`
	Resize       map[string]corev1.ResourceRequirements `json:"resize"`       // new resources of containers, as the kubelet then asks
	PodResources *corev1.ResourceRequirements           `json:"podResources"` // new resources of the pod
	Asks         map[string]asks                        `json:"asks"`         // messages with these fields alone, as the CPU manager's
	Want         want                                   `json:"want"`
}

// want is what all doors shall come to. Set holds what differs in the OCI spec from one without Tideline, "-" for none.
type want struct {
	Tier       string                   `json:"tier"`
	From       string                   `json:"from"`
	Pod        map[string]string        `json:"pod"`
	Containers map[string]wantContainer `json:"containers"`
	missing    bool
}

type wantContainer struct {
	Set     map[string]string `json:"set,omitempty"`
	Files   map[string]string `json:"files,omitempty"` // written to the cgroup's files, since no protocol carries them here
	Notes   []string          `json:"notes,omitempty"`
	Refused string            `json:"refused,omitempty"` // the key at fault
}

// UnmarshalJSON takes "?" for what -update is to fill in.
func (w *want) UnmarshalJSON(b []byte) error {
	if string(b) == `"?"` {
		w.missing = true
		return nil
	}
	type plain want
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode((*plain)(w))
}

// text is w in the form of the files.
func (w want) text(indent string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{tier: %q, from: %s", w.Tier, w.From)
	if len(w.Pod) > 0 {
		fmt.Fprintf(&b, ", pod: %s", flow(w.Pod))
	}
	b.WriteString(", containers: {")
	for i, name := range slices.Sorted(maps.Keys(w.Containers)) {
		if i > 0 {
			b.WriteString(",")
		}
		c := w.Containers[name]
		var parts []string
		if len(c.Set) > 0 {
			parts = append(parts, "set: "+flow(c.Set))
		}
		if len(c.Files) > 0 {
			parts = append(parts, "files: "+flow(c.Files))
		}
		if len(c.Notes) > 0 {
			parts = append(parts, "notes: ["+strings.Join(c.Notes, ", ")+"]")
		}
		if c.Refused != "" {
			parts = append(parts, "refused: "+c.Refused)
		}
		fmt.Fprintf(&b, "\n%s  %s: {%s}", indent, name, strings.Join(parts, ", "))
	}
	b.WriteString("}}")
	return b.String()
}

func flow(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+": "+strconv.Quote(m[k]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// machine is what a decision may know of a node.
type machine struct {
	CgroupVersion int               `json:"cgroupVersion"`
	CPUs          string            `json:"cpus"`
	MemoryGiB     int64             `json:"memoryGiB"`
	PageSize      int64             `json:"pageSize"`
	Lacks         map[string]string `json:"lacks"` // knob, and what it needs
	Disks         []policy.Device   `json:"disks"`
}

func (m machine) node(t testing.TB) policy.Node {
	t.Helper()
	online, err := cpuset.Parse(m.CPUs)
	if err != nil {
		t.Fatal(err)
	}
	features := map[policy.Knob]policy.Feature{}
	for _, k := range policy.Knobs() {
		features[k] = policy.Feature{Support: policy.Supported}
		if need, ok := m.Lacks[string(k)]; ok {
			features[k] = policy.Feature{Support: policy.Unsupported, Need: need}
		}
	}
	return policy.Node{CgroupVersion: m.CgroupVersion, Online: online, Features: features, Devices: m.Disks, PageSize: m.PageSize}
}

func (c *testCase) options(m machine) kube.Options {
	return kube.Options{MemTotalBytes: m.MemoryGiB << 30, CgroupDriver: kube.CgroupDriver(c.Driver), CgroupVersion: m.CgroupVersion}
}

// uid is what the API server gives every pod here.
const uid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"

var fill = regexp.MustCompile(`\$\{fill (\d+)\}`)

// filled is s with its "${fill N}" written out.
func filled(s string) string {
	return fill.ReplaceAllStringFunc(s, func(m string) string {
		n, _ := strconv.Atoi(fill.FindStringSubmatch(m)[1]) // digits
		return strings.Repeat("x", n)
	})
}

// manifest reads the pod as its user wrote it.
func (c *testCase) manifest() (*corev1.Pod, error) {
	p := &corev1.Pod{}
	d := json.NewDecoder(strings.NewReader(filled(string(c.Pod))))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, err
	}
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	return p, nil
}

func (c *testCase) policy() (*policy.Policy, error) {
	spec := v1alpha1.Default()
	if c.Policy != "" {
		text := "apiVersion: " + v1alpha1.APIVersion + "\nkind: " + v1alpha1.KindQoSPolicy + "\nspec:\n"
		for line := range strings.Lines(c.Policy) {
			text += "  " + line
		}
		var err error
		if spec, err = v1alpha1.ParsePolicy([]byte(text)); err != nil {
			return nil, err
		}
	}
	return policy.Compile(spec.Spec)
}

const machinesFile = "machines.yaml"

// load reads testdata.
func load(t testing.TB) (map[string]machine, []topic) {
	t.Helper()
	read := func(file string, into any) {
		b, err := os.ReadFile(filepath.Join("testdata", file))
		if err == nil {
			err = yaml.UnmarshalStrict(b, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	machines := map[string]machine{}
	read(machinesFile, &machines)
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var topics []topic
	names := map[string]bool{}
	for _, f := range files {
		f = filepath.Base(f)
		if f == machinesFile {
			continue
		}
		tp := topic{file: f}
		read(f, &tp)
		if tp.Topic == "" || len(tp.Cases) == 0 {
			t.Fatalf("%s: want a topic and cases", f)
		}
		for i := range tp.Cases {
			c := &tp.Cases[i]
			if c.Machine == "" {
				c.Machine = "v2"
			}
			if err := c.check(machines); err != nil || names[c.Name] {
				t.Fatalf("%s: case %q: %v, or its name is used twice", f, c.Name, err)
			}
			names[c.Name] = true
		}
		topics = append(topics, tp)
	}
	return machines, topics
}

func (c *testCase) check(machines map[string]machine) error {
	var errs []error
	if c.Name == "" || c.Why == "" {
		errs = append(errs, errors.New("want a name and a why"))
	}
	if _, ok := machines[c.Machine]; !ok {
		errs = append(errs, fmt.Errorf("no machine %q", c.Machine))
	}
	switch c.Driver {
	case "", string(kube.Cgroupfs), string(kube.Systemd):
	default:
		errs = append(errs, fmt.Errorf("no driver %q", c.Driver))
	}
	if c.Admission != "" && c.Admission != "off" {
		errs = append(errs, fmt.Errorf("admission %q", c.Admission))
	}
	_, err := c.manifest()
	_, policyErr := c.policy()
	return errors.Join(append(errs, err, policyErr)...)
}
