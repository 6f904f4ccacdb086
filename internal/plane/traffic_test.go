package plane

import (
	"maps"
	"testing"
)

// Counters have grown by their difference, or begun again; what is live has no growth.
func TestTrafficSince(t *testing.T) {
	now := Traffic{Connections: 10, Failures: 3, Sent: 5, Live: 4}
	for _, tt := range []struct{ before, want Traffic }{
		{nil, Traffic{Connections: 10, Failures: 3, Sent: 5}},
		{Traffic{Connections: 8, Failures: 3, Sent: 9, Live: 9}, Traffic{Connections: 2, Failures: 0, Sent: 5}},
	} {
		if got := now.Since(tt.before); !maps.Equal(got, tt.want) {
			t.Errorf("since %v: got %v, want %v", tt.before, got, tt.want)
		}
	}
	now.Add(Traffic{Connections: 1, Received: 2})
	if want := (Traffic{Connections: 11, Failures: 3, Sent: 5, Live: 4, Received: 2}); !maps.Equal(now, want) {
		t.Errorf("sum: got %v, want %v", now, want)
	}
}
