package relay

import (
	"encoding/binary"
	"net/netip"
)

// proxySignature begins each PROXY header of version 2.
const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// Fields of a PROXY header of version 2.
const (
	proxyCommand = 0x21 // version 2, command PROXY
	proxyTCP4    = 0x11
	proxyTCP6    = 0x21
	proxyLength4 = 2 * (4 + 2)
	proxyLength6 = 2 * (16 + 2)
)

// proxyHeader returns a PROXY header of version 2 for a TCP connection from a client to the address to
// which it connected.
func proxyHeader(client, to netip.AddrPort) []byte {
	b := []byte(proxySignature)
	if client.Addr().Is4() && to.Addr().Is4() {
		b = append(b, proxyCommand, proxyTCP4, 0, proxyLength4)
		b = append(b, client.Addr().AsSlice()...)
		b = append(b, to.Addr().AsSlice()...)
	} else {
		source, destination := client.Addr().As16(), to.Addr().As16()
		b = append(b, proxyCommand, proxyTCP6, 0, proxyLength6)
		b = append(b, source[:]...)
		b = append(b, destination[:]...)
	}
	b = binary.BigEndian.AppendUint16(b, client.Port())
	return binary.BigEndian.AppendUint16(b, to.Port())
}
