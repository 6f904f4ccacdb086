package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/kube-proxy/config/v1alpha1"
)

const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
)

// document is a configuration file, decoded but not checked.
type document struct {
	name     string
	config   v1alpha1.KubeProxyConfiguration
	lines    map[string]int // path of every value except null -> its line
	problems []Problem
	warnings []string

	conntrackMax *int32 // the removed field conntrack.max; nil: not there
}

// decode reads a file. Values of the wrong type are in document.problems. It returns
// an error for text that is not YAML or JSON.
func decode(name string, data []byte) (*document, error) {
	d := &document{name: name, lines: map[string]int{}}
	root, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	d.value(root, reflect.ValueOf(&d.config).Elem(), "")
	if d.config.APIVersion == oldAPIVersion {
		d.warn(d.lines["apiVersion"], "apiVersion", "Kubernetes 1.9 renamed "+oldAPIVersion+"; use "+apiVersion)
	} else {
		d.expect("apiVersion", d.config.APIVersion, apiVersion)
	}
	d.expect("kind", d.config.Kind, kind)
	return d, nil
}

// parse returns the root of the one document in data.
func parse(data []byte) (*yaml.Node, error) {
	if json.Valid(data) { // JSON allows tabs between tokens, YAML does not; strings in JSON have no raw tabs
		data = bytes.ReplaceAll(data, []byte("\t"), []byte(" "))
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
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

// line returns the line of the field at path, or of the value around it; 0 if neither
// exists.
func (d *document) line(path string) int {
	for path != "" && d.lines[path] == 0 {
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return d.lines[path]
}

func (d *document) expect(path, got, want string) {
	switch got {
	case want:
	case "":
		d.add(d.lines[path], path, "Required value: must be "+want)
	default:
		d.add(d.lines[path], path, invalid(got, "must be "+want))
	}
}

func (d *document) add(line int, path, reason string) {
	field := kind
	if path != "" {
		field += "." + path
	}
	d.problems = append(d.problems, Problem{Field: field, File: d.name, Line: line, Reason: reason})
}

// value reads a node into v, which has the type that belongs to path.
func (d *document) value(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Tag == "!!null" {
		return
	}
	if path != "" {
		d.lines[path] = n.Line
	}
	if n.Kind == yaml.ScalarNode {
		d.scalar(n, v, path)
		return
	}
	switch {
	case isMapping(n, v) && v.Kind() == reflect.Struct:
		d.fields(n, v, path)
	case isMapping(n, v):
		d.entries(n, v, path)
	case n.Kind == yaml.SequenceNode && v.Kind() == reflect.Slice:
		d.items(n, v, path)
	default:
		d.add(n.Line, path, "Invalid value: must be "+wanted(v))
	}
}

func (d *document) warn(line int, path, text string) {
	d.warnings = append(d.warnings, fmt.Sprintf("%s.%s: %s (%s:%d)", kind, path, text, d.name, line))
}

func (d *document) scalar(n *yaml.Node, v reflect.Value, path string) {
	if path == "featureGates" && n.Tag == "!!str" {
		d.gatesText(n, v)
		return
	}
	if !isScalar(v) || !fits(n, v) {
		reason := "must be " + wanted(v)
		if isScalar(v) && n.Tag == "!!str" && n.Style != 0 {
			reason += ", without quotes"
		}
		d.add(n.Line, path, invalid(n.Value, reason))
		return
	}
	if err := setText(v, n.Value); err != nil {
		d.add(n.Line, path, invalid(n.Value, err.Error()))
	}
}

// pairs calls visit for every field of a mapping, once.
func (d *document) pairs(n *yaml.Node, path string, visit func(key, value *yaml.Node, path string)) {
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
			d.add(key.Line, path, "the name of a field must be plain text")
		case first[key.Value] != 0:
			d.add(key.Line, at, fmt.Sprintf("duplicate field, first on line %d", first[key.Value]))
		default:
			first[key.Value] = key.Line
			visit(key, value, at)
		}
	}
}

func (d *document) fields(n *yaml.Node, v reflect.Value, path string) {
	d.pairs(n, path, func(key, value *yaml.Node, at string) {
		field, ok := fieldNamed(v, key.Value)
		switch {
		case ok:
			d.value(value, field, at)
		case d.removedField(key, value, at):
		default:
			d.add(key.Line, at, "unknown field"+alike(key.Value, fieldNames(v.Type())))
		}
	})
}

func (d *document) entries(n *yaml.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	d.pairs(n, path, func(key, value *yaml.Node, at string) {
		entry := reflect.New(v.Type().Elem()).Elem()
		before := len(d.problems)
		d.value(value, entry, at)
		if d.lines[at] != 0 && len(d.problems) == before {
			v.SetMapIndex(reflect.ValueOf(key.Value), entry)
		}
	})
}

func (d *document) items(n *yaml.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		if item.Tag == "!!null" {
			d.add(item.Line, at, "Required value: must be "+wanted(v.Index(i)))
			continue
		}
		d.value(item, v.Index(i), at)
	}
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
