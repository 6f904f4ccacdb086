package config

import (
	"reflect"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// isScalar reports whether a file gives v as one text or number.
func isScalar(v reflect.Value) bool {
	switch v.Interface().(type) {
	case metav1.Duration, logsapi.TimeOrMetaDuration, resource.QuantityValue:
		return true
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice:
		return false
	default:
		return true
	}
}

func isMapping(n *yaml.Node, v reflect.Value) bool {
	return n.Kind == yaml.MappingNode && !isScalar(v) && v.Kind() != reflect.Slice
}

// fits reports whether a scalar has the YAML type v needs. What is written
// without quotes where a text is expected is taken as it is written.
func fits(n *yaml.Node, v reflect.Value) bool {
	switch base(v.Type()).Kind() {
	case reflect.Bool:
		return n.Tag == "!!bool" || n.Style == 0 && n.Tag == "!!str"
	case reflect.Int32, reflect.Uint32:
		return n.Tag == "!!int"
	case reflect.Float32:
		return n.Tag == "!!int" || n.Tag == "!!float"
	default:
		return true
	}
}

func base(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// wanted returns the name of the type of v in messages.
func wanted(v reflect.Value) string {
	switch base(v.Type()) {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return "a duration"
	case reflect.TypeFor[resource.QuantityValue]():
		return "a quantity"
	}
	switch base(v.Type()).Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int32, reflect.Uint32:
		return "a whole number"
	case reflect.Float32:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a mapping"
	default:
		return "text"
	}
}
