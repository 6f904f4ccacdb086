package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/sluice-proxy/sluice/internal/strict"
)

// paths is a list of file names, which may contain commas.
type paths []string

// Reasons a text is not a value, if the phrase for the type is about values in a file.
var (
	errGate    = errors.New("must be a list like Name=true,Other=false")
	errPattern = errors.New("must be a list like file=2,other*=4")
)

// setText parses text and sets v, which is addressable. It appends to lists and maps.
func setText(v reflect.Value, text string) error {
	err := parseText(v, text)
	switch {
	case err == nil, errors.Is(err, errGate), errors.Is(err, errPattern):
		return err
	case errors.Is(err, strconv.ErrRange):
		return errors.New("is out of range")
	}
	return errors.New("must be " + wanted(v))
}

func parseText(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case *metav1.Duration:
		return setDuration(p, text)
	case *logsapi.TimeOrMetaDuration:
		return setFlush(p, text)
	case *resource.QuantityValue:
		return setQuantity(p, text)
	case *logsapi.VModuleConfiguration:
		if logsapi.VModuleConfigurationPflag(p).Set(text) != nil {
			return errPattern
		}
		return nil
	case *map[string]bool:
		return setGates(p, text)
	case *Version:
		return setVersion(p, text)
	case *paths:
		*p = append(*p, text)
		return nil
	case *[]string:
		*p = append(*p, splitList(text)...)
		return nil
	}
	return parsePlain(v, text)
}

func parsePlain(v reflect.Value, text string) (err error) {
	switch v.Kind() {
	case reflect.Pointer:
		fresh := reflect.New(v.Type().Elem())
		if err = parseText(fresh.Elem(), text); err == nil {
			v.Set(fresh)
		}
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		var b bool
		b, err = parseBool(text)
		v.SetBool(b)
	case reflect.Int32:
		var n int64
		n, err = strconv.ParseInt(text, 0, 32)
		v.SetInt(n)
	case reflect.Uint32: // verbosity, which klog keeps as int32
		var n uint64
		n, err = strconv.ParseUint(text, 0, 31)
		v.SetUint(n)
	case reflect.Float32:
		var n float64
		n, err = strconv.ParseFloat(text, 32)
		if err == nil && n-n != 0 { // infinity or NaN
			err = strconv.ErrSyntax
		}
		v.SetFloat(n)
	default:
		err = fmt.Errorf("no text can be a %s", v.Type())
	}
	return err
}

// parseBool parses the boolean values of Go and of YAML 1.1.
func parseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "yes", "on":
		return true, nil
	case "no", "off":
		return false, nil
	}
	return strconv.ParseBool(text)
}

func setDuration(d *metav1.Duration, text string) (err error) {
	d.Duration, err = time.ParseDuration(text)
	return err
}

// setFlush parses a duration or, as kube-proxy does for logging.flushFrequency, a number of nanoseconds.
func setFlush(t *logsapi.TimeOrMetaDuration, text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		*t = logsapi.TimeOrMetaDuration{Duration: metav1.Duration{Duration: time.Duration(n)}}
		return nil
	}
	t.SerializeAsString = true
	return setDuration(&t.Duration, text)
}

// setQuantity parses sizes only: resource.ParseQuantity takes minutes for 1e-99999999.
func setQuantity(q *resource.QuantityValue, text string) (err error) {
	if !regexp.MustCompile(`^\d{1,18}(\.\d{1,9})?([kMGTPE]|[KMGTPE]i|[eE]\d{1,2})?$`).MatchString(text) {
		return resource.ErrFormatWrong
	}
	q.Quantity, err = resource.ParseQuantity(text)
	return err
}

func setGates(m *map[string]bool, text string) error {
	got := map[string]bool{}
	for _, item := range splitList(text) {
		name, value, _ := strings.Cut(item, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return errGate
		}
		got[strings.TrimSpace(name)] = on
	}
	if *m == nil {
		*m = map[string]bool{}
	}
	maps.Copy(*m, got)
	return nil
}

func setVersion(v *Version, text string) error {
	if text == "raw" {
		*v = Version{Print: text}
		return nil
	}
	if strings.HasPrefix(text, "v") && strings.Count(text, ".") >= 2 {
		*v = Version{Report: text}
		return nil
	}
	on, err := strconv.ParseBool(text)
	*v = Version{}
	if on {
		v.Print = "true"
	}
	return err
}

// splitList splits at commas; spaces around an item do not count, nor do empty items.
func splitList(text string) []string {
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

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
