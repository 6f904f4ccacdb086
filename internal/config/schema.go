package config

import (
	"fmt"
	"reflect"
	"strings"
)

// fieldNamed returns the field of struct v that JSON calls name. Embedded
// structs without a name are part of v.
func fieldNamed(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		tag, inline := jsonName(v.Type().Field(i))
		if inline {
			if f, ok := fieldNamed(v.Field(i), name); ok {
				return f, true
			}
			continue
		}
		if tag == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// fieldNames returns the names JSON has for the fields of struct type t.
func fieldNames(t reflect.Type) []string {
	var names []string
	for field := range t.Fields() {
		tag, inline := jsonName(field)
		if inline {
			names = append(names, fieldNames(field.Type)...)
			continue
		}
		names = append(names, tag)
	}
	return names
}

func jsonName(f reflect.StructField) (name string, inline bool) {
	name, _, _ = strings.Cut(f.Tag.Get("json"), ",")
	return name, f.Anonymous && name == ""
}

// fieldAt returns the field of the struct v at a path such as
// "nftables.syncPeriod". The paths are constants of this package.
func fieldAt(v reflect.Value, path string) reflect.Value {
	for name := range strings.SplitSeq(path, ".") {
		f, ok := fieldNamed(v, name)
		if !ok {
			panic(fmt.Sprintf("config: no field %s", path))
		}
		v = f
	}
	return v
}
