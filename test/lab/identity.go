//go:build linux

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
)

// identity is the first line of every server's answer: its own address and port, and the address and port of the
// client as it sees them.
func identity(backend, client netip.AddrPort) []byte {
	return fmt.Appendf(nil, "%s %s\n", plain(backend), plain(client))
}

// readIdentity splits an answer; ok is false while the line is incomplete.
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

// plain returns an address without a zone, and IPv4-mapped addresses as IPv4.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
