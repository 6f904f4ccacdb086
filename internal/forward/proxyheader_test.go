package forward

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"
)

// The bytes are those of the specification.
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

// What is accepted is what would be written for it.
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
