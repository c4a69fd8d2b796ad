// Package doors proves that the doors agree. Each case of testdata is a pod as a user writes it, on a machine and under a
// policy. The tests say it as the CRI messages that a kubelet sends, as the NRI messages that containerd makes of them,
// and as the manifest that `tideline explain -f` reads, and compare what each door makes of it: facts, decisions, and the
// resources in the OCI spec. What differs is in one closed list, which docs/doors.md shows.
//
//	make test-doors
//
// The tests run the engine and the packages facts, policy and apply. Of the doors' own code they follow the hooks line by
// line, since those are internal to the doors. containerd is the model of internal/facts/nri/nritest.
package doors
