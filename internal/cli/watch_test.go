package cli

import "testing"

// A change of an item is one that people see in all modes, and not another number of connections.
func TestConnectionsAreNoChange(t *testing.T) {
	const item = `{"balancing":{"scheduler":"rr","weight":1,"activeConnections":5,"inactiveConnections":17}}`
	for other, want := range map[string]bool{
		item: true,
		`{"balancing":{"scheduler":"rr","weight":1,"activeConnections":12,"inactiveConnections":0}}`: true,
		`{"balancing":{"scheduler":"rr","weight":0,"activeConnections":5,"inactiveConnections":17}}`: false,
		`{"service":"web"}`: false,
	} {
		if got := alike(item, other); got != want {
			t.Errorf("%s: %v, want %v", other, got, want)
		}
	}
}
