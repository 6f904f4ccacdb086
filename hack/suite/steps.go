package main

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
)

// step is a command that builds, checks or tests something.
type step struct {
	name    string
	about   string
	command string   // of a shell; packages are appended
	after   []string // steps that must have succeeded
	alone   bool     // no other step runs at the same time, as it measures how long others wait
	waits   bool     // it waits more than it computes, so it runs beside the steps that compute

	// packages are patterns of go list, "-" before those to leave out. The command gets the packages that have tests,
	// those first that took longest the last time.
	packages []string

	// importing leaves out the packages whose tests do not import this one.
	importing string
}

type kernel struct {
	ipvs bool // whether it has IPVS
}

func stepsOf(args []string, k kernel) ([]step, error) {
	switch strings.Join(args, " ") {
	case "test":
		return testSteps(), nil
	case "test-rest":
		return restSteps(), nil
	case "check":
		return checkSteps(), nil
	case "unit":
		return unitSteps(), nil
	}
	if len(args) == 2 && args[0] == "plane" {
		return planeSteps(args[1], k)
	}
	return nil, fmt.Errorf("want unit, check, test, test-rest or plane PLANE, got %q", args)
}

// goTest returns the command that runs the tests of packages.
func goTest(flags ...string) string { return "CGO_ENABLED=0 " + testCommand("-count=1", flags) }

// cachedTest is goTest that does not run the tests of packages whose last result is still valid.
func cachedTest(flags ...string) string { return "CGO_ENABLED=0 " + testCommand("", flags) }

// raceTest is goTest with the race detector, which needs C, and would make each process wait for a second at its end.
func raceTest(flags ...string) string {
	return "CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 " + testCommand("-count=1 -race", flags)
}

// testCommand returns a command that compiles packages as make build does, so that all share the compiled packages,
// but without symbols for a debugger, which links faster. It does not vet them: make lint does. Tests wait more than
// they compute, so that twice as many run at a time as there are processors.
func testCommand(kind string, flags []string) string {
	const command = "go test -json -vet=off -trimpath -ldflags='-s -w' -timeout=60m -p %d -parallel %d %s %s"
	atOnce := 2 * runtime.NumCPU()
	return fmt.Sprintf(command, atOnce, atOnce, kind, strings.Join(flags, " "))
}

// module begins the import path of each package.
const module = "github.com/sluice-proxy/sluice/"

// Steps that several runs have.
func sluice() step {
	return step{name: "sluice", about: "bin/sluice", command: "make build"}
}

func linter() step {
	return step{name: "linter", about: "golangci-lint, minutes the first time", command: "make linter"}
}

func assets() step {
	return step{
		name: "assets", about: "etcd, kube-apiserver and kube-proxy, minutes the first time", command: "make test-assets",
	}
}

func olderKernel() step {
	return step{name: "kernel", about: "Linux 6.1 as a program, minutes the first time", command: "make test-kernel"}
}

// testSteps prove the program on this machine's kernel.
func testSteps() []step {
	return []step{
		sluice(),
		assets(),
		{
			name: "planes", about: "every scenario in every plane of this kernel, with real packets",
			after:   []string{"sluice"},
			command: goTest(), packages: []string{
				"./test/conformance", "./test/exact", "./test/direct", "./test/lab", "./test/harness", "./test/rules",
				"./test/demo", "./test/traffic",
			},
		},
		{
			name: "cluster", about: "a real API server, the take-over from kube-proxy, endurance",
			after:   []string{"sluice", "assets"},
			command: goTest(), packages: []string{"./test/apiserver", "./test/takeover", "./test/endurance"},
		},
		{
			name: "unit", about: "all packages of the program, with the race detector", after: []string{"sluice"},
			command: raceTest(), packages: []string{"./cmd/...", "./internal/...", "./hack/..."},
		},
		linter(),
		{
			name: "lint", about: "house style, formatting, modules, shell scripts",
			after: []string{"linter"}, command: "make lint",
		},
		{name: "windows", about: "sluice for Windows", command: "make bin/sluice-windows-amd64.exe"},
		{
			name: "examples", about: "a plan of every example",
			after: []string{"sluice"}, command: "bin/sluice plan -f examples >/dev/null",
		},
	}
}

// restSteps run the tests that testSteps leave out.
func restSteps() []step {
	return []step{
		sluice(),
		olderKernel(),
		assets(),
		{
			name: "tools", about: "kubectl, helm, prometheus and coredns, minutes the first time",
			command: "make test-tools",
		},
		{
			name: "cluster-programs", about: "kubelet, controller manager and scheduler, minutes the first time",
			command: "make test-cluster",
		},
		{
			name: "linux-6.1", about: "mode ipvs, and what a kernel can change, on Linux 6.1",
			after:   []string{"kernel", "assets", "sluice"},
			command: `go run -trimpath ./test/uml -kernel "$TEST_KERNEL/linux"`,
		},
		{
			name: "deployments", about: "manifests, chart, image, unit files, resolvers, benchmarks, Windows by Wine",
			after:   []string{"sluice", "assets", "tools", "kernel"},
			command: goTest(), packages: append(leftOver(), "-./test/hostile", "-./test/cluster", "-./test/page"),
		},
		{
			name: "page", about: "the page of the metrics address in Chromium; screenshots in .cache/page",
			after: []string{"sluice"}, waits: true, command: goTest(), packages: []string{"./test/page"},
		},
		{
			name: "real-cluster", about: "a cluster of kubelets and containers: modes, roll-outs, migration, upgrades, drain",
			after: []string{"sluice", "assets", "tools", "cluster-programs"}, waits: true,
			command: goTest(), packages: []string{"./test/cluster"},
		},
		{
			name: "seeds", about: "every seed of the model tests", after: []string{"sluice"},
			command: "SEEDS=all " + goTest(), packages: []string{"./internal/..."}, importing: module + "test/seeds",
		},
		{
			name: "race", about: "every scenario in every plane, in one family, with the race detector",
			command:  "FULL=1 " + raceTest("-run '^TestConformance$/././^(IPv4|dual-stack)$'"),
			packages: []string{"./test/conformance"},
		},
		{
			name: "race-cluster", about: "API server and take-over, with the race detector",
			after:   []string{"sluice", "assets"},
			command: raceTest(), packages: []string{"./test/apiserver", "./test/takeover", "./test/rules"},
		},
		{
			name: "systems", about: "sluice for six systems, and the packages vetted for three",
			command: "make build-all vet-systems",
		},
		{
			name: "hostile", about: "attacks on every plane",
			after: []string{"sluice"}, alone: true, command: "FULL=1 " + goTest(), packages: []string{"./test/hostile"},
		},
	}
}

// leftOver are patterns of the packages below test/ that testSteps leave out.
func leftOver() []string {
	patterns := []string{"./test/..."}
	for _, s := range testSteps() {
		for _, p := range s.packages {
			if strings.HasPrefix(p, "./test/") {
				patterns = append(patterns, "-"+p)
			}
		}
	}
	return patterns
}

// unitSteps are the quick tests, which need neither root nor programs: no test that takes seconds.
func unitSteps() []step {
	return []step{{
		name: "unit", about: "the quick tests of the packages that a change touches",
		command: cachedTest("-short"), packages: []string{"./cmd/...", "./internal/...", "./hack/..."},
	}}
}

// checkSteps are for the working day: go test has the results of packages that have not changed.
func checkSteps() []step {
	return []step{
		sluice(),
		{
			name: "unit", about: "the packages of the program that a change touches", after: []string{"sluice"},
			command: cachedTest(), packages: []string{"./cmd/...", "./internal/...", "./hack/..."},
		},
		{
			name: "nftables", about: "the scenarios of mode nftables in IPv4, with real packets",
			after:    []string{"sluice"},
			command:  goTest("-run '^TestConformance$/^nftables$/./^(IPv4|dual-stack)$'"),
			packages: []string{"./test/conformance"},
		},
		linter(),
		{
			name: "lint", about: "house style and formatting of changed packages",
			after: []string{"linter"}, command: "make lint-changed",
		},
	}
}

// scenarios are the planes of this system, with the pattern of their names in conformance.
func scenarios() map[string]string {
	return map[string]string{
		"nftables": "nftables", "iptables": "iptables-.*", "ebpf": "ebpf", "ipvs": "ipvs", "userspace": "userspace",
	}
}

// planeSteps are the tests of one plane: its package with the model test, and conformance. A plane that this kernel
// lacks is tested on Linux 6.1, and mode kernelspace of Windows by Wine.
func planeSteps(name string, k kernel) ([]step, error) {
	pattern, known := scenarios()[name]
	own := step{
		name: name, about: "package and model test, with the race detector", after: []string{"sluice"},
		command: raceTest(), packages: []string{"./internal/plane/" + name + "/..."},
	}
	switch {
	case name == "kernelspace":
		own.packages = append(own.packages, "./internal/windows/hns", "./internal/testing/hnstest")
		return []step{sluice(), own, {
			name: "wine", about: "the program for Windows, by Wine", after: []string{"sluice"},
			command: goTest(), packages: []string{"./test/wine"},
		}}, nil
	case !known:
		planes := append(slices.Sorted(maps.Keys(scenarios())), "kernelspace")
		return nil, fmt.Errorf("no plane %q, want PLANE=%s", name, strings.Join(planes, ", "))
	case name == "ipvs" && !k.ipvs:
		return []step{sluice(), olderKernel(), own, {
			name: "linux-6.1", about: "tests on IPVS and every scenario, on Linux 6.1", after: []string{"kernel"},
			command: `go run -trimpath ./test/uml -kernel "$TEST_KERNEL/linux" -plane ipvs`,
		}}, nil
	}
	return []step{sluice(), own, {
		name: "conformance", about: "every scenario, with real packets", after: []string{"sluice"},
		command: "FULL=1 " + goTest("-run '^TestConformance$/^"+pattern+"$'"), packages: []string{"./test/conformance"},
	}}, nil
}
