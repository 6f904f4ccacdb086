package slots

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
)

// version is a number of the tables of Maglev and of the hash of clients. Another one has other checksums.
const version = 1

// Checksum is a sum of checksums of tables. The order does not matter: adding a table again subtracts it.
type Checksum uint32

// Add adds the table of a port. It does not compute the table, but reads what it follows from: two nodes with the same
// checksum send each client to the same backends.
func (c *Checksum) Add(port string, backends []netip.AddrPort, weight func(netip.AddrPort) uint16) {
	b := append([]byte(port), 0, version, Seed)
	for _, at := range backends {
		if w := weight(at); w > 0 {
			a := at.Addr().As16()
			b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(append(b, a[:]...), at.Port()), w)
		}
	}
	sum := sha256.Sum256(b)
	*c ^= Checksum(binary.BigEndian.Uint32(sum[:]))
}

// String returns 8 hexadecimal digits.
func (c Checksum) String() string { return fmt.Sprintf("%08x", uint32(c)) }

// MarshalText implements encoding.TextMarshaler.
func (c Checksum) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Checksum) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "%08x", (*uint32)(c))
	return err
}
