package kube

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

// Admit sets on a pod the annotations that Tideline's admission policies set in a cluster, and tells the keys of those
// it set, in order: the batch resources of its containers, which CRI does not carry, and their CPU and memory requests. An annotation that is there already stays as it is, and
// Koordinator's form counts as the first. A pod that names no such resource is left alone.
func Admit(p *corev1.Pod) (changed []string) {
	with := defaulted(p)
	batch := v1alpha1.BatchResources{Containers: map[string]v1alpha1.BatchContainer{}}
	asked := v1alpha1.Requests{Containers: map[string]v1alpha1.ResourceNames{}}
	for c := range containers(with) {
		b := v1alpha1.BatchContainer{
			Requests: pick(c.Resources.Requests, v1alpha1.ResourceBatchCPU, v1alpha1.ResourceBatchMemory),
			Limits:   pick(c.Resources.Limits, v1alpha1.ResourceBatchCPU, v1alpha1.ResourceBatchMemory),
		}
		if b.Requests != nil || b.Limits != nil {
			batch.Containers[c.Name] = b
		}
		if r := pick(c.Resources.Requests, corev1.ResourceCPU, corev1.ResourceMemory); r != nil {
			asked.Containers[c.Name] = r
		}
	}
	_, koordinator := p.Annotations[v1alpha1.AliasKoordinatorBatch]
	if len(batch.Containers) > 0 && !koordinator && annotate(p, v1alpha1.AnnotationBatchResources, batch) {
		changed = append(changed, v1alpha1.AnnotationBatchResources)
	}
	if len(asked.Containers) > 0 && annotate(p, v1alpha1.AnnotationRequests, asked) {
		changed = append(changed, v1alpha1.AnnotationRequests)
	}
	return changed
}

func pick(list corev1.ResourceList, names ...corev1.ResourceName) v1alpha1.ResourceNames {
	var out v1alpha1.ResourceNames
	for _, name := range names {
		if q, ok := list[name]; ok {
			if out == nil {
				out = v1alpha1.ResourceNames{}
			}
			out[string(name)] = q.String()
		}
	}
	return out
}

// annotate sets a key that is missing. Strings in maps always encode.
func annotate(p *corev1.Pod, key string, value any) bool {
	if _, ok := p.Annotations[key]; ok {
		return false
	}
	data, err := json.Marshal(value)
	if err != nil {
		return false
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[key] = string(data)
	return true
}
