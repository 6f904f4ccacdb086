package convert

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func TestInterner(t *testing.T) {
	in := NewInterner()
	whole := "a long text of which web-1 is a part"
	a, b := in.Of(whole[21:26]), in.Of("web-1")
	if a != "web-1" || unsafe.StringData(a) != unsafe.StringData(b) {
		t.Errorf("got %q and %q, want one copy", a, b)
	}
	if unsafe.StringData(a) == unsafe.StringData(whole[21:]) {
		t.Error("a substring keeps the whole text in memory")
	}
	var none *Interner
	if got := none.Of("web-1"); got != "web-1" {
		t.Errorf("a nil Interner returns %q", got)
	}
}

func hints(zones, nodes []string) *discoveryv1.EndpointHints {
	h := &discoveryv1.EndpointHints{}
	for _, z := range zones {
		h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: z})
	}
	for _, n := range nodes {
		h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return h
}

// Equal hints share one value in memory; hints with the same concatenated text do not.
func TestInternedHints(t *testing.T) {
	in := NewInterner()
	seen := map[*cluster.Hints]string{}
	for _, h := range [][2][]string{
		{{"a"}, nil}, {{"a", "b"}, nil}, {{"ab"}, nil}, {{"a"}, {"b"}}, {nil, {"a", "b"}}, {{"a\x01b"}, nil},
	} {
		want := &cluster.Hints{Zones: h[0], Nodes: h[1]}
		got := in.Hints(hints(h[0], h[1]))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if again := in.Hints(hints(h[0], h[1])); again != got {
			t.Errorf("%v: two copies", h)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%v has the value of %s", h, other)
		}
		seen[got] = fmt.Sprint(h)
	}
}

// An Interner does not grow beyond its limit, and still returns the right values.
func TestInternerIsBounded(t *testing.T) {
	in := NewInterner()
	for i := range 2*maxInterned + 10 {
		name := fmt.Sprint(i)
		if got := in.Of(name); got != name {
			t.Fatalf("got %q, want %q", got, name)
		}
		if got := in.Hints(hints([]string{name}, nil)); got.Zones[0] != name {
			t.Fatalf("got %v, want zone %s", got, name)
		}
	}
	if len(in.seen) > maxInterned || len(in.hints) > maxInterned {
		t.Errorf("%d strings and %d hints are kept, want at most %d", len(in.seen), len(in.hints), maxInterned)
	}
}

func TestInternerSharesStrings(t *testing.T) {
	in := NewInterner()
	a, b := in.Of(strings.Repeat("x", 8)), in.Of(strings.Repeat("x", 8))
	if a != b || a != "xxxxxxxx" {
		t.Fatalf("Of changed the string: %q, %q", a, b)
	}
	for i := range 3 * maxInterned {
		in.Of(number(int32(i)))
	}
	if len(in.seen) > maxInterned {
		t.Errorf("%d strings are kept, want at most %d", len(in.seen), maxInterned)
	}
	if got := (*Interner)(nil).Of("y"); got != "y" {
		t.Errorf("a nil Interner returns %q", got)
	}
}
