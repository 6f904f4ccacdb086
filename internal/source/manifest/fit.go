package manifest

import (
	stdjson "encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/json"

	"github.com/sluice-proxy/sluice/internal/route"
)

// longestValue is how much of a value, in characters, problems show.
const longestValue = 64

// undecodable returns the reason why text cannot be decoded into a value of the API,
// and the path of the field with the index, which the decoder leaves out.
func undecodable(object string, text []byte, into any, err error) *route.Problem {
	bad, found := part{text: text, want: reflect.TypeOf(into)}.misfit()
	if !found {
		return &route.Problem{Object: object, Reason: oneLine(err.Error())}
	}
	return &route.Problem{
		Object: object, Field: bad.path, Value: shorten(string(bad.text)),
		Reason: "wrong type: expected " + expected(bad.want),
	}
}

// part is a value in an object, as JSON, and its type in the API.
type part struct {
	path string // "spec.ports[0].port"
	text []byte
	want reflect.Type
}

// misfit returns the innermost part that does not fit its type; of several
// the first by name.
func (p part) misfit() (part, bool) {
	for p.want.Kind() == reflect.Pointer {
		p.want = p.want.Elem()
	}
	if json.UnmarshalCaseSensitivePreserveInts(p.text, reflect.New(p.want).Interface()) == nil {
		return part{}, false
	}
	for _, inner := range p.parts() {
		if bad, found := inner.misfit(); found {
			return bad, true
		}
	}
	return p, true
}

// parts returns the fields of an object or the elements of a list. It returns none
// for other values, and for a type with its own decoder.
func (p part) parts() []part {
	if reflect.PointerTo(p.want).Implements(reflect.TypeFor[stdjson.Unmarshaler]()) {
		return nil
	}
	switch p.want.Kind() {
	case reflect.Slice:
		return p.elements()
	case reflect.Map, reflect.Struct:
		return p.members()
	default:
		return nil
	}
}

func (p part) elements() []part {
	var list []stdjson.RawMessage
	if stdjson.Unmarshal(p.text, &list) != nil {
		return nil
	}
	out := make([]part, len(list))
	for i, text := range list {
		out[i] = part{fmt.Sprintf("%s[%d]", p.path, i), text, p.want.Elem()}
	}
	return out
}

func (p part) members() []part {
	var object map[string]stdjson.RawMessage
	if stdjson.Unmarshal(p.text, &object) != nil {
		return nil
	}
	var out []part
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if p.want.Kind() == reflect.Map {
			out = append(out, part{fmt.Sprintf("%s[%s]", p.path, name), object[name], p.want.Elem()})
		} else if want, ok := fieldType(p.want, name); ok {
			out = append(out, part{under(p.path, name), object[name], want})
		}
	}
	return out
}

// fieldType returns the type of a field by its name in JSON, also that of a
// struct whose fields JSON has among those of the one it is in.
func fieldType(t reflect.Type, name string) (reflect.Type, bool) {
	for f := range t.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name {
			return f.Type, true
		}
		if f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct {
			if inner, ok := fieldType(f.Type, name); ok {
				return inner, true
			}
		}
	}
	return nil, false
}

// under returns the path of a field of the value at a path.
func under(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

// expected describes the values that a type accepts.
func expected(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[intstr.IntOrString]():
		return "a whole number that fits int32, or a string"
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "a time like 2006-01-02T15:04:05Z"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number that fits " + t.String()
	case reflect.Struct, reflect.Map:
		if reflect.PointerTo(t).Implements(reflect.TypeFor[stdjson.Unmarshaler]()) {
			return "a " + t.Name()
		}
		return "an object"
	default:
		return "a " + t.Kind().String()
	}
}

// shorten returns a value in one line that is not too long.
func shorten(value string) string {
	value = oneLine(value)
	if r := []rune(value); len(r) > longestValue {
		return string(r[:longestValue]) + "..."
	}
	return value
}
