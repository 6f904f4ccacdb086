package config

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
)

// The gates that change what Sluice does.
const (
	gateExternalIPs = "AllowServiceExternalIPs"
	gateIPVS        = "KubeProxyIPVS"
)

// proxyGates are the gates kube-proxy looks at, named to a person who
// misspelled one.
const proxyGates = gateExternalIPs + ", " + gateIPVS + ", KubeProxyNFTablesLocalhostNodePorts, " +
	"MultiCIDRServiceAllocator, NFTablesNetlink, NFTablesProxyMode, PreferSameTrafficDistribution, " +
	"ComponentFlagz, ComponentStatusz, NativeHistograms, ContextualLogging, LoggingAlphaOptions, " +
	"LoggingBetaOptions, WinDSR, WinOverlay, AllAlpha, AllBeta"

//go:embed gates.txt
var gatesText string

// knownGates returns every gate there is, with the value it is locked to:
// "true", "false", or "" if it is free.
func knownGates() map[string]string {
	gates := map[string]string{}
	for line := range strings.Lines(gatesText) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, locked, _ := strings.Cut(line, "=")
		gates[name] = locked
	}
	return gates
}

// gates checks the feature gates that were set.
func (c *check) gates(set map[string]bool) map[string]bool {
	known := knownGates()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		path := "featureGates." + name
		value := "false"
		if set[name] {
			value = "true"
		}
		locked, ok := known[name]
		if !ok {
			c.problem(path, invalid(name, "no such feature gate"+alike(name, slices.Sorted(maps.Keys(known)))+
				"; known are those of Kubernetes 1.37, among them "+proxyGates))
			continue
		}
		if locked != "" && locked != value {
			c.problem(path, invalid(name+"="+value, "the feature gate is locked to "+locked))
		}
	}
	return maps.Clone(set)
}

// alike returns a hint if name differs from one of the names in case only.
func alike(name string, names []string) string {
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return ", did you mean " + n + "?"
		}
	}
	return ""
}
