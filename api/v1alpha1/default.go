package v1alpha1

// Default returns the policy that holds where there is no file, and that a file is merged over. Every call returns a
// new copy, which the caller may change.
func Default() QoSPolicy {
	return QoSPolicy{
		APIVersion: APIVersion,
		Kind:       KindQoSPolicy,
		Metadata:   Metadata{Name: "default"},
		Spec: QoSPolicySpec{
			Aliases: Aliases{Koordinator: new(true), Volcano: new(true), Katalyst: new(true)},
			Rules: []Rule{
				{Name: "system", Match: Match{Namespaces: []string{"kube-system"}}, Tier: SYSTEM},
			},
			MinSharedCPUs: new(int64(1)),
			Untiered:      UntieredPool,
			Loops:         Loops{Reconcile: LoopOn},
			Tiers: map[Tier]TierPolicy{
				LSE: {
					CPU:     CPUPolicy{Idle: new(false), Burst: BurstOff, Placement: PlacementCores, NUMA: NUMAPreferSingle, SMT: SMTIdle, MemoryMigration: new(false)},
					Memory:  MemoryPolicy{Low: new(Percent(100))},
					IO:      IOPolicy{Weight: new(int64(500))},
					OnError: Refuse,
				},
				LSR: {
					CPU:     CPUPolicy{Idle: new(false), Burst: BurstOff, Placement: PlacementCPUs, NUMA: NUMAPreferSingle, MemoryMigration: new(false)},
					Memory:  MemoryPolicy{Low: new(Percent(100))},
					IO:      IOPolicy{Weight: new(int64(500))},
					OnError: Refuse,
				},
				LS: {
					CPU:     CPUPolicy{Idle: new(false), Burst: BurstLimit},
					Memory:  MemoryPolicy{Low: new(Percent(50))},
					IO:      IOPolicy{Weight: new(int64(200))},
					OnError: Pass,
				},
				BE: {
					CPU:         CPUPolicy{Idle: new(true), Burst: BurstOff},
					Memory:      MemoryPolicy{Low: new(Percent(0)), High: new(Percent(90))},
					IO:          IOPolicy{Weight: new(int64(10)), Priority: IOPriorityLowest},
					Resctrl:     ResctrlPolicy{L3: new(Percent(30)), MB: new(Percent(50))},
					OOMScoreAdj: new(int64(900)),
					OnError:     Pass,
				},
				SYSTEM: {
					CPU:     CPUPolicy{Idle: new(false), Burst: BurstOff},
					Memory:  MemoryPolicy{Low: new(Percent(0))},
					IO:      IOPolicy{Weight: new(int64(200))},
					OnError: Pass,
				},
			},
		},
	}
}
