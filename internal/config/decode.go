package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kube-proxy/config/v1alpha1"
	kubeyaml "sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/strict"
)

const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
)

// document is a configuration file, decoded but not checked.
type document struct {
	name     string
	config   v1alpha1.KubeProxyConfiguration
	lines    strict.Lines
	problems []Problem
	warnings []string

	conntrackMax *int32 // the removed field conntrack.max; nil: not there
}

// decode reads a file. Values of the wrong type are in document.problems. It returns
// an error for text that is not YAML or JSON.
func decode(name string, data []byte) (*document, error) {
	root, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	d := &document{name: name, lines: strict.LinesOf(root)}
	value, err := d.toJSON(data, root.Line)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	d.fill(value)
	if d.config.APIVersion == oldAPIVersion {
		d.warn("apiVersion", "Kubernetes 1.9 renamed "+oldAPIVersion+"; use "+apiVersion)
	} else {
		d.expect("apiVersion", d.config.APIVersion, apiVersion)
	}
	d.expect("kind", d.config.Kind, kind)
	return d, nil
}

// parse returns the root of the one document in data.
func parse(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(strict.WithoutTabs(data)))
	var docs []*yaml.Node
	for {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if root := doc.Content[0]; root.Tag != "!!null" {
			docs = append(docs, root)
		}
	}
	switch len(docs) {
	case 0:
		return nil, errors.New("the file has no configuration")
	case 1:
		return docs[0], nil
	}
	return nil, fmt.Errorf("line %d: the file has a second document; expected one %s", docs[1].Line, kind)
}

// toJSON converts the document that begins in a line. It reports repeated fields; the last occurrence of a field
// counts.
func (d *document) toJSON(data []byte, line int) ([]byte, error) {
	data = strict.WithoutTabs(data)
	for range line - 1 {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	value, err := kubeyaml.YAMLToJSONStrict(data)
	if err == nil {
		return value, nil
	}
	repeated := regexp.MustCompile(`line (\d+): key (".*") already set in map`)
	for _, found := range repeated.FindAllStringSubmatch(err.Error(), -1) {
		at, _ := strconv.Atoi(found[1]) // digits only
		d.add(line+at-1, "", "duplicate field "+found[2])
	}
	return kubeyaml.YAMLToJSON(data)
}

// fill decodes the file into d.config, and reports all faults.
func (d *document) fill(value []byte) {
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	if decoder.Decode(&object) == nil { // else the decoder below has a fault
		d.takeRemoved(object)
		d.checkSizes(object)
		d.takeGates(object)
		value, _ = json.Marshal(object) // it was JSON
	}
	for _, f := range strict.Decode(value, &d.config) {
		d.addAt(f.Path, reasonOf(f))
	}
}

// reasonOf describes the fault of a value or a field.
func reasonOf(f strict.Fault) string {
	if f.Want == nil {
		return "unknown field"
	}
	v, text := reflect.New(f.Want).Elem(), strings.Trim(f.Value, `"`)
	reason := "must be " + wanted(v)
	if strings.ContainsAny(f.Value[:1], "[{") {
		return "Invalid value: " + reason
	}
	if !isScalar(v) {
		return invalid(text, reason)
	}
	err := setText(v, text)
	switch {
	case err != nil:
		reason = err.Error()
	case v.Kind() == reflect.String:
		reason += ", in quotes"
	case f.Value != text:
		reason += ", without quotes"
	}
	return invalid(text, reason)
}

// takeGates reads featureGates as Kubernetes 1.7 and 1.8 wrote it: as one text.
func (d *document) takeGates(object map[string]any) {
	text, ok := object["featureGates"].(string)
	if !ok {
		return
	}
	delete(object, "featureGates")
	var gates map[string]bool
	if err := setGates(&gates, text); err != nil {
		d.addAt("featureGates", invalid(text, err.Error()))
		return
	}
	if text != "" {
		object["featureGates"] = gates
		d.warn("featureGates", "Kubernetes 1.9 made this a mapping; write one line \"Name: true\" for each feature gate")
	}
}

// checkSizes removes sizes that are not valid, before a decoder takes minutes for 1e-99999999.
func (d *document) checkSizes(object map[string]any) {
	for _, path := range []string{"logging.options.text.infoBufferSize", "logging.options.json.infoBufferSize"} {
		parent, name := parentOf(object, path)
		text := fmt.Sprint(parent[name])
		size := reflect.New(reflect.TypeFor[resource.QuantityValue]()).Elem()
		if err := setText(size, text); parent[name] != nil && err != nil {
			d.addAt(path, invalid(text, err.Error()))
			delete(parent, name)
		}
	}
}

// parentOf returns the mapping with the field at a path, and the name of the field; nil: there is none.
func parentOf(object map[string]any, path string) (parent map[string]any, name string) {
	for first, rest, ok := strings.Cut(path, "."); ok; first, rest, ok = strings.Cut(path, ".") {
		object, _ = object[first].(map[string]any)
		path = rest
	}
	return object, path
}

// takeRemoved removes fields that v1alpha1 no longer has.
func (d *document) takeRemoved(object map[string]any) {
	fields := removedFields()
	slices.SortStableFunc(fields, func(a, b flagDef) int { return d.line(a.name) - d.line(b.name) })
	for _, f := range fields {
		parent, name := parentOf(object, f.name)
		value, ok := parent[name]
		if !ok {
			continue
		}
		delete(parent, name)
		text := fmt.Sprint(value)
		if value == nil || slices.Contains(f.quiet, text) {
			continue
		}
		d.warn(f.name, f.usage+" (not in Kubernetes since "+f.removed+")")
		if f.name == "conntrack.max" {
			d.takeConntrackMax(text)
		}
	}
}

func (d *document) takeConntrackMax(text string) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		d.addAt("conntrack.max", invalid(text, "must be a whole number, 0 or more"))
		return
	}
	d.conntrackMax = new(int32(n))
}

// line returns the line of the field at path, or of the field around it; 0 if neither exists.
func (d *document) line(path string) int {
	outermost, _, _ := strings.Cut(path, ".")
	if !d.sets(outermost) {
		return 0
	}
	line, _ := d.lines.Find(path)
	return line
}

// sets reports whether the file has the field, not as null.
func (d *document) sets(path string) bool {
	if d == nil {
		return false
	}
	_, found := d.lines.Find(path)
	return found
}

func (d *document) expect(path, got, want string) {
	switch {
	case got == want:
	case got != "":
		d.addAt(path, invalid(got, "must be "+want))
	case !d.sets(path):
		d.add(0, path, "Required value: must be "+want)
	}
}

// addAt adds a problem with the line of its field.
func (d *document) addAt(path, reason string) { d.add(d.line(path), path, reason) }

func (d *document) add(line int, path, reason string) {
	field := kind
	if path != "" {
		field += "." + path
	}
	d.problems = append(d.problems, Problem{Field: field, File: d.name, Line: line, Reason: reason})
}

func (d *document) warn(path, text string) {
	d.warnings = append(d.warnings, fmt.Sprintf("%s.%s: %s (%s:%d)", kind, path, text, d.name, d.line(path)))
}
