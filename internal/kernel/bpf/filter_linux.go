package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// filterBits is the size of the map address_filter, as in sock.c.
const filterBits = 1 << 20

// filter keeps the map address_filter in step with the addresses in Frontends and NodeAddrs, which begin the keys of both.
type filter struct {
	m     *ebpf.Map
	users map[uint32]int // number of entries that need a bit; nil: unknown
}

// filterBit returns the bit of an address. may_serve of sock.c is the same.
func filterBit(address string) uint32 {
	word := func(i int) uint32 { return binary.NativeEndian.Uint32([]byte(address[4*i : 4*i+4])) }
	return mix(word(0)*3^word(1)*5^word(2)*7^word(3)) % filterBits
}

// openFilter reads the addresses, unless they are known, and writes all bits: another version of Sluice may have changed the addresses.
// Programs of another version may have other tables and this filter, so their bits stay.
func (c *Conn) openFilter() error {
	if c.filter.users != nil {
		return nil
	}
	f := filter{c.maps[sockMapAddressFilter], map[uint32]int{}}
	for _, t := range []Table{NodeAddrs, Frontends} {
		if err := eachInBatches(c.maps[t.String()], func(k, _ []byte) { f.users[filterBit(string(k))]++ }); err != nil {
			return fmt.Errorf("read the addresses of map %s: %w", t, err)
		}
	}
	attached, err := c.attached()
	if err != nil {
		return err
	}
	words := make([]uint64, filterBits/64)
	if attached != c.version {
		if words, err = f.read(); err != nil {
			return err
		}
	}
	if err := f.add(words); err != nil {
		return err
	}
	c.filter = f
	return nil
}

// read returns the words of the map.
func (f *filter) read() ([]uint64, error) {
	words := make([]uint64, filterBits/64)
	_, err := f.m.BatchLookup(new(ebpf.MapBatchCursor), make([]uint32, len(words)), words, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // the end
		return nil, fmt.Errorf("read the filter of addresses: %w", err)
	}
	return words, nil
}

// add writes words with the bits of all addresses added.
func (f *filter) add(words []uint64) error {
	keys := make([]uint32, len(words))
	for i := range keys {
		keys[i] = uint32(i)
	}
	for bit := range f.users {
		words[bit/64] |= 1 << (bit % 64)
	}
	if _, err := f.m.BatchUpdate(keys, words, nil); err != nil {
		return fmt.Errorf("write the filter of addresses: %w", err)
	}
	return nil
}

// count records that an entry was added (1) or removed (-1). After an error openFilter has to write all bits again.
func (f *filter) count(k Key, n int) error {
	if k.Table != NodeAddrs && k.Table != Frontends {
		return nil
	}
	bit := filterBit(k.Data)
	f.users[bit] += n
	switch {
	case f.users[bit] == 0:
		delete(f.users, bit)
	case f.users[bit] != n: // other entries need it
		return nil
	}
	if err := f.set(bit); err != nil {
		f.users = nil
		return fmt.Errorf("write the filter of addresses: %w", err)
	}
	return nil
}

// set writes a bit.
func (f *filter) set(bit uint32) error {
	var word uint64
	if err := f.m.Lookup(bit/64, &word); err != nil {
		return err
	}
	word &^= 1 << (bit % 64)
	if f.users[bit] > 0 {
		word |= 1 << (bit % 64)
	}
	return f.m.Put(bit/64, word)
}
