package bpf

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
)

// build is a version of the programs, with the layouts of their maps.
type build struct {
	object  []byte         // compiled programs
	layouts map[string]int // by map; firstLayout if a map is missing

	// conversions translate entries of maps that programs write. The first one of a map translates from the first layout to the second.
	conversions map[string][]conversion
}

// conversion translates an entry into the next layout of its map. It returns false if that layout cannot hold the entry.
type conversion func(k, v []byte) (key, value []byte, ok bool)

const firstLayout = 1

// current returns the build of this version of Sluice.
//
// The layout of a map is the meaning of its keys and values. It is part of the path of the map, so that each version opens those maps
// that it understands. These changes keep the layout: fields at the end of a value, if zero in them means what versions without them mean;
// another type, other flags and another size of the map. A version then copies the entries that programs have written, and cuts values, or
// fills them with zeros; so does an earlier version. Any other change of a key or value needs the next number in layouts. If programs write the map
// (keeps), it needs a conversion too; an earlier version then starts with an empty map. TestLayouts fails after a change of keys or values.
func current() build {
	return build{object: _SockBytes, layouts: map[string]int{}, conversions: map[string][]conversion{}}
}

// keeps reports whether entries of a map have to survive a change of its layout or shape. The others are filled before programs that use
// them are attached, or may be lost: leases end at a start anyway.
func keeps(name string) bool {
	return slices.Contains([]string{
		sockMapChosen, sockMapClients, sockMapConnections, sockMapCounted, sockMapCounts, sockMapLoads, sockMapNewcomers,
		sockMapOriginals, sockMapUdpSockets,
	}, name)
}

// load returns the programs and maps, which the caller may change.
func (b *build) load() (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(b.object))
	if err != nil {
		return nil, fmt.Errorf("read the compiled programs: %w", err)
	}
	return spec, nil
}

func (b *build) layout(name string) int {
	if l, changed := b.layouts[name]; changed {
		return l
	}
	return firstLayout
}

// dirs returns the names of the folders with maps of this version.
func (b *build) dirs() []string {
	all := []string{dirOf(firstLayout)}
	for _, l := range slices.Sorted(maps.Values(b.layouts)) {
		all = append(all, dirOf(l))
	}
	return slices.Compact(all)
}

func dirOf(layout int) string { return fmt.Sprint(mapsPrefix, layout) }

// conversion returns the conversion of a map from an earlier layout, or from the current one. It returns nil if there is none.
func (b *build) conversion(name string, from int) conversion {
	var chain []conversion
	if to := b.layout(name); from < to {
		known := b.conversions[name]
		if from < firstLayout || to-firstLayout > len(known) {
			return nil
		}
		chain = known[from-firstLayout : to-firstLayout]
	}
	return func(k, v []byte) ([]byte, []byte, bool) {
		for _, c := range chain {
			var ok bool
			if k, v, ok = c(k, v); !ok {
				return nil, nil, false
			}
		}
		return k, v, true
	}
}
