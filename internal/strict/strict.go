// Package strict decodes objects of the Kubernetes API as its strict decoder does, and names each fault by the path,
// the line and the text of the value, and the type that was expected. It parses addresses in all spellings that the API
// ever accepted.
package strict

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/json"
)

// Fault is a value that cannot be decoded, or a field that the type does not have or that is repeated.
type Fault struct {
	Path  string       // "spec.ports[0].port"; empty for the whole text
	Value string       // as JSON
	Want  reflect.Type // of the value; nil if the value has no fault
	Err   error
}

// IsUnknown reports whether the type does not have the field.
func (f Fault) IsUnknown() bool {
	_, ok := errors.AsType[json.FieldError](f.Err)
	return ok && !strings.HasPrefix(f.Err.Error(), "duplicate field")
}

// Decode decodes JSON into the value that a pointer leads to, and returns all faults. It leaves out values that
// cannot be decoded. Without options it looks for unknown and for repeated fields.
func Decode(text []byte, into any, o ...json.StrictOption) []Fault {
	found, err := json.UnmarshalStrict(text, into, o...)
	var out []Fault
	if err != nil {
		text, out = part{text: text, want: reflect.TypeOf(into)}.split(err)
		reflect.ValueOf(into).Elem().SetZero()
		found, _ = json.UnmarshalStrict(text, into, o...) // the faults are known
	}
	for _, e := range found {
		f := Fault{Err: e}
		if field, ok := errors.AsType[json.FieldError](e); ok {
			f.Path = field.FieldPath()
		}
		out = append(out, f)
	}
	return out
}

// part is a value in an object, as JSON, and its type in the API.
type part struct {
	name string // of a field; empty: in a list
	path string
	text []byte
	want reflect.Type
}

// split returns the faults of a part that cannot be decoded, and the text without them; nil if the whole text is one
// fault.
func (p part) split(err error) (rest []byte, faults []Fault) {
	for p.want.Kind() == reflect.Pointer {
		p.want = p.want.Elem()
	}
	var list []stdjson.RawMessage
	object := map[string]stdjson.RawMessage{}
	_ = stdjson.Unmarshal(p.text, &object) // also unknown fields; nothing if it is no object
	for _, inner := range p.parts() {
		text := inner.text
		if err := json.UnmarshalCaseSensitivePreserveInts(text, reflect.New(inner.want).Interface()); err != nil {
			var more []Fault
			text, more = inner.split(err)
			faults = append(faults, more...)
		}
		object[inner.name] = text
		if text == nil {
			delete(object, inner.name)
			text = []byte("null") // keeps the index of the others in a list
		}
		list = append(list, text)
	}
	if len(faults) == 0 {
		return nil, []Fault{{Path: p.path, Value: string(p.text), Want: p.want, Err: err}}
	}
	if p.want.Kind() == reflect.Slice {
		rest, _ = stdjson.Marshal(list) // the texts are valid
	} else {
		rest, _ = stdjson.Marshal(object)
	}
	return rest, faults
}

// parts returns the fields of an object or the elements of a list. It returns none for other values, and for a type
// with its own decoder.
func (p part) parts() []part {
	if reflect.PointerTo(p.want).Implements(reflect.TypeFor[stdjson.Unmarshaler]()) {
		return nil
	}
	var out []part
	if p.want.Kind() == reflect.Slice {
		var list []stdjson.RawMessage
		_ = stdjson.Unmarshal(p.text, &list) // of another type: it has no parts
		for i, text := range list {
			out = append(out, part{"", fmt.Sprintf("%s[%d]", p.path, i), text, p.want.Elem()})
		}
		return out
	}
	var object map[string]stdjson.RawMessage
	_ = stdjson.Unmarshal(p.text, &object)
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if p.want.Kind() == reflect.Map {
			out = append(out, part{name, under(p.path, name), object[name], p.want.Elem()})
		} else if field, ok := FieldNamed(p.want, name); ok {
			out = append(out, part{name, under(p.path, name), object[name], field.Type})
		}
	}
	return out
}

// FieldNamed returns the field of a type that JSON calls name, with its index. A struct without a name is part of the
// one it is in.
func FieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	if t.Kind() != reflect.Struct {
		return reflect.StructField{}, false
	}
	for f := range t.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name && tag != "" {
			return f, true
		}
		if !f.Anonymous || tag != "" || f.Type.Kind() != reflect.Struct {
			continue
		}
		if inner, ok := FieldNamed(f.Type, name); ok {
			inner.Index = append(slices.Clone(f.Index), inner.Index...)
			return inner, true
		}
	}
	return reflect.StructField{}, false
}

// under returns the path of a field of the value at a path.
func under(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }
