package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
)

// changeTables runs a function that changes the tables. Programs repeat choices without a check while the generation
// stays the same. It is odd during the change, so that they check all, even if this process ends in the middle of it.
// After the change it is a new one.
func (c *Conn) changeTables(change func() error) error {
	m, only := c.maps[sockMapGeneration], native32(0)
	v, err := m.LookupBytes(only)
	if err != nil {
		return fmt.Errorf("read the generation of the maps: %w", err)
	}
	odd := binary.NativeEndian.Uint64(v) | 1
	if odd == 1 { // the map is new: no choice may have its numbers
		odd = rand.Uint64() | 1
	}
	if err := m.Put(only, native64(odd)); err != nil {
		return fmt.Errorf("begin a generation of the maps: %w", err)
	}
	err = change()
	if failed := m.Put(only, native64(odd+1)); failed != nil {
		err = errors.Join(err, fmt.Errorf("end the change of the maps: %w", failed))
	}
	return err
}
