package strict

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Lines finds the lines of fields in a YAML or JSON document. The first line is 1.
type Lines struct{ root *yaml.Node } // nil: the document is not valid

// NewLines returns the lines of a document.
func NewLines(text []byte) Lines {
	var doc yaml.Node
	if yaml.Unmarshal(WithoutTabs(text), &doc) != nil || len(doc.Content) == 0 {
		return Lines{}
	}
	return LinesOf(doc.Content[0])
}

// WithoutTabs replaces the tabs between the tokens of JSON, which YAML does not allow. Strings in JSON have no raw
// tabs.
func WithoutTabs(text []byte) []byte {
	if json.Valid(text) {
		return bytes.ReplaceAll(text, []byte("\t"), []byte(" "))
	}
	return text
}

// LinesOf returns the lines of a document with this value.
func LinesOf(root *yaml.Node) Lines { return Lines{root} }

// Find returns the line of the field at a path such as "spec.ports[0].port". If the document does not have the field,
// or it is null, it returns false; of a field that is missing it returns the line of the innermost value around it.
func (l Lines) Find(path string) (line int, found bool) {
	if l.root == nil {
		return 1, false
	}
	at := member{line: l.root.Line, value: l.root}
	for at.path != path {
		inner, ok := at.toward(path)
		if !ok {
			return at.line, false
		}
		at = inner
	}
	return at.line, at.value.Tag != "!!null"
}

// member is a value in a document.
type member struct {
	path  string
	line  int
	value *yaml.Node
}

// toward returns the member of an object or a list that is at a path, or that has it.
func (m member) toward(path string) (member, bool) {
	n := m.value
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for i, v := range n.Content {
		name, line := fmt.Sprintf("%s[%d]", m.path, i), v.Line
		if n.Kind == yaml.MappingNode {
			if i%2 == 0 {
				continue
			}
			name, line = under(m.path, n.Content[i-1].Value), n.Content[i-1].Line
		}
		if rest, ok := strings.CutPrefix(path, name); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return member{name, line, v}, true
		}
	}
	return member{}, false
}
