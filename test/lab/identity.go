//go:build linux

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
)

// identity is how every server begins an answer: a line with the address and
// port it was reached at and those it saw of the client.
func identity(backend, client netip.AddrPort) []byte {
	return fmt.Appendf(nil, "%s %s\n", plain(backend), plain(client))
}

// readIdentity splits an answer; ok is false while the line is not whole.
func readIdentity(b []byte) (r Result, rest []byte, ok bool) {
	line, rest, found := bytes.Cut(b, []byte("\n"))
	backend, client, _ := bytes.Cut(line, []byte(" "))
	r.Outcome = Answered
	err := errors.Join(r.Backend.UnmarshalText(backend), r.Source.UnmarshalText(client))
	if !found || err != nil || !r.Backend.IsValid() || !r.Source.IsValid() {
		return Result{}, nil, false
	}
	return r, rest, true
}

// plain is an address without a zone, and IPv4 as IPv4.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
