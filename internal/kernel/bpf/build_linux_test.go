package bpf

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/layouts.txt")

// The keys and values of the maps match testdata. After a change of a key or value, check whether it keeps the layout (see current). If not,
// add the next number to layouts, and a conversion. Then record the change with -update.
func TestLayouts(t *testing.T) {
	const file = "testdata/layouts.txt"
	b := current()
	spec, err := b.load()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		ms := spec.Maps[name]
		if isDataSection(name) {
			continue
		}
		fmt.Fprintf(&text, "%s, layout %d\n", name, b.layout(name))
		if ms.Key != nil {
			fmt.Fprintf(&text, "\tkey %s\n\tvalue %s\n", fields(ms.Key), fields(ms.Value))
		}
		if keeps(name) && len(b.conversions[name]) != b.layout(name)-firstLayout {
			t.Errorf("map %s of layout %d has %d conversions", name, b.layout(name), len(b.conversions[name]))
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text.String()); diff != "" {
		t.Errorf("%s, -want +got (the comment of current says what to do):\n%s", file, diff)
	}
}

// fields prints the size of a type, and its fields with their offsets.
func fields(of btf.Type) string {
	size, err := btf.Sizeof(of)
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprint(size, " bytes")
	if s, is := btf.UnderlyingType(of).(*btf.Struct); is {
		for _, m := range s.Members {
			text += fmt.Sprintf(", %s at %d", m.Name, m.Offset.Bytes())
		}
	}
	return text
}

func TestConversions(t *testing.T) {
	add := func(text string) conversion {
		return func(k, v []byte) ([]byte, []byte, bool) {
			return append(k, text...), v, len(v) > 0
		}
	}
	b := build{layouts: map[string]int{"a": 3, "b": 2}, conversions: map[string][]conversion{"a": {add("1"), add("2")}}}
	for _, c := range []struct {
		name        string
		from        int
		value, want string
	}{
		{"a", 1, "v", "k12"},
		{"a", 2, "v", "k2"},
		{"a", 3, "v", "k"},
		{"a", 1, "", "no place"},
		{"a", 0, "v", "none"},
		{"b", 1, "v", "none"},
		{"c", 1, "v", "k"},
	} {
		got := "none"
		if convert := b.conversion(c.name, c.from); convert != nil {
			got = "no place"
			if k, _, ok := convert([]byte("k"), []byte(c.value)); ok {
				got = string(k)
			}
		}
		if got != c.want {
			t.Errorf("%s of layout %d: %s, want %s", c.name, c.from, got, c.want)
		}
	}
}
