package forward

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// proxySignature begins each PROXY header of version 2.
const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// Fields of a PROXY header of version 2.
const (
	proxyCommand = 0x21 // version 2, command PROXY
	proxyTCP4    = 0x11
	proxyTCP6    = 0x21
	proxyFixed   = len(proxySignature) + 4 // before the addresses
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

// errProxyHeader is returned for bytes that are no PROXY header as proxyHeader writes it.
var errProxyHeader = errors.New("not a PROXY header of version 2 for TCP")

// parseProxyHeader decodes the header at the beginning of b, and returns the bytes after it. It is strict:
// it accepts what proxyHeader writes and nothing else.
func parseProxyHeader(b []byte) (client, to netip.AddrPort, rest []byte, err error) {
	if len(b) < proxyFixed || string(b[:len(proxySignature)]) != proxySignature || b[len(proxySignature)] != proxyCommand {
		return client, to, nil, errProxyHeader
	}
	family, length := b[len(proxySignature)+1], int(binary.BigEndian.Uint16(b[proxyFixed-2:]))
	b = b[proxyFixed:]
	size := 0
	switch {
	case family == proxyTCP4 && length == proxyLength4:
		size = 4
	case family == proxyTCP6 && length == proxyLength6:
		size = 16
	}
	if size == 0 || len(b) < length {
		return client, to, nil, errProxyHeader
	}
	source, _ := netip.AddrFromSlice(b[:size]) // the size is one of an address
	destination, _ := netip.AddrFromSlice(b[size : 2*size])
	source, destination = source.Unmap(), destination.Unmap()
	if size == 16 && source.Is4() && destination.Is4() {
		return client, to, nil, errProxyHeader // it has a shorter form
	}
	ports := b[2*size:]
	client = netip.AddrPortFrom(source, binary.BigEndian.Uint16(ports))
	to = netip.AddrPortFrom(destination, binary.BigEndian.Uint16(ports[2:]))
	return client, to, b[length:], nil
}
