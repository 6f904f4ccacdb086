package convert

import (
	"strings"
	"sync"
)

// Interner hands out one copy of strings that many objects repeat: namespaces,
// node names, zones, port names. It is safe for concurrent use; a nil one
// hands out what it is given.
type Interner struct {
	mu   sync.Mutex
	seen map[string]string
}

// mostInterned bounds what an Interner keeps alive. It is more than the nodes,
// zones, namespaces and port names of any cluster; past it the Interner
// starts afresh.
const mostInterned = 1 << 15

// NewInterner returns an empty Interner.
func NewInterner() *Interner {
	return &Interner{seen: map[string]string{}}
}

// Of returns the one copy of s.
func (in *Interner) Of(s string) string {
	if in == nil || s == "" {
		return s
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if kept, ok := in.seen[s]; ok {
		return kept
	}
	if len(in.seen) >= mostInterned {
		in.seen = map[string]string{}
	}
	s = strings.Clone(s) // not a part of something larger
	in.seen[s] = s
	return s
}
