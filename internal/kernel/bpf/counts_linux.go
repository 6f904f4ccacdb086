package bpf

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
)

// Counts returns how many connections and UDP flows the programs have decided, by pool. Pools without any are not there, and
// the longest unused ones may be forgotten.
func (c *Conn) Counts() (map[Pool]uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.maps[sockMapCounts]
	if m == nil {
		var err error
		m, err = ebpf.LoadPinnedMap(c.mapPath(sockMapCounts), nil)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("open the counters: %w", err)
		}
		defer func() { _ = m.Close() }() // it was only read from
	}
	all := map[Pool]uint64{}
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
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // programs change it meanwhile
		return nil, fmt.Errorf("read the counters: %w", err)
	}
	return all, nil
}
