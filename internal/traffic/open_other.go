//go:build !linux

package traffic

// Open returns nil: only Linux has conntrack.
func Open(int) (Table, error) { return nil, nil }
