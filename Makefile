# What people and CI do. `make help` lists it; CONTRIBUTING.md explains it.
# Everything made here is in bin/ and .cache/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

# hack/setup.sh puts Go there if the machine has none that is new enough.
export PATH := $(CURDIR)/.cache/go/bin:$(PATH)

LINT_VERSION := v2.15.0
LINT         := .cache/golangci-lint/$(LINT_VERSION)/golangci-lint
FUZZTIME     ?= 20s
BENCH        ?= .
VERSUS       ?=

# A folder with kube-apiserver, etcd and kube-proxy, and one with kubectl, helm,
# prometheus, promtool and coredns; made if they lack them.
KUBEBUILDER_ASSETS ?= $(CURDIR)/.cache/test-assets
TEST_TOOLS         ?= $(CURDIR)/.cache/test-tools

# An older kernel to test on, made if it is not there.
TEST_KERNEL ?= $(CURDIR)/.cache/test-kernel

# The version is that of the last tag, if this is a Git checkout with one.
VERSION ?= $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null || git describe --always --dirty --exclude '*' 2>/dev/null | sed 's/^/v0.0.0-dev+/')
LDFLAGS := -s -w -X github.com/sluice-proxy/sluice/internal/cli.stamp=$(VERSION)
# All programs are built alike, so that they share compiled packages.
GOBUILD := CGO_ENABLED=0 go build -trimpath
RELEASE := $(GOBUILD) -ldflags '$(LDFLAGS)'
TESTSUM := .cache/bin/testsum

TESTS_AT_ONCE := $(shell echo $$((2 * $$(nproc))))

.PHONY: help build build-all demo unit test test-assets test-tools test-kernel lint fmt bench fuzz clean distclean setup-build setup-demo setup-test

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

build: setup-build ## bin/sluice, one static binary (the default)
	@$(RELEASE) -o bin/sluice ./cmd/sluice

build-all: setup-build ## bin/sluice and bin/sluice-{linux,darwin,windows}-{amd64,arm64}
	@for os in linux darwin windows; do for arch in amd64 arm64; do \
		program=bin/sluice-$$os-$$arch; \
		if [[ $$os == windows ]]; then program+=.exe; fi; \
		echo "building $$program"; \
		GOOS=$$os GOARCH=$$arch $(RELEASE) -o $$program ./cmd/sluice; \
	done; done
	@$(RELEASE) -o bin/sluice ./cmd/sluice

demo: setup-demo build ## a little cluster in namespaces, with real traffic; touches nothing else
	@$(GOBUILD) -o bin/sluice-demo ./test/demo
	@bin/sluice-demo

unit: setup-build ## the quick tests, without root: under a minute
	@$(GOBUILD) -o $(TESTSUM) ./hack/testsum
	@$(TESTSUM) 'unit: go test -short -json ./cmd/... ./internal/... ./hack/...'

# Every step runs, also after a failure; the last line is the sum. Attacks have the
# machine to themselves, as they measure how long others wait. Other tests wait more
# than they compute: twice as many run at a time as there are processors.
test: setup-test ## everything, what it needs included
	@$(GOBUILD) -o $(TESTSUM) ./hack/testsum
	@$(TESTSUM) \
		'build-all: make build-all' \
		'examples: bin/sluice plan -f examples >/dev/null' \
		'lint: make lint' \
		'test-assets: make test-assets' \
		'test-tools: make test-tools' \
		'test-kernel: make test-kernel' \
		'test: KUBEBUILDER_ASSETS="$(KUBEBUILDER_ASSETS)" TEST_TOOLS="$(TEST_TOOLS)" TEST_KERNEL="$(TEST_KERNEL)" go test -race -count=1 -timeout=60m -p $(TESTS_AT_ONCE) -parallel $(TESTS_AT_ONCE) -json $$(go list ./... | grep -v /test/hostile$$)' \
		'linux-6.1: $(GOBUILD) -o .cache/bin/uml ./test/uml && KUBEBUILDER_ASSETS="$(KUBEBUILDER_ASSETS)" .cache/bin/uml -kernel "$(TEST_KERNEL)/linux"' \
		'hostile: go test -race -count=1 -timeout=10m -json ./test/hostile'

test-assets: setup-build ## the real API server, etcd and kube-proxy for the tests: minutes, once
	@KUBEBUILDER_ASSETS= hack/test-assets.sh "$(KUBEBUILDER_ASSETS)"

test-tools: setup-build ## kubectl, helm, prometheus and coredns for the tests: minutes, once
	@hack/test-tools.sh "$(TEST_TOOLS)"

test-kernel: setup-test ## Linux 6.1 for the tests, as a program: minutes, once
	@hack/test-kernel.sh "$(TEST_KERNEL)"

# The packages of the program compile on other systems, with their tests; those
# that are for Linux are not among them. The flags are those of build-all, whose
# compiled packages this uses.
lint: setup-build $(LINT) ## house style, formatting, modules, other systems, shell scripts
	@$(LINT) run ./...
	@for system in darwin/amd64 windows/amd64 windows/arm64; do \
		export GOOS=$${system%/*} GOARCH=$${system#*/} CGO_ENABLED=0; \
		go vet -trimpath $$(go list -deps ./cmd/sluice | grep '^github.com/sluice-proxy/sluice/'); \
	done
	@go mod tidy -diff
	@if command -v shellcheck >/dev/null; then shellcheck hack/*.sh .ci/run; else echo 'lint: no shellcheck here, scripts not checked'; fi

fmt: setup-build $(LINT) ## format the code
	@$(LINT) fmt ./...

$(LINT):
	@echo 'building golangci-lint $(LINT_VERSION): minutes, once'
	@GOBIN=$(CURDIR)/$(@D) GOFLAGS= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION) 2> >(grep -v '^go: downloading' >&2)

# VERSUS has flags, such as -sizes 10000 -parts start,change; see test/bench/versus.
bench: setup-test test-assets ## store to kernel; with an API server, and beside kube-proxy if KUBE_PROXY names it, and HAProxy if it is there; Go benchmarks (BENCH=regexp)
	@go run ./test/bench
	@go run ./test/bench/relay -rounds 3 -time 1s
	@go run ./test/bench/sockets
	@KUBEBUILDER_ASSETS="$(KUBEBUILDER_ASSETS)" go run ./test/bench/versus $(VERSUS)
	@go test -run='^$$' -bench='$(BENCH)' -benchmem ./internal/...

fuzz: setup-build ## each fuzz test for a while (FUZZTIME=20s)
	@hack/fuzz.sh '$(FUZZTIME)'

clean: ## remove what was built
	@rm -rf bin dist

distclean: clean ## and what was fetched for building and testing
	@rm -rf .cache

setup-build setup-demo setup-test: setup-%:
	@hack/setup.sh $*
