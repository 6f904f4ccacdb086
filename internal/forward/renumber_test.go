package forward

import (
	"reflect"
	"slices"
	"testing"
)

// What lacks one of its descriptors is left out; its others are returned.
func TestRenumber(t *testing.T) {
	h := &Handed{
		Socket: 3,
		Conns: []Conn{
			{Client: 4, Remote: 5},
			{Client: 6, Remote: 99},
			{Client: 7, Remote: -1, Up: Way{Held: 1, Pipe: [2]int{8, 9}}},
		},
		Flows: []Flow{{Socket: 98}, {Socket: 10}},
	}
	rest := h.Renumber(map[int]int{3: 103, 4: 5, 5: 4, 6: 106, 7: 107, 8: 108, 9: 109, 10: 110})
	want := &Handed{
		Socket: 103,
		Conns:  []Conn{{Client: 5, Remote: 4}, {Client: 107, Remote: -1, Up: Way{Held: 1, Pipe: [2]int{108, 109}}}},
		Flows:  []Flow{{Socket: 110}},
	}
	if !reflect.DeepEqual(h, want) || !slices.Equal(rest, []int{106}) {
		t.Errorf("%+v, rest %v, want %+v, rest [106]", h, rest, want)
	}
	if rest := h.Renumber(nil); h.Socket != -1 || len(h.Conns)+len(h.Flows) > 0 || !slices.Equal(rest, nil) {
		t.Errorf("without numbers: %+v, rest %v", h, rest)
	}
}
