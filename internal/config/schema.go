package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/sluice-proxy/sluice/internal/strict"
)

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
