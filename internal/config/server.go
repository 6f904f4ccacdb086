package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/strict"
)

// off is the value in a file that switches a server off.
const off = "0"

// server holds the settings for the address of one server.
type server struct {
	name    string         // healthz or metrics, as in the names of the flags and of the field
	field   *string        // the value; replaced by its canonical form
	initial netip.AddrPort // the default
}

// server returns the address of a server, not valid if there is none.
//
// An empty value in a flag or in a file switches the server off. In a file that a
// program wrote with every field it counts as not set.
func (c *check) server(s server) netip.AddrPort {
	path, portFlag := s.name+"BindAddress", s.name+"-port"
	portText, portSet := c.flags[portFlag]
	port, err := parsePort(portText)
	if err != nil && portSet {
		c.problem("--"+portFlag, invalid(portText, err.Error()))
		return netip.AddrPort{}
	}
	if !portSet {
		port = s.initial.Port()
	}
	byFlag := c.byFlag[path] != ""
	addr, err := s.address(port, byFlag || c.isSet(path) && !c.file.dumped())
	if err != nil {
		c.problem(path, invalid(*s.field, err.Error()))
		return netip.AddrPort{}
	}
	if portSet {
		c.warn("--%s is deprecated, use --%s-bind-address", portFlag, s.name)
		if port == 0 || addr.IsValid() && !byFlag {
			addr = netip.AddrPortFrom(addr.Addr(), port)
		}
	}
	if addr.Port() == 0 {
		*s.field = off
		return netip.AddrPort{}
	}
	*s.field = addr.String()
	return addr
}

// address reads the field. An empty value that was set means no server.
func (s server) address(port uint16, set bool) (netip.AddrPort, error) {
	switch {
	case *s.field == off || *s.field == "" && set:
		return netip.AddrPort{}, nil
	case *s.field == "":
		return netip.AddrPortFrom(s.initial.Addr(), port), nil
	}
	return parseEndpoint(*s.field, port)
}

// parseEndpoint parses IP, [IP], IP:port and [IP]:port; port is the default.
func parseEndpoint(text string, port uint16) (netip.AddrPort, error) {
	if addr, ok := strict.Addr(text); ok {
		return netip.AddrPortFrom(addr, port), nil
	}
	host, number, err := net.SplitHostPort(text)
	if err != nil { // no port
		host, number, err = net.SplitHostPort(fmt.Sprintf("%s:%d", text, port))
	}
	addr, ok := strict.Addr(host)
	if err != nil || !ok {
		return netip.AddrPort{}, errors.New(`must be IP or IP:port, or "0" for no server`)
	}
	port, err = parsePort(number)
	return netip.AddrPortFrom(addr, port), err
}

// parsePort parses a port; the empty text is port 0.
func parsePort(text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, errors.New("must be a port, 0 to 65535")
	}
	return uint16(port), nil
}
