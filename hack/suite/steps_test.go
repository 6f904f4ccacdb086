package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/seeds"
)

// every returns the steps of all runs.
func every(t *testing.T) map[string][]step {
	t.Helper()
	runs := map[string][]step{}
	for _, args := range []string{
		"unit", "check", "test", "test-rest",
		"plane nftables", "plane ebpf", "plane iptables", "plane ipvs", "plane userspace", "plane kernelspace",
	} {
		steps, err := stepsOf(strings.Fields(args), kernel{})
		if err != nil {
			t.Fatal(err)
		}
		runs[args] = steps
	}
	return runs
}

func TestStepsAreDistinctAndComeAfterThoseThatTheyNeed(t *testing.T) {
	for run, steps := range every(t) {
		var names []string
		for _, s := range steps {
			if slices.Contains(names, s.name) {
				t.Errorf("make %s has two steps %s", run, s.name)
			}
			for _, needed := range s.after {
				if !slices.Contains(names, needed) {
					t.Errorf("make %s: %s needs %s, which is not before it", run, s.name, needed)
				}
			}
			names = append(names, s.name)
		}
	}
}

// Each package has a step of make test or make test-rest: otherwise its tests would never run.
func TestEveryPackageIsTested(t *testing.T) {
	seeds.Long(t)
	tested := map[string]bool{}
	r := &runner{times: &times{}}
	for _, run := range []string{"test", "test-rest"} {
		for _, s := range every(t)[run] {
			for i, pattern := range s.packages {
				s.packages[i] = strings.Replace(pattern, "./", "../../", 1)
			}
			packages, err := r.list(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range packages {
				tested[p] = true
			}
		}
	}
	all, err := exec.Command("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}",
		"../../...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.FieldsSeq(string(all)) {
		if !tested[p] {
			t.Errorf("no step tests %s", p)
		}
	}
}

func TestIPVSIsTestedOnTheKernelThatHasIt(t *testing.T) {
	for ipvs, want := range map[bool]string{true: "conformance", false: "linux-6.1"} {
		steps, err := stepsOf([]string{"plane", "ipvs"}, kernel{ipvs: ipvs})
		if err != nil || steps[len(steps)-1].name != want {
			t.Errorf("kernel with IPVS: %t, steps %v, %v, want %s as the last", ipvs, steps, err, want)
		}
	}
}

func TestUnknownRuns(t *testing.T) {
	for _, args := range [][]string{nil, {"tests"}, {"plane"}, {"plane", "nftable"}} {
		if steps, err := stepsOf(args, kernel{}); err == nil {
			t.Errorf("%q has steps %v, want an error", args, steps)
		}
	}
}
