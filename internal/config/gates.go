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

// knownGates returns the gates of Kubernetes 1.37 with the value to which each is
// locked: "true", "false", or "" if it is not locked.
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

//go:embed gates_removed.txt
var removedGatesText string

// removedGate is a feature gate that Kubernetes 1.37 no longer has.
type removedGate struct {
	removed string // the first release known to be without it
	always  string // "on" or "off": the state of its feature now; empty if it had no effect in kube-proxy
}

// removedGates returns the gates that older versions of Kubernetes had.
func removedGates() map[string]removedGate {
	gates := map[string]removedGate{}
	for line := range strings.Lines(removedGatesText) {
		words := append(strings.Fields(line), "")
		if words[0] != "" && words[0] != "#" {
			gates[words[0]] = removedGate{removed: words[1], always: words[2]}
		}
	}
	return gates
}

// gates checks the feature gates that were set. A gate that can no longer be switched is not an error, since older
// configurations have it: its feature behaves as in Kubernetes 1.37, whatever the value.
func (c *check) gates(set map[string]bool) map[string]bool {
	known, removed := knownGates(), removedGates()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		value := fmt.Sprint(set[name])
		locked, ok := known[name]
		gone, was := removed[name]
		switch {
		case was:
			c.gateWarning(name, value, gone.effect())
		case !ok:
			c.problem("featureGates."+name, invalid(name, "unknown feature gate"+alike(name, slices.Sorted(maps.Keys(known)))))
		case locked != "" && locked != value:
			c.gateWarning(name, value, "Kubernetes 1.37 has it locked to "+locked)
		}
	}
	return maps.Clone(set)
}

func (c *check) gateWarning(name, value, why string) {
	c.warn("%s: %s=%s has no effect: %s; remove it", c.name("featureGates."+name), name, value, why)
}

func (g removedGate) effect() string {
	since := "it is not part of Kubernetes " + g.removed + " and newer"
	if g.always == "" {
		return since
	}
	return "its feature is always " + g.always + ", and " + since
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
