package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGates(t *testing.T) {
	for _, tc := range []struct{ file, flag, want string }{
		{"{}", "", ""},
		{"{AllowServiceExternalIPs: false}", "", ""},
		{"{AllAlpha: true, AllBeta: false, CPUManagerPolicyAlphaOptions: true}", "", ""}, // one of another component
		{"{NFTablesProxyMode: true}", "", ""},                                            // locked, but to this
		{"{NFTablesProxyMode: false}", "NFTablesProxyMode=true", ""},
		{"{NFTablesProxyMode: true}", "NFTablesProxyMode=false", ""},
		{
			"{Nope: true}", "WinDSR=true",
			"KubeProxyConfiguration.featureGates.Nope: Invalid value: \"Nope\": unknown feature gate",
		},
		{"{}", "kubeproxyipvs=true", "did you mean KubeProxyIPVS?"},
		{"{}", "KubeProxyIPVS", "--feature-gates: Invalid value: \"KubeProxyIPVS\": must be a list like"},
	} {
		args := []string{}
		if tc.flag != "" {
			args = append(args, "--feature-gates="+tc.flag)
		}
		_, _, err := load(t, header+"featureGates: "+tc.file, args...)
		switch {
		case err == nil && tc.want == "":
		case err == nil:
			t.Errorf("%s %s: no error", tc.file, tc.flag)
		case tc.want == "" || !strings.Contains(err.Error(), tc.want):
			t.Errorf("%s %s: error %v", tc.file, tc.flag, err)
		}
	}
}

// A gate that can no longer be switched is accepted with a warning, and nothing else changes.
func TestGatesWithoutEffect(t *testing.T) {
	for _, tc := range []struct{ file, flag, want string }{
		{
			"{NFTablesProxyMode: false}", "",
			"featureGates.NFTablesProxyMode: NFTablesProxyMode=false has no effect: " +
				"Kubernetes 1.37 has it locked to true; remove it",
		},
		{
			"{}", "NFTablesProxyMode=false",
			"--feature-gates: NFTablesProxyMode=false has no effect: Kubernetes 1.37 has it locked to true; remove it",
		},
		{
			"{}", "IPv6DualStack=false",
			"--feature-gates: IPv6DualStack=false has no effect: its feature is always on, " +
				"and it is not part of Kubernetes 1.25 and newer; remove it",
		},
		{
			"{ServiceTopology: true}", "",
			"featureGates.ServiceTopology: ServiceTopology=true has no effect: its feature is always off, " +
				"and it is not part of Kubernetes 1.23 and newer; remove it",
		},
		{
			"{}", "ExperimentalCriticalPodAnnotation=True",
			"--feature-gates: ExperimentalCriticalPodAnnotation=true has no effect: " +
				"it is not part of Kubernetes 1.17 and newer; remove it",
		},
	} {
		var args []string
		if tc.flag != "" {
			args = append(args, "--feature-gates="+tc.flag)
		}
		cfg, warnings, err := load(t, header+"featureGates: "+tc.file, args...)
		if err != nil {
			t.Fatalf("%s %s: %v", tc.file, tc.flag, err)
		}
		if diff := cmp.Diff([]string{tc.want}, warnings); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tc.file, tc.flag, diff)
		}
		cfg.FeatureGates = nil
		if diff := cmp.Diff(defaults(), cfg, compare); diff != "" {
			t.Errorf("%s %s changed something (-want +got):\n%s", tc.file, tc.flag, diff)
		}
	}
}

// Every row of the list of gates is well formed.
func TestKnownGates(t *testing.T) {
	removed := 0
	for name, g := range knownGates() {
		states := []string{"", "true", "false"}
		if g.removed != "" {
			removed++
			states = []string{"", "on", "off"}
		}
		if g.removed != "" && !release(g.removed) || !slices.Contains(states, g.state) {
			t.Errorf("%s: %+v", name, g)
		}
	}
	if removed < 250 {
		t.Errorf("%d removed gates", removed)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(gatesText) {
		name, _, row := strings.Cut(line, " ")
		if row && name != "#" && seen[name] {
			t.Errorf("%s has two rows", name)
		}
		seen[name] = true
	}
}
