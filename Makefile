# Tideline. `make help` lists the targets; README.md says what they need.
SHELL := bash
CGROUP ?= v1
DOOR ?= cri
GO ?= go
E2E := cd integration && $(GO)

# Each tier prints how long it took, for the table in docs/testing.md.
define tier
@start=$$(date +%s); echo "== $(1)"; try() ( $(2) ); \
if try; then echo "== $(1): passed in $$(( $$(date +%s) - start )) s"; else echo "== $(1): FAILED"; exit 1; fi
endef

# Tiers of real programs race with the machine's load: one that fails runs once more, and says so.
define real-tier
$(call tier,$(1),($(2)) || { echo "== $(1): FAILED - once more"; ($(2)); })
endef

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 22

.PHONY: build
build: ## the programs, into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/tideline-runtime-proxy ./runtime-proxy
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/tideline-nri-plugin ./nri-plugin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/tideline ./cmd/tideline

.PHONY: image
image: build ## the NRI plugin as a container image, bin/tideline-nri-plugin.tar, for ctr -n k8s.io images import; GOARCH=arm64 for other nodes
	@cd integration && GOARCH= $(GO) run ./cmd/image -bin ../bin -o ../bin/tideline-nri-plugin.tar

.PHONY: demo
demo: ## one pod of each tier through the proxy into a real containerd, and what the kernel has; CGROUP=v2: in a VM; DOOR=nri: the plugin
	@$(E2E) run ./cmd/demo -cgroup $(CGROUP) -door $(DOOR)

.PHONY: test
test: lint unit test-doors test-e2e test-nri test-restart test-mutation test-crictl test-units test-vm test-kubelet conformance ## everything but the benchmarks

.PHONY: unit
unit: ## the quick tests: pure code, fakes, fuzz seeds
	$(call tier,unit,$(GO) test ./... && (cd integration && $(GO) test -short ./images ./parts ./vm/...))

.PHONY: race
race: ## the quick tests of the concurrent packages under the race detector
	$(call tier,race,$(GO) test -race -short ./internal/engine/... ./runtime-proxy/...)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (default 20s) each
	@set -e; for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
	  echo "== $$f in $$p"; $(GO) test -run xxx -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-20s} -fuzzminimizetime 10x $$p; done; done

.PHONY: test-e2e
test-e2e: ## the proxy with the real containerd and runc on this machine's cgroup v1
	$(call real-tier,e2e on cgroup v1,$(E2E) test -count=1 -timeout 30m ./e2e ./lab -skip 'TestRestartEverywhere|TestMutations')

.PHONY: test-nri
test-nri: ## the same through the NRI plugin, and the plugin and containerd killed and stalled in every hook
	$(call real-tier,e2e of the NRI door,$(E2E) test -count=1 -timeout 30m ./e2e -skip 'TestRestartEverywhere|TestMutations' -args -door nri)

.PHONY: test-restart
test-restart: ## the proxy killed before every call of the demo gives the same table
	$(call tier,restart,$(E2E) test -count=1 -timeout 20m ./e2e -run TestRestartEverywhere)

.PHONY: test-mutation
test-mutation: ## each way to the kernel disabled on purpose turns the demo red
	$(call tier,mutation,$(E2E) test -count=1 -timeout 30m ./e2e -run TestMutations)

.PHONY: test-vm
test-vm: ## the same tests in a VM with cgroup v2
	$(call real-tier,e2e on cgroup v2,$(E2E) test -count=1 -timeout 50m ./e2e -skip 'TestRestartEverywhere|TestMutations' -args -vm)

# DRIVER is cgroupfs or systemd: the VM's init is then our own or Debian's systemd. The flags are those of e2e/main_test.go.
define e2e-vm
@s=$$(date +%s); $(MAKE) --no-print-directory e2e-vm-part DRIVER=$(1) DOOR=$(2) || exit 1; \
s=$$(( $$(date +%s) - s )); echo "== e2e in a VM, driver $(1), door $(2): $$(( s / 60 )).$$(( s % 60 / 6 )) min"
endef

.PHONY: e2e-vm
e2e-vm: ## both doors in VMs with cgroup v2 and four NUMA nodes: under the cgroupfs driver, and under Debian's systemd
	$(call e2e-vm,cgroupfs,cri)
	$(call e2e-vm,cgroupfs,nri)
	$(call e2e-vm,systemd,cri)
	$(call e2e-vm,systemd,nri)

.PHONY: e2e-vm-part
e2e-vm-part:
	$(call real-tier,e2e in a VM: driver $(DRIVER) and door $(DOOR),$(E2E) test -count=1 -timeout 50m ./e2e -skip 'TestRestartEverywhere|TestMutations' -args -vm -door $(DOOR) $(if $(filter systemd,$(DRIVER)),-init systemd))

# SEED repeats an order, STEPS shortens it.
SEED ?= 1
STEPS ?= $(if $(filter v2,$(CGROUP)),40,200)
define storm
$(call tier,storm: cgroup $(CGROUP) and door $(1) and seed $(SEED),$(E2E) test -count=1 -timeout 50m -v ./storm -args -door $(1) -seed $(SEED) -steps $(STEPS) $(if $(filter v2,$(CGROUP)),-vm))
endef

.PHONY: storm
storm: ## pods of all tiers come, change and go and every part is restarted, by SEED: the kernel's cpusets are the engine's; CGROUP=v2: in a VM with 16 CPUs
	$(call storm,cri)
	$(call storm,nri)

.PHONY: e2e-resctrl
e2e-resctrl: ## the fake of resctrl/resctrltest against the kernel's own resctrl, row by row, and containers in groups, in VMs; not part of test
	$(call real-tier,resctrl,set -o pipefail; $(E2E) test -count=1 -timeout 30m -v ./resctrl | grep -vE '^ *(=== |vm: |own: )')

.PHONY: test-crio
test-crio: ## the NRI plugin in the real CRI-O on this machine's cgroup v1; not part of test
	$(call real-tier,CRI-O,$(E2E) test -count=1 -timeout 30m ./crio)

.PHONY: test-crictl
test-crictl: ## every ordinary command of crictl through the proxy
	$(call real-tier,crictl,$(E2E) test -count=1 -timeout 20m ./crictl)

.PHONY: conformance
conformance: ## critest's whole suite, direct and through the proxy: the same outcome; DOOR=nri: without and with the plugin
	$(call real-tier,conformance of door $(DOOR),$(E2E) test -count=1 -timeout 60m -v ./conformance -args -door $(DOOR))

.PHONY: test-kubelet
test-kubelet: ## a real kubelet and control plane over the proxy, on cgroup v1 and, in a VM, on v2
	$(call real-tier,kubelet,$(E2E) test -count=1 -timeout 40m -v ./kubelet && $(GO) test -count=1 -timeout 40m -v ./kubelet -args -vm)

.PHONY: test-doors
test-doors: ## CRI, NRI and explain come to the same for each pod of the corpus; prints what a protocol can't carry
	$(call tier,doors,set -o pipefail; $(E2E) test -count=1 -v ./doors | grep -vE '^ *(=== |--- PASS)')

.PHONY: test-units
test-units: ## the systemd units, as systemd reads them
	$(call tier,systemd units,$(E2E) test -count=1 ./units)

.PHONY: bench-proxy
bench-proxy: ## what the proxy costs, as ratios to a direct call measured in the same run
	@$(E2E) run ./cmd/bench-proxy

.PHONY: bench-nri
bench-nri: ## what the NRI plugin's hooks cost, and an idle plugin beside it
	@$(GO) test -c -o .cache/bin/bench-nri ./nri-plugin/internal/plugin
	@TMPDIR=$$(mktemp -d -p /dev/shm) && trap 'rm -rf "$$TMPDIR"' EXIT && export TMPDIR && .cache/bin/bench-nri -test.run '^$$' -test.bench '^BenchmarkTable$$' -test.benchtime 1x

.PHONY: bench-placement
bench-placement: ## what placing a pod costs on a node with 512 CPUs and 250 pods, putting all of them in order, and moving 250 containers
	@$(GO) test -c -o .cache/bin/bench-placement ./internal/placement
	@.cache/bin/bench-placement -test.run '^$$' -test.bench '^BenchmarkTable$$' -test.benchtime 1x
	@$(GO) test -c -o .cache/bin/bench-engine ./internal/engine
	@TMPDIR=/dev/shm .cache/bin/bench-engine -test.run '^$$' -test.bench '^BenchmarkPoolChange$$' -test.benchtime 20x

.PHONY: lint
lint: ## gofmt, vet and golangci-lint, also for the architecture's arrows
	$(call tier,lint,out="$$(gofmt -l .)" && { test -z "$$out" || { echo "not formatted: $$out"; exit 1; }; } && $(GO) vet ./... && (cd integration && $(GO) vet ./...) && (cd integration/tools/lint && $(GO) build -o ../../../.cache/bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint) && .cache/bin/golangci-lint run ./... && GOOS=darwin $(GO) build -o /dev/null ./cmd/tideline && GOARCH=arm64 $(GO) build ./...)

.PHONY: clean
clean: ## remove what was built, the cached parts too
	rm -rf bin .cache
