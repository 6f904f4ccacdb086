// Package explain answers what becomes of a connection on this node: which
// Service takes it, by which policy, to which backends, with or without source
// NAT, and why each other endpoint is left out. It is computed from routes
// alone and does no I/O. Where planes differ, a Plane says what each does.
package explain

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// ICMP is the protocol of an echo request, by its IANA number.
const ICMP cluster.Protocol = 1

// Question asks what becomes of new connections.
type Question struct {
	Source netip.Addr // not valid: this node itself
	Via    string     // interface they arrive on; empty: not known

	// Where to: an address, or a Service, which stands for its clusterIPs.
	Destination netip.Addr // not valid: Service is meant
	Service     cluster.Name

	Port     uint16           // 0: any, or the one of PortName
	PortName string           // of Service
	Protocol cluster.Protocol // 0: any
}

// What arguments look like, for messages.
const (
	sourceForms      = `an IP address, or "node" for this node itself`
	destinationForms = "10.96.0.10, 10.96.0.10:53/udp, [fd00::a]:80, default/web, default/web:80 or default/web:http"
)

// Parse reads a question as people write it: who asks, an address or "node", and
// where to, an address or namespace/name, with a port if one is meant and a
// protocol if it is not TCP.
func Parse(source, destination string) (Question, error) {
	var q Question
	var err error
	if q.Source, err = parseSource(source); err != nil {
		return Question{}, err
	}
	if err := q.parseDestination(destination); err != nil {
		return Question{}, err
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

// parseAddr takes no zones: they mean nothing for what is forwarded.
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
	head, protocol, err := cutProtocol(text)
	if err != nil {
		return fmt.Errorf("destination %q: %w", text, err)
	}
	q.Protocol = protocol
	if err := q.parseHead(head); err != nil {
		return fmt.Errorf("destination %q: %w", text, err)
	}
	numbered := q.Port != 0 || q.PortName != ""
	switch {
	case q.Protocol == ICMP && numbered:
		return fmt.Errorf("destination %q: ICMP has no ports", text)
	case q.Protocol == 0 && q.Port != 0:
		q.Protocol = cluster.TCP
	}
	return nil
}

// cutProtocol takes "/udp" off the end. What follows the only slash of a name
// is no protocol: "default/tcp" is a Service.
func cutProtocol(text string) (head string, p cluster.Protocol, err error) {
	i := strings.LastIndexByte(text, '/')
	if i < 0 {
		return text, 0, nil
	}
	head, last := text[:i], text[i+1:]
	if !isAddress(head) && !strings.Contains(head, "/") {
		return text, 0, nil
	}
	for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP, ICMP} {
		if strings.EqualFold(last, protocolName(p)) {
			return head, p, nil
		}
	}
	return "", 0, fmt.Errorf("unknown protocol %q: want tcp, udp, sctp or icmp", last)
}

// isAddress reports whether a destination without its protocol is meant to be
// an address: the names of Services have neither dots nor brackets.
func isAddress(head string) bool {
	return strings.ContainsAny(head, ".[") || strings.Count(head, ":") > 1
}

func (q *Question) parseHead(head string) (err error) {
	if !isAddress(head) {
		return q.parseName(head)
	}
	bare := head
	if strings.HasPrefix(head, "[") && strings.HasSuffix(head, "]") {
		bare = head[1 : len(head)-1]
	}
	if q.Destination, err = parseAddr(bare); err == nil {
		return nil
	}
	to, err := netip.ParseAddrPort(head)
	if err != nil || to.Addr().Zone() != "" {
		return fmt.Errorf("want %s", destinationForms)
	}
	if to.Port() == 0 {
		return fmt.Errorf("no port 0: want 1 to 65535")
	}
	q.Destination, q.Port = to.Addr().Unmap(), to.Port()
	return nil
}

func (q *Question) parseName(head string) error {
	name, port, hasPort := strings.Cut(head, ":")
	namespace, name, hasNamespace := strings.Cut(name, "/")
	if !hasNamespace || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("want an address or namespace/name, such as %s", destinationForms)
	}
	q.Service = cluster.Name{Namespace: namespace, Name: name}
	if !hasPort {
		return nil
	}
	return q.parsePort(port)
}

func (q *Question) parsePort(text string) error {
	if strings.Trim(text, "0123456789") != "" {
		if strings.Contains(text, "/") {
			return fmt.Errorf("want %s", destinationForms)
		}
		q.PortName = text
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("no port %s: want 1 to 65535, or the name of a port", text)
	}
	q.Port = uint16(n)
	return nil
}

// From returns who asks, as Parse reads it.
func (q Question) From() string {
	if q.Source.IsValid() {
		return q.Source.String()
	}
	return "node"
}

// To returns where to, as Parse reads it.
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

// target writes "10.96.0.10:53/udp"; without port or protocol if they are 0.
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
