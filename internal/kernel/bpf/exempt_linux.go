package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Exempt leaves connections of processes in these cgroups, and in those below, to packets. The id of a cgroup is the inode
// number of its folder. Without room it returns ErrFull.
func (c *Conn) Exempt(cgroups map[uint64]bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exempt(cgroups)
}

func (c *Conn) exempt(cgroups map[uint64]bool) error {
	if err := c.open(); err != nil {
		return err
	}
	for id := range cgroups {
		err := c.maps[sockMapExempt].Put(native64(id), native32(1))
		if isFull(err) {
			err = ErrFull
		}
		if err != nil {
			return fmt.Errorf("exempt a cgroup: %w", err)
		}
	}
	return nil
}

// ExemptOnly does the same, and balances processes of all other cgroups.
func (c *Conn) ExemptOnly(cgroups map[uint64]bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.exempt(cgroups); err != nil {
		return err
	}
	m := c.maps[sockMapExempt]
	var others [][]byte
	err := each(m, func(k, _ []byte) {
		if id := binary.NativeEndian.Uint64(k); !cgroups[id] {
			others = append(others, native64(id))
		}
	})
	if err != nil {
		return fmt.Errorf("read the exempt cgroups: %w", err)
	}
	for _, k := range others {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("end the exemption of a cgroup: %w", err)
		}
	}
	return nil
}
