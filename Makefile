# What people and CI do. `make help` lists it; CONTRIBUTING.md explains it.
# Everything made here is in bin/, dist/, site/dist/ and .cache/, except programs for tests and the
# durations of test runs: they are in CACHE, which all checkouts of a user share.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

# hack/setup.sh puts Go there if the machine has none that is new enough.
export PATH := $(CURDIR)/.cache/go/bin:$(PATH)

CACHE        := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sluice-build
LINT_VERSION := v2.15.0
LINT         := $(CACHE)/golangci-lint-$(LINT_VERSION)/golangci-lint
ACTIONLINT_VERSION := v1.7.12
ACTIONLINT   := $(CACHE)/actionlint-$(ACTIONLINT_VERSION)/actionlint
VULN_VERSION := v1.9.0
# govulncheck reads code only of the Go that it was built with, or an older one.
VULN          = $(CACHE)/govulncheck-$(VULN_VERSION)-$$(go env GOVERSION)/govulncheck
FUZZTIME     ?= 20s
BENCH        ?= .
VERSUS       ?=
PLANE        ?=
SITE_BASE    ?= /

# A folder with kube-apiserver, etcd and kube-proxy, one with kubectl, helm,
# prometheus, promtool and coredns, one with an older kernel, and one with kubelet and the rest of the control plane; made if they lack them.
export KUBEBUILDER_ASSETS ?= $(CURDIR)/.cache/test-assets
export TEST_TOOLS         ?= $(CURDIR)/.cache/test-tools
export TEST_KERNEL        ?= $(CURDIR)/.cache/test-kernel
export TEST_CLUSTER       ?= $(CURDIR)/.cache/test-cluster

# The version is that of the last tag, if this is a Git checkout with one.
VERSION ?= $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null || git describe --always --dirty --exclude '*' 2>/dev/null | sed 's/^/v0.0.0-dev+/')
LDFLAGS := -s -w -X github.com/sluice-proxy/sluice/internal/cli.stamp=$(VERSION)
# All programs are built alike, so that they share compiled packages.
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false
RELEASE := $(GOBUILD) -ldflags '$(LDFLAGS)'
# golangci-lint compiles packages as make build does, and so uses those that it has compiled.
LINTED  := GOFLAGS=-trimpath CGO_ENABLED=0
SUITE   := .cache/bin/suite -cache $(CACHE)
SYSTEMS := $(foreach os,linux darwin windows,$(foreach arch,amd64 arm64,bin/sluice-$(os)-$(arch)$(if $(filter windows,$(os)),.exe)))

.PHONY: help build build-all image dist demo cluster cluster-down check plane unit test test-rest test-all suite test-assets test-tools test-kernel test-cluster \
	lint lint-changed linter vuln vex vet-systems fmt bench fuzz site clean distclean setup-build setup-demo setup-test setup-kernel setup-rest setup-cluster setup-site

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

build: setup-build ## bin/sluice, one static binary (the default)
	@$(RELEASE) -o bin/sluice ./cmd/sluice

build-all: $(SYSTEMS) ## bin/sluice-{linux,darwin,windows}-{amd64,arm64}

bin/sluice-%: setup-build
	@echo 'building $@'
	@system='$(basename $*)'; GOOS=$${system%-*} GOARCH=$${system#*-} $(RELEASE) -o $@ ./cmd/sluice

IMAGE = SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} go run -trimpath ./hack/image -version '$(VERSION)'
IMAGE_PROGRAMS = $(foreach arch,amd64 arm64,linux/$(arch)=bin/sluice-linux-$(arch))

image: bin/sluice-linux-amd64 bin/sluice-linux-arm64 ## both images for amd64 and arm64, as OCI image layouts in dist/image and dist/image-iptables
	@rm -rf dist/image dist/image-iptables
	@$(IMAGE) -out dist/image $(IMAGE_PROGRAMS)
	@for arch in amd64 arm64; do hack/image/debian.sh $$arch $(CACHE)/debian/$$arch; done
	@$(IMAGE) -out dist/image-iptables -packages $(CACHE)/debian $(IMAGE_PROGRAMS)

dist: setup-build ## the files of a release in dist/: archives, images, chart, manifests, bills of materials, licences, checksums
	@hack/dist.sh '$(VERSION)'

demo: setup-demo build ## a little cluster in namespaces, with real traffic; touches nothing else
	@$(GOBUILD) -o bin/sluice-demo ./test/demo
	@bin/sluice-demo

cluster: setup-cluster build test-cluster test-assets test-tools ## a real cluster in namespaces, for trying things: kubelets, containers, CoreDNS, Sluice
	@.cache/bin/cluster up

cluster-down: ## end it; nothing is left
	@if [[ -x .cache/bin/cluster ]]; then .cache/bin/cluster down; fi

check: setup-test suite ## the loop of a working day: unit tests, changed packages, lint, real packets in mode nftables
	@$(SUITE) check

plane: setup-test $(if $(filter kernelspace,$(PLANE)),setup-rest) suite ## everything of one plane: make plane PLANE=ipvs
	@$(SUITE) plane $(PLANE)

unit: suite ## the quick tests, without root: under a minute
	@$(SUITE) unit

test: setup-test suite ## everything on this machine's kernel, what it needs included
	@$(SUITE) $(if $(SUM),-add $(SUM)) test

test-rest: setup-rest suite ## the rest: Linux 6.1, deployments, Windows, attacks, all seeds, other systems
	@$(SUITE) $(if $(SUM),-add $(SUM)) test-rest

test-all: ## test, then test-rest, and one sum
	@mkdir -p .cache; rm -f .cache/sum; status=0; \
	for target in test test-rest; do $(MAKE) $$target SUM=.cache/sum || status=1; done; exit $$status

suite: setup-build
	@$(GOBUILD) -o .cache/bin/suite ./hack/suite

test-assets: setup-build ## the real API server, etcd and kube-proxy for the tests: minutes, once
	@KUBEBUILDER_ASSETS= hack/test-assets.sh "$(KUBEBUILDER_ASSETS)"

test-tools: setup-build ## kubectl, helm, prometheus and coredns for the tests: minutes, once
	@hack/test-tools.sh "$(TEST_TOOLS)"

test-kernel: setup-kernel ## Linux 6.1 for the tests, as a program: minutes, once
	@hack/test-kernel.sh "$(TEST_KERNEL)"

test-cluster: setup-build ## kubelet, controller manager and scheduler for make cluster and its tests: minutes, once
	@hack/test-cluster.sh "$(TEST_CLUSTER)"
	@$(GOBUILD) -o .cache/bin/pod ./test/cluster/pod
	@$(GOBUILD) -o .cache/bin/cluster ./test/cluster

lint: setup-build linter ## house style, formatting, modules, shell scripts, workflows
	@$(LINTED) $(LINT) run ./...
	@go mod tidy -diff 2> >(grep -v '^go: downloading' >&2)
	@if command -v shellcheck >/dev/null; then shellcheck hack/*.sh hack/*/*.sh .ci/run; else echo 'lint: no shellcheck here, scripts not checked'; fi
	@$(ACTIONLINT)

lint-changed: setup-build linter ## the same of packages that differ from the main branch
	@packages=$$(hack/changed.sh); if [[ -n $$packages ]]; then $(LINTED) $(LINT) run $$packages; else echo 'no package has changed'; fi

# The packages of the program compile on other systems, with their tests; those
# that are for Linux are not among them. The flags are those of build-all, whose
# compiled packages this uses.
vet-systems: setup-build
	@for system in darwin/amd64 windows/amd64 windows/arm64; do \
		echo "vetting for $$system"; \
		export GOOS=$${system%/*} GOARCH=$${system#*/} CGO_ENABLED=0; \
		go vet -trimpath $$(go list -deps ./cmd/sluice | grep '^github.com/sluice-proxy/sluice/'); \
	done

fmt: setup-build linter ## format the code
	@$(LINT) fmt ./...

linter: setup-build
	@$(call once,$(LINT),github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION))
	@$(call once,$(ACTIONLINT),github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION))

# $(call once,PROGRAM,PACKAGE@VERSION) is a command that builds a program if it is not there.
once = if [[ ! -x $(1) ]]; then \
		echo 'building $(notdir $(2)), once: up to some minutes'; \
		GOBIN=$$(dirname $(1)) GOFLAGS= nice go install $(2) 2> >(grep -v '^go: downloading' >&2); \
	fi

vuln: setup-build ## known vulnerabilities in Sluice and its modules; hack/vuln.sh has the exit status
	@$(call once,$(VULN),golang.org/x/vuln/cmd/govulncheck@$(VULN_VERSION)); hack/vuln.sh $(VULN)

vex: setup-build ## which of these affect Sluice, as OpenVEX
	@{ $(call once,$(VULN),golang.org/x/vuln/cmd/govulncheck@$(VULN_VERSION)); } >&2; hack/vuln.sh $(VULN) $(VERSION)

# VERSUS has flags, such as -sizes 10000 -parts start,change; see test/bench/versus.
bench: setup-test test-assets ## store to kernel; with an API server, and beside kube-proxy if KUBE_PROXY names it, and HAProxy if it is there; Go benchmarks (BENCH=regexp)
	@go run ./test/bench
	@go run ./test/bench/relay -rounds 3 -time 1s
	@go run ./test/bench/sockets
	@go run ./test/bench/least
	@go run ./test/bench/slots
	@go run ./test/bench/versus $(VERSUS)
	@go test -run='^$$' -bench='$(BENCH)' -benchmem ./internal/...

fuzz: setup-build ## each fuzz test for a while (FUZZTIME=20s)
	@hack/fuzz.sh '$(FUZZTIME)'

# The packages are below .cache, where neither Go nor the tests of pages look; npm writes its list of them last.
site: .cache/site/node_modules/.package-lock.json ## docs/ as a site with a search, in site/dist (SITE_BASE=/sluice/ if it is served below a path)
	@rm -rf .cache/site/.vitepress .cache/site/docs site/dist
	@cp -R site/.vitepress docs README.md .cache/site
	@cd .cache/site && SITE_BASE='$(SITE_BASE)' node_modules/.bin/vitepress build

.cache/site/node_modules/.package-lock.json: site/package.json site/package-lock.json | setup-site
	@mkdir -p .cache/site
	@cp $^ .cache/site
	@cd .cache/site && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

clean: ## remove what was built
	@rm -rf bin dist site/dist

distclean: clean ## and what was fetched for building and testing, by this checkout and others
	@rm -rf .cache $(CACHE)

setup-build setup-demo setup-test setup-kernel setup-rest setup-cluster setup-site: setup-%:
	@hack/setup.sh $*
