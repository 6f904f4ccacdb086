package relay

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"testing"
)

// The bytes agree with the specification.
func TestProxyHeader(t *testing.T) {
	const signature = "0d0a0d0a000d0a515549540a"
	for _, c := range []struct{ client, to, want string }{
		{"192.0.2.1:1025", "198.51.100.2:443", signature + "2111000c" + "c0000201" + "c6336402" + "0401" + "01bb"},
		{
			"[2001:db8::1]:1025", "[2001:db8::2]:443",
			signature + "21210024" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002" + "0401" + "01bb",
		},
	} {
		client, to := netip.MustParseAddrPort(c.client), netip.MustParseAddrPort(c.to)
		b := proxyHeader(client, to)
		if got := hex.EncodeToString(b); got != c.want {
			t.Errorf("%s to %s: %s, want %s", c.client, c.to, got, c.want)
		}
		gotClient, gotTo, rest, err := parseProxyHeader(append(b, "hello"...))
		if err != nil || gotClient != client || gotTo != to || string(rest) != "hello" {
			t.Errorf("decoded as %v, %v, %q, %v", gotClient, gotTo, rest, err)
		}
		for i := range b {
			if _, _, _, err := parseProxyHeader(b[:i]); err == nil {
				t.Errorf("%d bytes of %d are accepted", i, len(b))
			}
		}
	}
}

// The reader accepts only headers that the writer produces.
func FuzzProxyHeader(f *testing.F) {
	f.Add(proxyHeader(netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2")))
	f.Add(proxyHeader(netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::1]:2")))
	f.Add(proxyHeader(netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("192.0.2.2:2")))
	f.Fuzz(func(t *testing.T, b []byte) {
		client, to, rest, err := parseProxyHeader(b)
		if err != nil {
			return
		}
		if again := append(proxyHeader(client, to), rest...); !bytes.Equal(again, b) {
			t.Errorf("%x is accepted, but would be written as %x", b, again)
		}
	})
}

// proxyFixed is the length of a header before the addresses.
const proxyFixed = len(proxySignature) + 4

// errProxyHeader is returned for bytes that are no PROXY header as proxyHeader writes it.
var errProxyHeader = errors.New("not a PROXY header of version 2 for TCP")

// parseProxyHeader decodes the header at the beginning of b, and returns the bytes after it. It is strict: it accepts
// the headers of proxyHeader and nothing else.
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
