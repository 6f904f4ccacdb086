package config

import (
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// oldAPIVersion is that of Kubernetes 1.7 and 1.8.
const oldAPIVersion = "componentconfig/v1alpha1"

// warnOfRemoved warns of each given flag that kube-proxy 1.37 does not have,
// unless its value is one of those that need no warning.
func (c *check) warnOfRemoved() {
	for _, group := range removedFlags() {
		for _, def := range group.flags {
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

// removedField reads a field that v1alpha1 no longer has. It reports whether the
// path is one.
func (d *document) removedField(key, value *yaml.Node, path string) bool {
	fields := removedFields()
	i := slices.IndexFunc(fields, func(f flagDef) bool { return f.name == path })
	if i < 0 {
		return false
	}
	f := fields[i]
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	if value.Tag == "!!null" || value.Kind == yaml.ScalarNode && slices.Contains(f.quiet, value.Value) {
		return true
	}
	d.warn(key.Line, path, f.usage+" (not in Kubernetes since "+f.removed+")")
	if path == "conntrack.max" {
		d.readConntrackMax(value)
	}
	return true
}

func (d *document) readConntrackMax(n *yaml.Node) {
	max, err := strconv.ParseInt(n.Value, 0, 32)
	if err != nil || max < 0 {
		d.add(n.Line, "conntrack.max", invalid(n.Value, "must be a whole number, 0 or more"))
		return
	}
	value := int32(max)
	d.conntrackMax = &value
}
