package config

import (
	"fmt"
	"slices"
)

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
