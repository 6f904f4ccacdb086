package harness

import "encoding/binary"

// Checksum returns the checksum of the Internet protocols (RFC 1071) of an even number of bytes.
func Checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}
