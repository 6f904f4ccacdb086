package config

import (
	"reflect"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// oldAPIVersion is that of Kubernetes 1.7 and 1.8.
const oldAPIVersion = "componentconfig/v1alpha1"

// removedField is a field that older versions of v1alpha1 had.
type removedField struct {
	path    string
	since   string   // the first Kubernetes release that had it
	removed string   // the first release without it
	usage   string   // what it does now, and what to use instead
	quiet   []string // values that need no warning, as ignoring them changes nothing
}

// removedFields are accepted in a file: with their effect if there is one, else
// with a warning.
func removedFields() []removedField {
	return []removedField{
		{
			"conntrack.max", "1.7", "1.15",
			"sets conntrack.min to this and conntrack.maxPerCore to 1; use these fields",
			[]string{"0"},
		},
		{
			"resourceContainer", "1.7", "1.16",
			"no effect: use Slice= in the systemd unit, or the resources of the pod",
			[]string{""},
		},
		{
			"udpIdleTimeout", "1.10", "1.26",
			"no effect: only the mode userspace had UDP sessions; use conntrack.udpTimeout for those of the kernel",
			[]string{"0s"},
		},
		{
			"udpTimeoutMilliseconds", "1.7", "1.10",
			"no effect: only the mode userspace had UDP sessions; use conntrack.udpTimeout for those of the kernel",
			[]string{"0s"},
		},
	}
}

// removedField reads a field that v1alpha1 no longer has. It reports whether the
// path is one.
func (d *document) removedField(key, value *yaml.Node, path string) bool {
	fields := removedFields()
	i := slices.IndexFunc(fields, func(f removedField) bool { return f.path == path })
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

// gatesText reads featureGates as Kubernetes 1.7 and 1.8 wrote it: as one text.
func (d *document) gatesText(n *yaml.Node, v reflect.Value) {
	if n.Value == "" {
		return
	}
	if err := setText(v, n.Value); err != nil {
		d.add(n.Line, "featureGates", invalid(n.Value, err.Error()))
		return
	}
	d.warn(n.Line, "featureGates", "Kubernetes 1.9 made this a mapping; write one line \"Name: true\" for each feature gate")
}
