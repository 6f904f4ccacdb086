package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Host is a line of /etc/hosts: an address at which programs of this host reach a Service, and its names in DNS.
type Host struct {
	Address   netip.Addr `json:"address"`
	Names     []string   `json:"names"`
	Namespace string     `json:"namespace"`
	Service   string     `json:"service"`
	Ports     []string   `json:"ports,omitempty"` // "http/tcp: 8080", where the port may not be that of the Service
}

// Print writes the line.
func (h Host) Print(out *text.Columns) {
	line := h.Address.String() + "\t" + strings.Join(h.Names, " ")
	if len(h.Ports) > 0 {
		line += "\t# " + strings.Join(h.Ports, ", ")
	}
	out.Printf("%s\n", line)
}

// hosts lists lines for the Services that a filter matches, with their clusterIPs, or with the addresses of sockets if
// connections reach nothing else.
func (i *Inspector) hosts(ctx context.Context, f Filter) (iter.Seq[Host], error) {
	var list []Host
	add := func(namespace, name string, addr netip.Addr, ports ...string) {
		names := []string{name + "." + namespace + ".svc.cluster.local", name + "." + namespace}
		if namespace == cmp.Or(f.Namespace, "default") { // in other namespaces, the short name means another Service
			names = append(names, name)
		}
		n := len(list) - 1 // lines of a Service are adjacent
		for n >= 0 && list[n].Names[0] == names[0] && list[n].Address != addr {
			n--
		}
		if n < 0 || list[n].Names[0] != names[0] {
			n, list = len(list), append(list, Host{Address: addr, Names: names, Namespace: namespace, Service: name})
		}
		list[n].Ports = append(list[n].Ports, ports...)
	}
	if i.opt.Plane.Sockets != "" {
		sockets, err := i.Addresses(ctx, f)
		if err != nil {
			return nil, err
		}
		for s := range sockets {
			add(s.Namespace, s.Service, s.Address.Addr(), fmt.Sprintf("%s: %d", s.port(), s.Address.Port()))
		}
		return slices.Values(list), nil
	}
	services, err := i.Services(ctx, f)
	if err != nil {
		return nil, err
	}
	for s := range services {
		for _, p := range s.Ports {
			for _, at := range p.Frontends {
				if at.Kind == "clusterIP" {
					add(s.Namespace, s.Name, at.Address)
				}
			}
		}
	}
	return slices.Values(list), nil
}

var errNoSockets = errors.New("in this mode the proxy opens no sockets for Services; " +
	"sluice get services lists their addresses")

// Addresses lists the sockets of the Services that a filter matches, sorted by Service.
func (i *Inspector) Addresses(_ context.Context, f Filter) (iter.Seq[Address], error) {
	if i.opt.Opened.Sockets == nil {
		return nil, errNoSockets
	}
	all := slices.DeleteFunc(i.opt.Opened.Sockets(), func(s plane.Socket) bool { return !f.matches(s.Service) })
	return each(all, func(s plane.Socket) Address {
		return Address{s.Service.Namespace, s.Service.Name, s.Port, s.Protocol.String(), s.Pool.String(), s.At, s.Open}
	}), nil
}
