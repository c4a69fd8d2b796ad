package v1alpha1

// Keys that users and admission set on pods. Docs: docs/ownership.md says which value each ends in.
const (
	// LabelQoS names the tier of a pod: one of Tiers().
	LabelQoS = "tideline.io/qos"

	// AnnotationRequests carries the requests of every container, which CRI does not: a JSON Requests.
	AnnotationRequests = "tideline.io/requests"
	// AnnotationBatchResources carries the batch resources of a BE pod: a JSON BatchResources.
	AnnotationBatchResources = "tideline.io/batch-resources"
	// AnnotationMemoryQoS lowers the memory protection or sets the throttling of a pod: a JSON MemoryQoS.
	AnnotationMemoryQoS = "tideline.io/memory-qos"
	// AnnotationIOQoS sets disk weight and limits of a pod below what its tier allows: a JSON IOQoS.
	AnnotationIOQoS = "tideline.io/io-qos"
	// AnnotationCPUPlacement says how the CPUs of an LSE or LSR pod are to lie: a JSON CPUPlacement.
	AnnotationCPUPlacement = "tideline.io/cpu-placement"
	// AnnotationResctrlClass gives a pod the caches and memory bandwidth of a tier that has less: a JSON ResctrlClass.
	AnnotationResctrlClass = "tideline.io/resctrl-class"
	// AnnotationDecision is the birth record that a door adds to a container (never to a pod); users do not set it.
	AnnotationDecision = "tideline.io/decision"

	// AliasKoordinatorQoS is Koordinator's tier label: LSE, LSR, LS, BE or SYSTEM, as ours.
	AliasKoordinatorQoS = "koordinator.sh/qosClass"
	// AliasVolcanoQoS is Volcano's tier, an annotation: LC and HLS are LSR, LS and BE as ours.
	AliasVolcanoQoS = "volcano.sh/qos-level"
	// AliasKatalystQoS is Katalyst's tier, an annotation: dedicated_cores is LSE, shared_cores LS, reclaimed_cores BE,
	// system_cores SYSTEM.
	AliasKatalystQoS = "katalyst.kubewharf.io/qos_level"
	// AliasKoordinatorBatch is Koordinator's form of AnnotationBatchResources (same JSON shape).
	AliasKoordinatorBatch = "node.koordinator.sh/extended-resource-spec"
)

// Extended resources of batch pods, shared by Koordinator and Volcano.
const (
	ResourceBatchCPU    = "kubernetes.io/batch-cpu"    // milli-cores
	ResourceBatchMemory = "kubernetes.io/batch-memory" // bytes
)

// Group, version and kind of the policy file.
const (
	APIVersion    = "tideline.io/v1alpha1"
	KindQoSPolicy = "QoSPolicy"
)
