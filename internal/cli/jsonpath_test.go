package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// Items are sorted as people order their values, and those without a value are first.
func TestSorted(t *testing.T) {
	for _, tt := range []struct{ template, items, want string }{
		{".n", `{"n":10} {"n":9} {} {"n":-1}`, `{} {"n":-1} {"n":9} {"n":10}`},
		{"{.a}", `{"a":"10.0.0.10"} {"a":"10.0.0.9"} {"a":"fd00::1"}`, `{"a":"10.0.0.9"} {"a":"10.0.0.10"} {"a":"fd00::1"}`},
		{
			"a.b", `{"a":{"b":"y"},"i":1} {"a":{"b":"x"}} {"a":{"b":"y"},"i":2}`,
			`{"a":{"b":"x"}} {"a":{"b":"y"},"i":1} {"a":{"b":"y"},"i":2}`,
		},
		{".l[0].n", `{"l":[{"n":2}]} {} {"l":[{"n":1}]}`, `{} {"l":[{"n":1}]} {"l":[{"n":2}]}`},
	} {
		var items []json.RawMessage
		for item := range strings.FieldsSeq(tt.items) {
			items = append(items, json.RawMessage(item))
		}
		var got []string
		for answer, err := range template(tt.template).sorted(answered(items...)) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(answer))
		}
		if want := strings.Fields(tt.want); !slices.Equal(got, want) {
			t.Errorf("by %s: %s, want %s", tt.template, got, want)
		}
	}
}
