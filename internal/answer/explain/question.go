// Package explain answers where a connection on this node goes: to which Service, by which policy, to which backends,
// with or without source NAT, and why each other endpoint is left out. It does no I/O: answers are computed from a
// View. plane.Facts describe how data planes differ.
package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// ICMP is the protocol of an echo request, by its IANA number.
const ICMP cluster.Protocol = 1

// Question is a question where new connections go.
type Question struct {
	Source netip.Addr // invalid: this node itself
	Via    string     // interface on which they arrive; empty: unknown

	// The destination is an address, or all clusterIPs of a Service.
	Destination netip.Addr // invalid: see Service
	Service     cluster.Name

	Port     uint16           // 0: any, or that of PortName
	PortName string           // of Service
	Protocol cluster.Protocol // 0: any
}

// The forms of arguments, for messages.
const (
	sourceForms      = `an IP address, or "node" for this node itself`
	destinationForms = "10.96.0.10, 10.96.0.10:53/udp, [fd00::a]:80, default/web, default/web:80 or default/web:http"
)

// Parse parses a question as users write it. The source is an address or "node". The destination is an address or
// namespace/name, with an optional port and, if it is not TCP, a protocol.
func Parse(source, destination string) (Question, error) {
	var q Question
	var err error
	if q.Source, err = parseSource(source); err != nil {
		return Question{}, err
	}
	if err := q.parseDestination(destination); err != nil {
		return Question{}, fmt.Errorf("destination %q: %w", destination, err)
	}
	if q.Source.IsValid() && q.Destination.IsValid() && q.Source.Is4() != q.Destination.Is4() {
		return Question{}, fmt.Errorf("source %s and destination %s are of different IP families", q.Source, q.Destination)
	}
	return q, nil
}

func parseSource(text string) (netip.Addr, error) {
	if text == "node" {
		return netip.Addr{}, nil
	}
	a, err := parseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("source %q: want %s", text, sourceForms)
	}
	return a, nil
}

// parseAddr parses an address. It rejects a zone, which has no meaning for forwarded packets.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read address: %w", err)
	}
	if a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("address %s has a zone", a)
	}
	return a.Unmap(), nil
}

func (q *Question) parseDestination(text string) error {
	head, err := q.parseProtocol(text)
	switch {
	case err != nil:
		return err
	case isAddress(head):
		err = q.parseAddress(head)
	default:
		err = q.parseService(head)
	}
	switch {
	case err != nil:
		return err
	case q.Protocol == ICMP && (q.Port != 0 || q.PortName != ""):
		return errors.New("ICMP has no ports")
	case q.Protocol == 0 && q.Port != 0:
		q.Protocol = cluster.TCP
	}
	return nil
}

// parseProtocol returns a destination without its protocol. The last part of "default/tcp" is the name of a Service.
func (q *Question) parseProtocol(text string) (head string, err error) {
	i := strings.LastIndexByte(text, '/')
	if i < 0 || !isAddress(text[:i]) && !strings.Contains(text[:i], "/") {
		return text, nil
	}
	for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP, ICMP} {
		if strings.EqualFold(text[i+1:], protocolName(p)) {
			q.Protocol = p
			return text[:i], nil
		}
	}
	return "", fmt.Errorf("unknown protocol %q: want tcp, udp, sctp or icmp", text[i+1:])
}

// isAddress reports whether a destination is an address. Names of Services have neither dots nor brackets.
func isAddress(head string) bool {
	return strings.ContainsAny(head, ".[") || strings.Count(head, ":") > 1
}

func (q *Question) parseAddress(head string) (err error) {
	bare := head
	if strings.HasPrefix(head, "[") && strings.HasSuffix(head, "]") {
		bare = head[1 : len(head)-1]
	}
	if q.Destination, err = parseAddr(bare); err == nil {
		return nil
	}
	to, err := netip.ParseAddrPort(head)
	switch {
	case err != nil || to.Addr().Zone() != "":
		return fmt.Errorf("want %s", destinationForms)
	case to.Port() == 0:
		return errors.New("no port 0: want 1 to 65535")
	}
	q.Destination, q.Port = to.Addr().Unmap(), to.Port()
	return nil
}

func (q *Question) parseService(head string) error {
	full, port, hasPort := strings.Cut(head, ":")
	namespace, name, _ := strings.Cut(full, "/")
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("want an address or namespace/name, such as %s", destinationForms)
	}
	q.Service = cluster.Name{Namespace: namespace, Name: name}
	number, err := strconv.ParseUint(port, 10, 16)
	switch {
	case !hasPort:
	case err == nil && number > 0:
		q.Port = uint16(number)
	case strings.Trim(port, "0123456789") == "":
		return fmt.Errorf("no port %s: want 1 to 65535, or the name of a port", port)
	case strings.Contains(port, "/"):
		return fmt.Errorf("want %s", destinationForms)
	default:
		q.PortName = port
	}
	return nil
}

// From returns the source in the form that Parse accepts.
func (q Question) From() string {
	if q.Source.IsValid() {
		return q.Source.String()
	}
	return "node"
}

// To returns the destination in the form that Parse accepts.
func (q Question) To() string {
	s := q.Service.String()
	if q.Destination.IsValid() {
		return target(q.Destination, q.Port, q.Protocol)
	}
	switch {
	case q.PortName != "":
		s += ":" + q.PortName
	case q.Port != 0:
		s += ":" + strconv.Itoa(int(q.Port))
	}
	return s + slash(q.Protocol)
}

// target formats "10.96.0.10:53/udp", without a port or protocol that is 0.
func target(a netip.Addr, port uint16, p cluster.Protocol) string {
	if port == 0 {
		return a.String() + slash(p)
	}
	return netip.AddrPortFrom(a, port).String() + slash(p)
}

func slash(p cluster.Protocol) string {
	if p == 0 {
		return ""
	}
	return "/" + protocolName(p)
}

func protocolName(p cluster.Protocol) string {
	if p == ICMP {
		return "icmp"
	}
	return p.String()
}
