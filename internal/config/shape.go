package config

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/sluice-proxy/sluice/internal/strict"
)

// isScalar reports whether v is one text or number in a file.
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

func base(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// describe returns the word for values of type t in the help text, and the phrase for them in messages ("must be ...").
func describe(t reflect.Type) (word, wanted string) {
	switch t = base(t); t {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return "duration", `a duration such as "30s" or "1h30m"`
	case reflect.TypeFor[resource.QuantityValue]():
		return "quantity", `a quantity such as "64Ki"`
	case reflect.TypeFor[logsapi.VModuleConfiguration]():
		return "pattern=N,...", "a list"
	case reflect.TypeFor[Version]():
		return "version", "true, false, raw, or a version such as v1.2.3"
	case reflect.TypeFor[paths]():
		return "path", "a list"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool", "true or false"
	case reflect.Int32:
		return "int", "a whole number"
	case reflect.Uint32:
		return "int", "a whole number, 0 or more"
	case reflect.Float32:
		return "number", "a number"
	case reflect.Slice:
		return "list", "a list"
	case reflect.Struct, reflect.Map:
		return "Name=bool,...", "a mapping"
	default:
		return "string", "text"
	}
}

// wanted returns the phrase for values like v in messages ("must be ...").
func wanted(v reflect.Value) string {
	_, wanted := describe(v.Type())
	return wanted
}

// fieldAt returns the field of the struct v at a path such as
// "nftables.syncPeriod". The paths are constants of this package.
func fieldAt(v reflect.Value, path string) reflect.Value {
	for name := range strings.SplitSeq(path, ".") {
		f, ok := strict.FieldNamed(v.Type(), name)
		if !ok {
			panic(fmt.Sprintf("config: no field %s", path))
		}
		v = v.FieldByIndex(f.Index)
	}
	return v
}
