package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/internal/units"
)

// manifest is a pod with the object that it comes from.
type manifest struct {
	origin string // "Pod demo/web", "Deployment shop/cart"
	pod    *corev1.Pod
}

// parsed is what a file holds.
type parsed struct {
	pods     []manifest
	warnings []string // unknown fields
	skipped  []string // objects without pods, "Service shop/cart"
}

// maxManifest bounds what is read of a file.
const maxManifest = 64 << 20

// parseManifests reads YAML documents or JSON: pods, workloads with a pod template, and lists of these. namespace stands
// in where an object names none.
func parseManifests(r io.Reader, namespace string) (parsed, error) {
	var out parsed
	data, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return out, err
	}
	if len(data) > maxManifest {
		return out, fmt.Errorf("more than %d MiB", maxManifest>>20)
	}
	for i, doc := range documents(data) {
		if err := out.add(doc, namespace); err != nil {
			return out, fmt.Errorf("document %d: %w", i+1, err)
		}
	}
	return out, nil
}

// documents splits YAML at lines that start with "---".
func documents(data []byte) [][]byte {
	var out [][]byte
	var doc bytes.Buffer
	flush := func() {
		if len(bytes.TrimSpace(doc.Bytes())) > 0 {
			out = append(out, bytes.Clone(doc.Bytes()))
		}
		doc.Reset()
	}
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Buffer(nil, len(data)+1)
	for s.Scan() {
		if line := s.Bytes(); bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 || line[3] == ' ' || line[3] == '\r' || line[3] == '\t') {
			flush()
			continue
		}
		doc.Write(s.Bytes())
		doc.WriteByte('\n')
	}
	flush()
	return out
}

// object is what is needed of any object.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Items             []any `json:"items"`
}

// workload holds a pod template, a CronJob one level deeper.
type workload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Template    *corev1.PodTemplateSpec `json:"template"`
		JobTemplate *struct {
			Spec struct {
				Template *corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		} `json:"jobTemplate"`
	} `json:"spec"`
}

// checkQuantities looks at the texts that will be read as quantities: resource.Quantity works for minutes on an exponent
// of six digits. It names the field, which resource.Quantity does not.
func checkQuantities(path, key string, v any) error {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			at := strings.TrimPrefix(path+"."+k, ".")
			text, isText := v[k].(string)
			if isText && (key == "limits" || key == "requests" || key == "overhead" || k == "sizeLimit" || k == "divisor") {
				if _, err := units.ParseInteger(text); err != nil {
					return fmt.Errorf("%s: %w", at, err)
				}
				continue
			}
			if err := checkQuantities(at, k, v[k]); err != nil {
				return err
			}
		}
	case []any:
		for i, item := range v {
			if err := checkQuantities(fmt.Sprintf("%s[%d]", path, i), "", item); err != nil {
				return err
			}
		}
	}
	return nil
}

// suffix is how pods of a workload are called after it; the letters stand for what Kubernetes makes up.
func suffix(kind string) (string, bool) {
	switch kind {
	case "Deployment":
		return "-xxxxxxxxxx-xxxxx", true
	case "DaemonSet", "ReplicaSet", "ReplicationController", "Job":
		return "-xxxxx", true
	case "CronJob":
		return "-xxxxxxxx-xxxxx", true
	case "StatefulSet":
		return "-0", true
	}
	return "", false
}

func (p *parsed) add(doc []byte, namespace string) error {
	var o object
	if err := yaml.Unmarshal(doc, &o); err != nil {
		return err
	}
	if o.Kind == "" {
		if len(bytes.TrimSpace(dropComments(doc))) == 0 {
			return nil
		}
		return errors.New("it has no kind, so it is no Kubernetes object")
	}
	if o.Kind == "List" || strings.HasSuffix(o.Kind, "List") && o.Items != nil {
		for i, item := range o.Items {
			m, ok := item.(map[string]any)
			if ok && m["kind"] == nil { // a typed list leaves the kind out
				m["kind"] = strings.TrimSuffix(o.Kind, "List")
			}
			data, err := yaml.Marshal(item)
			if err != nil {
				return err
			}
			if err := p.add(data, namespace); err != nil {
				return fmt.Errorf("item %d: %w", i+1, err)
			}
		}
		return nil
	}
	if o.Namespace == "" {
		o.Namespace = namespace
	}
	origin := fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name+o.GenerateName)
	var tree any
	if err := yaml.Unmarshal(doc, &tree); err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	if err := checkQuantities("", "", tree); err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	if o.Kind == "Pod" {
		pod := &corev1.Pod{}
		if err := p.warn(origin, doc, pod); err != nil {
			return fmt.Errorf("%s: %w", origin, err)
		}
		if pod.Name == "" && pod.GenerateName != "" {
			pod.Name = pod.GenerateName + "xxxxx"
		}
		return p.keep(origin, o.Namespace, pod)
	}
	end, ok := suffix(o.Kind)
	if !ok {
		p.skipped = append(p.skipped, origin)
		return nil
	}
	var w workload
	if err := yaml.Unmarshal(doc, &w); err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	template := w.Spec.Template
	if w.Spec.JobTemplate != nil {
		template = w.Spec.JobTemplate.Spec.Template
	}
	if template == nil {
		return fmt.Errorf("%s: it has no pod template", origin)
	}
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	data, err := templateOf(doc)
	if err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	if err := p.warn(origin, data, &corev1.PodTemplateSpec{}); err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	pod.Name = o.Name + end
	return p.keep(origin, o.Namespace, pod)
}

func (p *parsed) keep(origin, namespace string, pod *corev1.Pod) error {
	pod.Namespace = namespace
	if len(pod.Spec.Containers) == 0 {
		return fmt.Errorf("%s: spec.containers is empty", origin)
	}
	p.pods = append(p.pods, manifest{origin: origin, pod: pod})
	return nil
}

// warn notes fields that are unknown here: typing errors, or those of a newer Kubernetes.
func (p *parsed) warn(origin string, doc []byte, like any) error {
	data, err := yaml.YAMLToJSON(doc)
	if err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(data, like, kjson.DisallowUnknownFields)
	for _, e := range strict {
		p.warnings = append(p.warnings, origin+": "+e.Error())
	}
	return err
}

// templateOf cuts the pod template out of a workload as it was written.
func templateOf(doc []byte) ([]byte, error) {
	var w struct {
		Spec struct {
			Template    any `json:"template"`
			JobTemplate struct {
				Spec struct {
					Template any `json:"template"`
				} `json:"spec"`
			} `json:"jobTemplate"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(doc, &w); err != nil {
		return nil, err
	}
	if w.Spec.JobTemplate.Spec.Template != nil {
		return yaml.Marshal(w.Spec.JobTemplate.Spec.Template)
	}
	return yaml.Marshal(w.Spec.Template)
}

func dropComments(doc []byte) []byte {
	var out []byte
	for line := range bytes.Lines(doc) {
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			out = append(out, line...)
		}
	}
	return out
}
