package bpf

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
)

// Usage is the number of entries and the size of a map.
type Usage struct {
	Map     string
	Entries int // -1: not counted, as the kernel evicts the oldest entries
	Max     int // capacity; Write replaces a full map by a larger one
	Bytes   int // of memory; -1: the kernel does not report it
}

// Usage returns the usage of all maps; none before Write opens them. It reads the map of connected UDP sockets to count
// its entries. The other maps that programs write evict their oldest entries, so they are always full after a while.
func (c *Conn) Usage() ([]Usage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []Usage
	for _, name := range slices.Sorted(maps.Keys(c.maps)) {
		m := c.maps[name]
		u := Usage{Map: name, Max: int(m.MaxEntries()), Bytes: -1}
		var err error
		if u.Entries, err = c.countEntries(name); err != nil {
			return nil, fmt.Errorf("count the entries of map %s: %w", name, err)
		}
		info, err := m.Info()
		if err != nil {
			return nil, fmt.Errorf("read the size of map %s: %w", name, err)
		}
		if bytes, known := info.Memlock(); known {
			u.Bytes = int(bytes)
		}
		list = append(list, u)
	}
	return list, nil
}

// countEntries returns Usage.Entries of a map.
func (c *Conn) countEntries(name string) (n int, err error) {
	m := c.maps[name]
	if n, known := c.entries[name]; known {
		return n, nil
	}
	switch {
	case name == sockMapUDPSockets:
		err = inBatches(m, func(uint64, [64]byte) { n++ })
		return n, err
	case m.Type() == ebpf.Hash && !isTable(name):
		err = each(m, func(_, _ []byte) { n++ })
		return n, err
	}
	return -1, nil
}

// isTable reports whether Write fills a map, and so counts its entries.
func isTable(name string) bool {
	return slices.ContainsFunc(tables(), func(t Table) bool { return t.String() == name })
}

// put writes an entry, and counts a new one.
func (c *Conn) put(e Entry) error {
	m := c.maps[e.Table.String()]
	err := store(m, []byte(e.Data), []byte(e.Value), ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return put(m, []byte(e.Data), []byte(e.Value))
	}
	if err == nil {
		c.counted(e.Table, 1)
	}
	return err
}

// counted records that an entry was added (1) or removed (-1).
func (c *Conn) counted(t Table, n int) {
	if _, known := c.entries[t.String()]; known {
		c.entries[t.String()] += n
	}
}

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
