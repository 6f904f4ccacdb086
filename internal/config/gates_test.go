package config

import (
	"strings"
	"testing"
)

// The gates that are named to people are gates.
func TestProxyGatesAreKnown(t *testing.T) {
	known := knownGates()
	for _, name := range splitList(proxyGates) {
		if _, ok := known[name]; !ok {
			t.Errorf("%s is not in gates.txt", name)
		}
	}
	for name, locked := range known {
		if locked != "" && locked != "true" && locked != "false" {
			t.Errorf("%s is locked to %q", name, locked)
		}
	}
}

func TestGates(t *testing.T) {
	for _, tc := range []struct{ file, flag, want string }{
		{"{}", "", ""},
		{"{AllowServiceExternalIPs: false}", "", ""},
		{"{AllAlpha: true, AllBeta: false, CPUManagerPolicyAlphaOptions: true}", "", ""}, // one of another component
		{"{NFTablesProxyMode: true}", "", ""},                                            // locked, but to this
		{"{NFTablesProxyMode: false}", "", "KubeProxyConfiguration.featureGates.NFTablesProxyMode: Invalid value: \"NFTablesProxyMode=false\": the feature gate is locked to true (config.yaml:3)"},
		{"{NFTablesProxyMode: false}", "NFTablesProxyMode=true", ""},
		{"{NFTablesProxyMode: true}", "NFTablesProxyMode=false", "--feature-gates: Invalid value: \"NFTablesProxyMode=false\""},
		{"{Nope: true}", "WinDSR=true", "KubeProxyConfiguration.featureGates.Nope: Invalid value: \"Nope\": no such feature gate; known"},
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
