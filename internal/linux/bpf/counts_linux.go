package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Counts returns how many connections and UDP flows the programs have decided, by pool. It omits pools without
// connections. If the map is full, the kernel evicts the least recently used pools.
func (c *Conn) Counts() (map[Pool]uint64, error) {
	all := map[Pool]uint64{}
	err := c.withMap(sockMapCounts, func(m *ebpf.Map) error {
		var pool Pool
		var cpus []uint64
		entries := m.Iterate()
		for entries.Next(&pool, &cpus) {
			sum := uint64(0)
			for _, n := range cpus {
				sum += n
			}
			all[pool] = sum
		}
		return entries.Err()
	})
	if err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // programs change it meanwhile
		return nil, fmt.Errorf("read the counters: %w", err)
	}
	return all, nil
}
