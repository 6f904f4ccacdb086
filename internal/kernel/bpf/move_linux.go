package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cilium/ebpf"
)

// move copies entries from a map of another layout or shape into its successor. While programs of both versions run, each version
// writes its own map, and copy is called again for entries that the earlier programs have written meanwhile.
type move struct {
	from, to *ebpf.Map
	convert  conversion
	copied   map[string]string // the entries of from at the last copy, converted
}

// newMove returns a move into a map; nil if there is no map to copy from.
func (c *Conn) newMove(to *ebpf.Map, ms *ebpf.MapSpec) (*move, error) {
	for layout := c.build.layout(ms.Name); layout >= firstLayout; layout-- {
		convert := c.build.conversion(ms.Name, layout)
		if convert == nil {
			return nil, nil
		}
		from, err := ebpf.LoadPinnedMap(c.pathAt(layout, ms.Name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open map %s of layout %d: %w", ms.Name, layout, err)
		}
		return &move{from: from, to: to, convert: convert}, nil
	}
	return nil, nil
}

// copyMoves copies the entries that the programs of an earlier version have written since the last call.
func (c *Conn) copyMoves() error {
	for name, m := range c.moves {
		if err := m.copy(); err != nil {
			return fmt.Errorf("copy map %s: %w", name, err)
		}
	}
	return nil
}

func (c *Conn) closeMoves() error {
	var failed []error
	for _, m := range c.moves {
		failed = append(failed, m.from.Close())
	}
	c.moves = map[string]*move{}
	return errors.Join(failed...)
}

// copy repeats additions, changes and deletions since the last call. It keeps changes that the new programs have made.
func (m *move) copy() error {
	list, err := dump(m.from)
	if err != nil {
		return err
	}
	now := make(map[string]string, len(list))
	for k, v := range list {
		key, value, ok := m.fit([]byte(k), []byte(v))
		if !ok {
			continue
		}
		now[key] = value
		if m.copied[key] == value {
			continue
		}
		if err := m.replace(key, m.copied[key], value); err != nil {
			return err
		}
		if err := m.verify(k, key, value); err != nil {
			return err
		}
	}
	for key, value := range m.copied {
		if _, there := now[key]; !there {
			if err := m.replace(key, value, ""); err != nil {
				return err
			}
		}
	}
	m.copied = now
	return nil
}

// fit converts an entry, and truncates its value or pads it with zeros.
func (m *move) fit(k, v []byte) (key, value string, ok bool) {
	if k, v, ok = m.convert(k, v); !ok {
		return "", "", false
	}
	if m.to.Type() == ebpf.Array { // connections: by the cookie of the socket, and the size of the map
		k = native32(uint32(binary.NativeEndian.Uint64(v) % uint64(m.to.MaxEntries())))
	}
	if len(k) != int(m.to.KeySize()) {
		return "", "", false
	}
	if isPerCPU(m.to) {
		return string(k), string(v), m.from.ValueSize() == m.to.ValueSize()
	}
	fitting := make([]byte, m.to.ValueSize())
	copy(fitting, v)
	return string(k), string(fitting), true
}

// replace changes a value from old to new. An empty one stands for no entry. It does nothing if the map holds another value than old, or has
// no room.
func (m *move) replace(key, old, new string) error {
	current, err := get(m.to, key)
	if err != nil || current != old {
		return err
	}
	if new == "" {
		return remove(m.to, []byte(key))
	}
	flags := ebpf.UpdateAny
	if current == "" && m.to.Type() != ebpf.Array {
		flags = ebpf.UpdateNoExist
	}
	var value any = []byte(new)
	if isPerCPU(m.to) {
		value = cells(new, m.to.ValueSize())
	}
	err = store(m.to, []byte(key), value, flags)
	if errors.Is(err, ebpf.ErrKeyExist) || isFull(err) {
		return nil
	}
	return err
}

// verify removes the entry of a socket that was closed while copy copied it: the new program may have tried to delete the entry before copy
// added it.
func (m *move) verify(from, key, value string) error {
	if m.from.Type() != ebpf.Hash {
		return nil // other types evict the oldest entries
	}
	if v, err := get(m.from, from); err != nil || v != "" {
		return err
	}
	return m.replace(key, value, "")
}

func isPerCPU(m *ebpf.Map) bool {
	return m.Type() == ebpf.PerCPUHash || m.Type() == ebpf.LRUCPUHash
}

// cells splits a value of all processors.
func cells(all string, size uint32) (list [][]byte) {
	aligned := int(size+7) / 8 * 8
	for at := 0; at < len(all); at += aligned {
		list = append(list, []byte(all[at:at+int(size)]))
	}
	return list
}

// get returns a value, of a per-CPU map the values of all processors; "" if there is none. In an array a value of zeros is none.
func get(m *ebpf.Map, key string) (string, error) {
	v, err := m.LookupBytes([]byte(key))
	if err != nil || m.Type() == ebpf.Array && isZero(v) {
		return "", err
	}
	return string(v), nil
}

// remove removes an entry, if there is one.
func remove(m *ebpf.Map, key []byte) error {
	if m.Type() == ebpf.Array {
		return m.Put(key, make([]byte, m.ValueSize()))
	}
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// removeIf removes the entries for which a function returns true.
func removeIf(m *ebpf.Map, is func(k, v []byte) bool) error {
	var keys [][]byte
	err := each(m, func(k, v []byte) {
		if is(k, v) {
			keys = append(keys, slices.Clone(k))
		}
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := remove(m, k); err != nil {
			return err
		}
	}
	return nil
}

func isZero(v []byte) bool {
	for _, b := range v {
		if b != 0 {
			return false
		}
	}
	return true
}

// dump returns the entries of a map that programs change meanwhile.
func dump(m *ebpf.Map) (map[string]string, error) {
	all := map[string]string{}
	if isPerCPU(m) {
		return all, dumpByKeys(m, all)
	}
	return all, eachInBatches(m, func(k, v []byte) {
		if m.Type() != ebpf.Array || !isZero(v) {
			all[string(k)] = string(v)
		}
	})
}

// dumpByKeys adds the entries of a map to all, one by one. It starts again if an entry was deleted meanwhile, but it reads a bounded number
// of entries.
func dumpByKeys(m *ebpf.Map, all map[string]string) error {
	var key any
	for range 2 * m.MaxEntries() {
		next, err := m.NextKeyBytes(key)
		if err != nil || next == nil {
			return err
		}
		v, err := m.LookupBytes(next)
		if err != nil {
			return err
		}
		if v != nil {
			all[string(next)] = string(v)
		}
		key = next
	}
	return nil
}
