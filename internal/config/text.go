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
)

// paths is a list of file names, which may contain commas.
type paths []string

// Reasons a text is not a value of a type.
var (
	errBool     = errors.New("must be true or false")
	errInt      = errors.New("must be a whole number")
	errNegative = errors.New("must be 0 or more")
	errNumber   = errors.New("must be a number")
	errDuration = errors.New(`must be a duration such as "30s" or "1h30m"`)
	errQuantity = errors.New(`must be a quantity such as "64Ki"`)
	errGate     = errors.New("must be a list like Name=true,Other=false")
	errPattern  = errors.New("must be a list like file=2,other*=4")
)

// setText parses text and sets v, which is addressable. It appends to lists and maps.
func setText(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case *metav1.Duration:
		return setDuration(&p.Duration, text)
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
	return setPlain(v, text)
}

func setPlain(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.Pointer:
		fresh := reflect.New(v.Type().Elem())
		if err := setText(fresh.Elem(), text); err != nil {
			return err
		}
		v.Set(fresh)
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := parseBool(text)
		if err != nil {
			return err
		}
		v.SetBool(b)
	case reflect.Int32:
		n, err := strconv.ParseInt(text, 0, 32)
		if err != nil {
			return numberError(err, errInt)
		}
		v.SetInt(n)
	case reflect.Uint32: // verbosity, which klog keeps as int32
		n, err := strconv.ParseInt(text, 0, 32)
		if err != nil {
			return numberError(err, errInt)
		}
		if n < 0 {
			return errNegative
		}
		v.SetUint(uint64(n))
	case reflect.Float32:
		n, err := strconv.ParseFloat(text, 32)
		if err != nil || n-n != 0 { // n-n is not 0 for infinities and NaN
			return numberError(err, errNumber)
		}
		v.SetFloat(n)
	default:
		return fmt.Errorf("no text can be a %s", v.Type())
	}
	return nil
}

func numberError(err, wrong error) error {
	if errors.Is(err, strconv.ErrRange) {
		return errors.New("is out of range")
	}
	return wrong
}

// parseBool parses the boolean values of Go and of YAML 1.1.
func parseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "yes", "on":
		return true, nil
	case "no", "off":
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, errBool
	}
	return b, nil
}

func setDuration(d *time.Duration, text string) error {
	got, err := time.ParseDuration(text)
	if err != nil {
		return errDuration
	}
	*d = got
	return nil
}

// setFlush parses a duration or, as kube-proxy does for logging.flushFrequency, a number of nanoseconds.
func setFlush(t *logsapi.TimeOrMetaDuration, text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		*t = logsapi.TimeOrMetaDuration{Duration: metav1.Duration{Duration: time.Duration(n)}}
		return nil
	}
	t.SerializeAsString = true
	return setDuration(&t.Duration.Duration, text)
}

// setQuantity parses sizes only: resource.ParseQuantity takes minutes for 1e-99999999.
func setQuantity(q *resource.QuantityValue, text string) error {
	if !regexp.MustCompile(`^\d{1,18}(\.\d{1,9})?([kMGTPE]|[KMGTPE]i|[eE]\d{1,2})?$`).MatchString(text) {
		return errQuantity
	}
	got, err := resource.ParseQuantity(text)
	if err != nil {
		return errQuantity
	}
	q.Quantity = got
	return nil
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
	if err != nil {
		return errors.New("must be true, false, raw, or a version such as v1.2.3")
	}
	*v = Version{}
	if on {
		v.Print = "true"
	}
	return nil
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
