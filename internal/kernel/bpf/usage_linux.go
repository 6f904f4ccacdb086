package bpf

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/cilium/ebpf"
)

// Usage is how full a map is.
type Usage struct {
	Map     string
	Entries int // -1: nobody counts them, as old ones make room for new ones
	Max     int // maps that Write fills are made larger
	Bytes   int // of memory; -1: the kernel does not say it
}

// Usage returns how full the maps are; nothing before they are opened by Write. It reads the map of connected UDP sockets: the
// others that programs write forget the oldest entries, so that they are full in any case after a while.
func (c *Conn) Usage() ([]Usage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []Usage
	for _, name := range slices.Sorted(maps.Keys(c.maps)) {
		m := c.maps[name]
		u := Usage{Map: name, Entries: -1, Max: int(m.MaxEntries()), Bytes: -1}
		if n, known := c.entries[name]; known {
			u.Entries = n
		} else if m.Type() == ebpf.Hash && !isTable(name) {
			var err error
			if u.Entries, err = count(m); err != nil {
				return nil, fmt.Errorf("count the entries of map %s: %w", name, err)
			}
		}
		info, err := m.Info()
		if err != nil {
			return nil, fmt.Errorf("ask for the size of map %s: %w", name, err)
		}
		if bytes, known := info.Memlock(); known {
			u.Bytes = int(bytes)
		}
		list = append(list, u)
	}
	return list, nil
}

// isTable reports whether Write fills a map. It counts the entries then.
func isTable(name string) bool {
	return slices.ContainsFunc(tables(), func(t Table) bool { return t.String() == name })
}

// count returns the number of entries of a hash.
func count(m *ebpf.Map) (int, error) {
	const batch = 4096 // no bucket of a hash is as large
	sum := 0
	for at, k, v := new(ebpf.MapBatchCursor), newCells(m.KeySize(), batch), newCells(m.ValueSize(), batch); ; {
		n, err := m.BatchLookup(at, k, v, nil)
		sum += n
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return sum, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// newCells returns a slice of arrays of bytes.
func newCells(size uint32, n int) any {
	cell := reflect.ArrayOf(int(size), reflect.TypeFor[byte]())
	return reflect.MakeSlice(reflect.SliceOf(cell), n, n).Interface()
}

// put writes an entry, and counts it if it is new.
func (c *Conn) put(name string, k, v []byte) error {
	m := c.maps[name]
	err := store(m, k, v, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return put(m, k, v)
	}
	if err == nil {
		c.counted(name, 1)
	}
	return err
}

// counted adds to the number of entries of a map, if that is known.
func (c *Conn) counted(name string, n int) {
	if _, known := c.entries[name]; known {
		c.entries[name] += n
	}
}
