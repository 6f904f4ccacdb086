package convert

import (
	"encoding/binary"
	"strings"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Interner returns a single copy of values that many objects repeat: namespaces, node names, zones, port names,
// topology hints. It is safe for concurrent use; a nil Interner shares nothing.
type Interner struct {
	mu    sync.Mutex
	seen  map[string]string
	hints map[string]*cluster.Hints
}

// maxInterned bounds the strings that an Interner keeps. It exceeds the number of nodes, zones, namespaces and port
// names of any cluster; at the limit the Interner discards all of them.
const maxInterned = 1 << 15

// NewInterner returns an empty Interner.
func NewInterner() *Interner {
	return &Interner{seen: map[string]string{}, hints: map[string]*cluster.Hints{}}
}

// Of returns the shared copy of s.
func (in *Interner) Of(s string) string {
	if in == nil || s == "" {
		return s
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if kept, ok := in.seen[s]; ok {
		return kept
	}
	if len(in.seen) >= maxInterned {
		in.seen = map[string]string{}
	}
	s = strings.Clone(s) // s may be part of a larger string
	in.seen[s] = s
	return s
}

// Hints converts topology hints; nil if all lists are empty.
func (in *Interner) Hints(h *discoveryv1.EndpointHints) *cluster.Hints {
	if h == nil || len(h.ForZones) == 0 && len(h.ForNodes) == 0 {
		return nil
	}
	if in == nil {
		return in.convert(h)
	}
	var room [128]byte
	key := appendHints(room[:0], h)
	in.mu.Lock()
	kept := in.hints[string(key)]
	in.mu.Unlock()
	if kept != nil {
		return kept
	}
	made := in.convert(h)
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.hints) >= maxInterned {
		in.hints = map[string]*cluster.Hints{}
	}
	in.hints[string(key)] = made
	return made
}

// appendHints appends an encoding of the hints that is the same only for equal hints.
func appendHints(key []byte, h *discoveryv1.EndpointHints) []byte {
	key = binary.AppendUvarint(key, uint64(len(h.ForZones)))
	for i := range h.ForZones {
		key = append(append(key, h.ForZones[i].Name...), 0) // no name has a 0
	}
	for i := range h.ForNodes {
		key = append(append(key, h.ForNodes[i].Name...), 0)
	}
	return key
}

func (in *Interner) convert(h *discoveryv1.EndpointHints) *cluster.Hints {
	out := &cluster.Hints{}
	for i := range h.ForZones {
		out.Zones = append(out.Zones, in.Of(h.ForZones[i].Name))
	}
	for i := range h.ForNodes {
		out.Nodes = append(out.Nodes, in.Of(h.ForNodes[i].Name))
	}
	return out
}
