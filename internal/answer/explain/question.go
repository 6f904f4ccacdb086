// Package explain answers where a connection on this node goes: to which Service, by which policy, to which backends,
// with or without source NAT, and why each other endpoint is left out. It does no I/O: answers are computed from a
// View. plane.Facts describe how data planes differ.
package explain

import (
	"cmp"
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
	// The source is an address, or all addresses of a pod, or without both this node itself.
	Source netip.Addr
	Pod    cluster.Name // without a namespace: see named

	Via string // interface on which they arrive; empty: unknown

	// The destination is an address, or all clusterIPs of a Service.
	Destination netip.Addr   // invalid: see Service
	Service     cluster.Name // without a namespace: see named

	Port     uint16           // 0: any, or that of PortName
	PortName string           // of the Service, or of the one at the address
	Protocol cluster.Protocol // 0: any
}

// The forms of arguments, for messages.
const (
	sourceForms      = `an IP address, a pod such as default/client, or "node" for this node itself`
	destinationForms = "10.96.0.10, 10.96.0.10:53/udp, [fd00::a]:80, web, default/web, default/web:80, default/web:http " +
		"or web.default.svc"
)

// Parse parses a question as users write it. The source is an address, a pod or "node". The destination is an address
// or a Service: its name, with or without namespace, or its name in DNS. It has an optional port, by its number or
// name, and, if it is not TCP, a protocol.
func Parse(source, destination string) (Question, error) {
	var q Question
	if err := q.parseSource(source); err != nil {
		return Question{}, fmt.Errorf("source %q: %w", source, err)
	}
	if err := q.parseDestination(destination); err != nil {
		return Question{}, fmt.Errorf("destination %q: %w", destination, err)
	}
	if q.Source.IsValid() && q.Destination.IsValid() && q.Source.Is4() != q.Destination.Is4() {
		return Question{}, fmt.Errorf("source %s and destination %s are of different IP families", q.Source, q.Destination)
	}
	return q, nil
}

func (q *Question) parseSource(text string) (err error) {
	name, valid := parseName(text)
	switch {
	case text == "node":
	case valid && !isAddress(text):
		q.Pod = name
	default:
		if q.Source, err = parseAddr(text); err != nil {
			return errors.New("want " + sourceForms)
		}
	}
	return nil
}

// parseName parses "web" or "default/web"; false: it is not the name of an object.
func parseName(text string) (cluster.Name, bool) {
	namespace, name, both := strings.Cut(text, "/")
	if !both {
		namespace, name = "", text
	}
	return cluster.Name{Namespace: namespace, Name: name}, isName(strings.Replace(text, "/", "-", 1))
}

// isName reports whether an object or a port may have the name.
func isName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" && strings.Trim(s, "-.") == s
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
	if i < 0 || !strings.ContainsAny(text[:i], "/:.[") {
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

// isAddress reports whether text is an address, with or without a port, or was meant as one. Names have letters.
func isAddress(text string) bool {
	host, _, _ := strings.Cut(text, ":")
	return strings.Contains(text, "[") || strings.Count(text, ":") > 1 ||
		host != "" && strings.Trim(host, "0123456789.") == ""
}

func (q *Question) parseAddress(head string) (err error) {
	host, port := head, ""
	i := strings.LastIndexByte(head, ':')
	hasPort := i >= 0 && (strings.HasSuffix(head[:i], "]") || strings.Count(head, ":") == 1)
	if hasPort {
		host, port = head[:i], head[i+1:]
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if q.Destination, err = parseAddr(host); err != nil {
		return fmt.Errorf("want %s", destinationForms)
	}
	if hasPort {
		return q.parsePort(port)
	}
	return nil
}

func (q *Question) parseService(head string) error {
	full, port, hasPort := strings.Cut(head, ":")
	labels := strings.Split(strings.TrimSuffix(full, "."), ".")
	if len(labels) == 2 || len(labels) > 2 && labels[2] == "svc" { // pods resolve "web.default", as they search domains
		full = labels[1] + "/" + labels[0]
	}
	name, valid := parseName(full)
	if !valid || strings.Contains(full, ".") {
		return fmt.Errorf("want an address or a Service, such as %s", destinationForms)
	}
	q.Service = name
	if hasPort {
		return q.parsePort(port)
	}
	return nil
}

func (q *Question) parsePort(port string) error {
	number, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err == nil && number > 0:
		q.Port = uint16(number)
	case strings.Trim(port, "0123456789") == "":
		return fmt.Errorf("no port %s: want 1 to 65535, or the name of a port", port)
	case !isName(port):
		return fmt.Errorf("want %s", destinationForms)
	default:
		q.PortName = port
	}
	return nil
}

// From returns the source in the form that Parse accepts.
func (q Question) From() string {
	switch {
	case q.Source.IsValid():
		return q.Source.String()
	case q.Pod.Name != "":
		return nameText(q.Pod)
	}
	return "node"
}

// To returns the destination in the form that Parse accepts.
func (q Question) To() string {
	s, port := nameText(q.Service), ""
	if q.Destination.IsValid() {
		if s = q.Destination.String(); q.Destination.Is6() && (q.Port != 0 || q.PortName != "") {
			s = "[" + s + "]"
		}
	}
	if q.Port != 0 {
		port = strconv.Itoa(int(q.Port))
	}
	if port = cmp.Or(q.PortName, port); port != "" {
		s += ":" + port
	}
	return s + slash(q.Protocol)
}

// nameText returns "web" for a name without a namespace.
func nameText(n cluster.Name) string { return strings.TrimPrefix(n.String(), "/") }

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
