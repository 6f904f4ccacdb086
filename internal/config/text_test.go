package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// Texts that are values of a type, how the value prints, and texts that are not.
func TestSetText(t *testing.T) {
	for _, tc := range []struct {
		into any
		good map[string]string
		bad  []string
	}{
		{
			new(bool),
			map[string]string{"true": "true", "F": "false", "Yes": "true", "off": "false", "1": "true"},
			[]string{"", "maybe", "2"},
		},
		{
			new(int32),
			map[string]string{"-5": "-5", "0x10": "16", "2147483647": "2147483647"},
			[]string{"", "1.0", "2147483648", "five"},
		},
		{new(logsapi.VerbosityLevel), map[string]string{"0": "0", "2147483647": "2147483647"}, []string{"-1", "2147483648"}},
		{
			new(float32),
			map[string]string{"5": "5", "-0.5": "-0.5", "1e3": "1000"},
			[]string{"", "NaN", "Inf", "-inf", "1e99"},
		},
		{
			new(metav1.Duration),
			map[string]string{"0": "{0s}", "1h30m": "{1h30m0s}", "-1s": "{-1s}"},
			[]string{"", "30", "1 s", "1d"},
		},
		{
			new(logsapi.TimeOrMetaDuration),
			map[string]string{"5s": "{{5s} true}", "5000000000": "{{5s} false}"},
			[]string{"", "5.5", "soon"},
		},
		{new([]string), map[string]string{"a, b ,,c": "[a b c]"}, nil},
		{new(paths), map[string]string{"a,b": "[a,b]"}, nil},
		{
			new(map[string]bool),
			map[string]string{"A=true, B=false": "map[A:true B:false]", "": "map[]"},
			[]string{"A", "A=", "A=maybe", "A=true;B=true"},
		},
		{
			new(logsapi.VModuleConfiguration),
			map[string]string{"a=1,b*=2": "[{a 1} {b* 2}]", "a=1,": "[{a 1}]"},
			[]string{"a", "=1", "a=x", "a=-1", "a=1=2"},
		},
		{
			new(Version),
			map[string]string{"true": "{true }", "false": "{ }", "raw": "{raw }", "v1.2.3": "{ v1.2.3}"},
			[]string{"", "v1", "1.2.3", "rare"},
		},
	} {
		typ := reflect.TypeOf(tc.into).Elem()
		t.Run(typ.String(), func(t *testing.T) {
			for text, want := range tc.good {
				v := reflect.New(typ).Elem()
				if err := setText(v, text); err != nil || fmt.Sprint(v.Interface()) != want {
					t.Errorf("%q: %v, error %v, want %s", text, v.Interface(), err, want)
				}
			}
			for _, text := range tc.bad {
				if err := setText(reflect.New(typ).Elem(), text); err == nil {
					t.Errorf("%q: no error", text)
				}
			}
		})
	}
}

// Quantities are sizes. What takes the general type minutes is refused at once.
func TestQuantity(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "64Ki": 65536, "1.5k": 1500, "2e3": 2000} {
		var q resource.QuantityValue
		if err := setQuantity(&q, text); err != nil || q.Value() != want {
			t.Errorf("%s: %d, error %v, want %d", text, q.Value(), err, want)
		}
	}
	for _, text := range []string{"", "-1", "Ki", "1e-99999999", "1e999", "1ki"} {
		if err := setQuantity(new(resource.QuantityValue), text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestParseEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1":           "10.0.0.1:99",
		"10.0.0.1:5":         "10.0.0.1:5",
		"010.0.0.01:5":       "10.0.0.1:5",
		"fd00::1":            "[fd00::1]:99",
		"[fd00::1]":          "[fd00::1]:99",
		"[fd00::1]:5":        "[fd00::1]:5",
		"::":                 "[::]:99",
		"0.0.0.0:0":          "0.0.0.0:0",
		"[::ffff:10.0.0.1]":  "10.0.0.1:99",
		"::ffff:10.0.0.1":    "10.0.0.1:99",
		"1:2:3:4:5:6:7:8":    "[1:2:3:4:5:6:7:8]:99",
		"[1:2:3:4:5:6:7::]:": "[1:2:3:4:5:6:7:0]:0",
	} {
		if got, err := parseEndpoint(text, 99); err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %v, error %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		" ", "localhost", "localhost:5", ":5", "10.0.0.1:x", "10.0.0.1:65536", "10.0.0.1:-1", "10.0.0:5", "[fd00::1",
		"fd00::1]:5", "[]:5", "fe80::1%eth0", "[fe80::1%eth0]:5", "1:2:3:4:5:6:7:8:9", "http://10.0.0.1:5",
	} {
		if got, err := parseEndpoint(text, 99); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
