package config

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The gates that have an effect on Sluice.
const (
	gateExternalIPs = "AllowServiceExternalIPs"
	gateIPVS        = "KubeProxyIPVS"
)

//go:embed gates.txt
var gatesText string

// gate is a feature gate of some version of Kubernetes: a row of gates.txt.
type gate struct {
	removed string // the first release known to be without it; empty: Kubernetes 1.37 has it
	state   string // which cannot be changed; empty: it can, or it had no effect in kube-proxy
}

// knownGates returns all gates by their names.
func knownGates() map[string]gate {
	gates := map[string]gate{}
	for line := range strings.Lines(gatesText) {
		words := append(strings.Fields(line), "")
		if words[0] != "" && words[0] != "#" {
			gates[words[0]] = gate{removed: strings.Trim(words[1], "-"), state: words[2]}
		}
	}
	return gates
}

// gates checks the feature gates that were set. A gate that can no longer be switched is not an error, since older
// configurations have it: its feature behaves as in Kubernetes 1.37, whatever the value.
func (c *check) gates(set map[string]bool) map[string]bool {
	known := knownGates()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		value := fmt.Sprint(set[name])
		if g, ok := known[name]; !ok {
			c.problem("featureGates."+name, invalid(name, "unknown feature gate"+alike(name, slices.Sorted(maps.Keys(known)))))
		} else if why := g.fixed(value); why != "" {
			c.warn("%s: %s=%s has no effect: %s; remove it", c.name("featureGates."+name), name, value, why)
		}
	}
	return maps.Clone(set)
}

// fixed returns the reason why a value has no effect; empty if the gate can have it.
func (g gate) fixed(value string) string {
	since := "it is not part of Kubernetes " + g.removed + " and newer"
	switch {
	case g.removed != "" && g.state != "":
		return "its feature is always " + g.state + ", and " + since
	case g.removed != "":
		return since
	case g.state != "" && g.state != value:
		return "Kubernetes 1.37 has it locked to " + g.state
	}
	return ""
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
