package config

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:embed flags.txt
var flagsText string

//go:embed flags_removed.txt
var removedFlagsText string

// flagDef is one flag, or one field that the file no longer has: a row of flags.txt or
// flags_removed.txt, which describe the columns.
type flagDef struct {
	name    string
	since   string   // the first Kubernetes release known to have it; empty if kube-proxy never had it
	removed string   // the first release known to be without it; empty if 1.37 has it
	initial string   // the default, as the help text shows it
	sets    []string // the fields of the file that it overrides, or the name of one of ownFlags
	usage   string   // of a removed flag: what it does now, and what to use instead
	quiet   []string // of a removed flag: values that need no warning
}

// Group is a heading of the help text and the flags below it.
type Group struct {
	Title string
	Flags []string

	defs []flagDef
}

// table returns every flag that Sluice accepts.
func table() []Group { return append(Groups(), removedFlags()...) }

// Groups returns the headings of the help text, the most needed first. Every flag that is not hidden is in one group.
func Groups() []Group {
	return readTable(flagsText, func(c []string) flagDef {
		return flagDef{name: c[0], since: c[1], initial: c[2], sets: splitList(c[3]), usage: c[4]}
	})
}

// removedFlags returns the flags that older versions of kube-proxy had.
func removedFlags() []Group {
	groups := removed()
	return groups[:len(groups)-1]
}

// removedFields returns the fields that older versions of v1alpha1 had.
func removedFields() []flagDef {
	groups := removed()
	return groups[len(groups)-1].defs
}

// removed returns the groups of flags_removed.txt, of which the last has fields.
func removed() []Group {
	return readTable(removedFlagsText, func(c []string) flagDef {
		d := flagDef{name: c[0], since: c[1], removed: c[2], sets: splitList(c[3]), quiet: splitList(c[4]), usage: c[5]}
		for i, value := range d.quiet {
			d.quiet[i] = strings.Trim(value, `"`)
		}
		return d
	})
}

// readTable reads rows of columns below headings. row makes a flag of the columns of one row.
func readTable(text string, row func(columns []string) flagDef) []Group {
	var groups []Group
	var above string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			groups = append(groups, Group{Title: strings.Trim(line, "[]")})
			continue
		}
		columns := strings.Split(line, " | ")
		for i, c := range columns {
			columns[i] = strings.TrimSpace(c)
			if columns[i] == "-" {
				columns[i] = ""
			}
		}
		def := row(columns)
		if def.usage == `"` {
			def.usage = above
		}
		above = def.usage
		last := &groups[len(groups)-1]
		last.Flags, last.defs = append(last.Flags, def.name), append(last.defs, def)
	}
	return groups
}

// oldAPIVersion is the apiVersion of Kubernetes 1.7 and 1.8.
const oldAPIVersion = "componentconfig/v1alpha1"

// warnOfRemoved warns of each given flag that kube-proxy 1.37 does not have, except flags with a value that needs no
// warning.
func (c *check) warnOfRemoved() {
	for _, group := range removedFlags() {
		for _, def := range group.defs {
			if text, ok := c.flags[def.name]; ok && !def.quietFor(text) && (def.name != logFile || c.logFile() == "") {
				c.warn("--%s: %s (not in kube-proxy since %s)", def.name, def.usage, def.removed)
			}
		}
	}
}

// logFile is a removed flag that a service of Windows needs: its standard error leads nowhere.
const logFile = "log-file"

// logFile returns the file for the log of a service of Windows.
func (c *check) logFile() string {
	if !c.config.WindowsRunAsService {
		return ""
	}
	return c.flags[logFile]
}

func (d flagDef) quietFor(text string) bool {
	if b, err := parseBool(text); err == nil {
		if slices.Contains(d.quiet, fmt.Sprint(b)) {
			return true
		}
	}
	return slices.Contains(d.quiet, text)
}

// conntrackMax applies --conntrack-max or the field conntrack.max, which gave the
// size of the table whatever the number of CPUs.
func (c *check) conntrackMax(n *int32) {
	if n == nil || *n == 0 {
		return
	}
	one := int32(1)
	c.config.Conntrack.Min, c.config.Conntrack.MaxPerCore = n, &one
	if n == c.own.ConntrackMax {
		c.byFlag["conntrack.min"], c.byFlag["conntrack.maxPerCore"] = "conntrack-max", "conntrack-max"
	}
}

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
