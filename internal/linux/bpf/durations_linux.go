package bpf

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// The bounds of the buckets of Durations.
const (
	durationBounds = 17
	firstBound     = 100 * time.Microsecond
)

// Durations is how long the TCP connections to a pool took, from connect() until they were established. It omits those
// that never were.
type Durations struct {
	Sum     time.Duration
	Buckets [durationBounds + 1]uint64 // number of connections; not of those in the buckets before
}

// Count returns the number of connections.
func (d *Durations) Count() (sum uint64) {
	for _, n := range d.Buckets {
		sum += n
	}
	return sum
}

// Add adds other durations to these.
func (d *Durations) Add(other Durations) {
	d.Sum += other.Sum
	for i, n := range other.Buckets {
		d.Buckets[i] += n
	}
}

// Since returns the durations that were added to earlier ones. If some are missing, the kernel has evicted the pool,
// and all are new.
func (d *Durations) Since(before Durations) Durations {
	more := *d
	if more.Sum < before.Sum {
		return *d
	}
	for i, n := range before.Buckets {
		if more.Buckets[i] < n {
			return *d
		}
		more.Buckets[i] -= n
	}
	more.Sum -= before.Sum
	return more
}

// DurationBounds returns the upper bound of each bucket of Durations; the last bucket has none.
func DurationBounds() (bounds [durationBounds]time.Duration) {
	for i := range bounds {
		bounds[i] = firstBound << i
	}
	return bounds
}

// Durations returns how long connections took, by pool. It omits pools without connections. The kernel keeps at least
// 1,024 pools, and evicts the least recently used ones. It is empty without Options.Durations.
func (c *Conn) Durations() (map[Pool]Durations, error) {
	all := map[Pool]Durations{}
	err := c.withMap(sockMapDurations, func(m *ebpf.Map) error {
		return inBatches(m, func(p Pool, d Durations) { all[p] = d })
	})
	if err != nil {
		return nil, fmt.Errorf("read the durations of connections: %w", err)
	}
	return all, nil
}

// BackendCounts returns how many connections and UDP flows the programs have decided, by pool and backend, including
// former backends. The kernel keeps at least 65,536 of them, and evicts the least recently used ones.
func (c *Conn) BackendCounts() (map[Member]uint64, error) {
	all := map[Member]uint64{}
	err := c.withMap(sockMapBackends, func(m *ebpf.Map) error {
		return inBatches(m, func(k [36]byte, n uint64) {
			all[Member{Pool(k[:16]), endpointIn(k[16:])}] = n
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the counters of backends: %w", err)
	}
	return all, nil
}
