package xtables

import (
	"bytes"
	"encoding/binary"
)

// without returns the image without what is cut out, and of each entry that it
// has which it was.
func (b *blob) without(c cut) (image, []int) {
	kept := b.keep(c)
	img := b.image
	img.number = uint32(len(kept))
	moved := make([]int, len(b.entries)) // where entries are now
	at := 0
	for _, i := range kept {
		moved[i] = at
		at += b.entries[i].end - b.entries[i].at
	}
	starts := b.starts(c, moved)

	img.data = make([]byte, 0, at)
	for _, i := range kept {
		e := b.entries[i]
		at := len(img.data)
		img.data = append(img.data, b.data[e.at:e.end]...)
		verdict := img.data[at+e.part-e.at+partHead:]
		switch {
		case e.leads != continues:
			binary.NativeEndian.PutUint32(verdict, uint32(starts[e.leads]))
		case e.name == "" && e.verdict >= 0:
			binary.NativeEndian.PutUint32(verdict, uint32(len(img.data)))
		}
	}
	for i, s := range b.segments {
		if s.hook != continues {
			img.entry[s.hook] = uint32(starts[i])
			img.underflow[s.hook] = uint32(moved[s.tail])
		}
	}
	return img, kept
}

// keep lists the entries that stay.
func (b *blob) keep(c cut) []int {
	kept := make([]int, 0, len(b.entries))
	for i, s := range b.segments {
		if c.chains[s.name] {
			continue
		}
		for j := s.first; j <= s.tail; j++ {
			if !c.rules[place{i, j - s.rules}] {
				kept = append(kept, j)
			}
		}
	}
	return append(kept, len(b.entries)-1)
}

// starts returns where the rules of each chain begin now.
func (b *blob) starts(c cut, moved []int) []int {
	starts := make([]int, len(b.segments))
	for i, s := range b.segments {
		first := s.rules
		for first < s.tail && c.rules[place{i, first - s.rules}] {
			first++
		}
		starts[i] = moved[first]
	}
	return starts
}

// equal reports whether two images say the same. Counters count on meanwhile.
func (b *blob) equal(img image) bool {
	if b.hooks != img.hooks || b.image.entry != img.entry || b.underflow != img.underflow ||
		b.number != img.number || len(b.data) != len(img.data) {
		return false
	}
	for _, e := range b.entries {
		x, y := b.data[e.at:e.end], img.data[e.at:e.end]
		if !bytes.Equal(x[:b.comefrom], y[:b.comefrom]) || !bytes.Equal(x[b.head:], y[b.head:]) {
			return false
		}
	}
	return true
}

// decodeInfo reads the answer to IPT_SO_GET_INFO, and the size it announces.
func decodeInfo(b [infoLen]byte) (image, uint32) {
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(b[nameLen+4*i:]) }
	img := image{hooks: word(0)}
	for hook := range hookCount {
		img.entry[hook] = word(1 + hook)
		img.underflow[hook] = word(1 + hookCount + hook)
	}
	img.number = word(1 + 2*hookCount)
	return img, word(2 + 2*hookCount)
}

// encodeListing makes the request IPT_SO_GET_ENTRIES, with room for the answer.
func encodeListing(table string, size uint32) []byte {
	b := make([]byte, listingHead+int(size))
	copy(b[:nameLen-1], table)
	binary.NativeEndian.PutUint32(b[nameLen:], size)
	return b
}

// encodeReplace makes the request IPT_SO_SET_REPLACE. The kernel writes the
// counters of as many old entries to an address.
func encodeReplace(table string, img image, old uint32, counters uint64) []byte {
	b := make([]byte, nameLen, replaceHead+len(img.data))
	copy(b[:nameLen-1], table)
	words := []uint32{img.hooks, img.number, uint32(len(img.data))}
	words = append(words, img.entry[:]...)
	words = append(words, img.underflow[:]...)
	for _, w := range append(words, old) {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	b = binary.NativeEndian.AppendUint64(b, counters)
	return append(b, img.data...)
}

// encodeCounters makes the request IPT_SO_SET_ADD_COUNTERS: each entry gets the
// counters of what it was.
func encodeCounters(table string, kept []int, old []byte) []byte {
	b := make([]byte, listingHead, listingHead+len(kept)*counterLen)
	copy(b[:nameLen-1], table)
	binary.NativeEndian.PutUint32(b[nameLen:], uint32(len(kept)))
	for _, i := range kept {
		b = append(b, old[i*counterLen:(i+1)*counterLen]...)
	}
	return b
}
