package slots

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Seed is the seed of all hashes of clients, on every node and in every plane. It makes them differ from those of other
// programs.
const Seed = 0x51

// Of returns the slot of a client among n.
func Of(client netip.Addr, n int) int { return Scale(HashClient(client), n) }

// HashClient returns the hash of the address of a client.
func HashClient(client netip.Addr) uint32 { return Hash(client.Unmap().AsSlice(), Seed) }

// Scale returns the slot of a hash among n, as the kernel computes it (nft_hash.c).
func Scale(hash uint32, n int) int { return int(uint64(hash) * uint64(n) >> 32) }

// Hash is Bob Jenkins' lookup3 as the kernel computes it on machines with the least byte first (linux/jhash.h).
func Hash(data []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(data)) + seed
	b, c := a, a
	word := func(at int) uint32 {
		var w [4]byte
		copy(w[:], data[min(at, len(data)):])
		return binary.LittleEndian.Uint32(w[:])
	}
	for ; len(data) > 12; data = data[12:] {
		a, b, c = mix(a+word(0), b+word(4), c+word(8))
	}
	if len(data) == 0 {
		return c
	}
	return final(a+word(0), b+word(4), c+word(8))
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	a, c = (a-c)^bits.RotateLeft32(c, 4), c+b
	b, a = (b-a)^bits.RotateLeft32(a, 6), a+c
	c, b = (c-b)^bits.RotateLeft32(b, 8), b+a
	a, c = (a-c)^bits.RotateLeft32(c, 16), c+b
	b, a = (b-a)^bits.RotateLeft32(a, 19), a+c
	c, b = (c-b)^bits.RotateLeft32(b, 4), b+a
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}
