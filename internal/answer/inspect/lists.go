package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Service is one Service as programmed on this node.
type Service struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	State     Programming `json:"state"`
	Reason    string      `json:"reason,omitempty"` // of the state; empty: it is completely programmed
	Ports     []Port      `json:"ports,omitempty"`

	// Problem is what is wrong with it: the reason, unless it is not for a proxy, or a port without a usable backend.
	Problem string `json:"problem,omitempty"`

	// Traffic is what happens at its ports, if Filter.Counts asks for it and the mode counts.
	Traffic []Traffic `json:"traffic,omitempty"`

	// LeftOut is how many of its addresses and ports are not programmed because
	// they belong to other Services or to earlier ports of its own.
	LeftOut int `json:"leftOut,omitempty"`
}

// Port is one port of a Service, in one IP family.
type Port struct {
	Name      string     `json:"name,omitempty"`
	Port      uint16     `json:"port,omitempty"` // 0: another Service has its addresses
	Protocol  string     `json:"protocol"`
	Family    string     `json:"family"`
	Frontends []Frontend `json:"frontends"`
	Affinity  Duration   `json:"affinity,omitzero"`

	// Scheduler chooses the backends; empty: the mode has none. SchedulerNote is how it differs from the one that the
	// Service or the configuration names; empty: it does not.
	Scheduler     string `json:"scheduler,omitempty"`
	SchedulerNote string `json:"schedulerNote,omitempty"`

	// Cluster and Local are the numbers of backends in the pools that a frontend uses.
	Cluster int `json:"clusterBackends"`
	Local   int `json:"localBackends"`
}

// Frontend is a frontend: an address and port that clients use.
type Frontend struct {
	Kind    string     `json:"kind"`             // "clusterIP", "nodePort", "externalIP", "loadBalancerIP"
	Address netip.Addr `json:"address,omitzero"` // none for a node port: see NodePort
	Port    uint16     `json:"port"`

	// Where connections go from pods on this node, from the node itself, and from all other clients.
	Pods   Action `json:"pods"`
	Node   Action `json:"node"`
	Others Action `json:"others"`

	Restricted bool           `json:"restricted,omitempty"` // to clients in Allow
	Allow      []netip.Prefix `json:"allow,omitempty"`
}

// Action is where a connection goes.
type Action struct {
	To         string `json:"to"` // the pool "cluster" or "local", "refused" or "dropped"
	Masquerade bool   `json:"masquerade,omitempty"`
}

// Services lists the Services that a filter matches, sorted by name.
func (i *Inspector) Services(ctx context.Context, f Filter) (iter.Seq[Service], error) {
	s, err := i.selectServices(ctx, f)
	if err != nil {
		return nil, err
	}
	if !f.Counts {
		return each(s.services, s.service), nil
	}
	r, err := i.readTraffic(ctx, s.Routes)
	return each(s.services, func(svc *route.Service) Service {
		out := s.service(svc)
		if err == nil { // what is not known is left out
			out.Traffic = r.ports(svc)
		}
		return out
	}), nil
}

// each yields the result of a function for each value.
func each[T, U any](values []T, of func(T) U) iter.Seq[U] {
	return route.Yielding(func(yield func(U) bool) {
		for _, v := range values {
			if !yield(of(v)) {
				return
			}
		}
	})
}

func (s *selection) service(svc *route.Service) Service {
	out := Service{Namespace: svc.Name.Namespace, Name: svc.Name.Name, LeftOut: svc.Lost}
	out.State, out.Reason = s.state(svc)
	for i := range svc.Ports {
		out.Ports = append(out.Ports, portOf(&svc.Ports[i], s.Plane.Scheduling(&svc.Ports[i])))
	}
	if out.Problem = out.Reason; svc.Ignored != "" && out.State == NotProgrammed {
		out.Problem = "" // by its kind
	}
	for _, p := range out.Ports {
		out.Problem = cmp.Or(out.Problem, p.problem())
	}
	return out
}

// problem returns why the port serves nobody on this node.
func (p Port) problem() string {
	if p.Cluster+p.Local > 0 || len(p.Frontends) == 0 {
		return ""
	}
	return "no usable backend"
}

func portOf(p *route.Port, by plane.Scheduling) Port {
	out := Port{
		Name: p.Name, Port: number(p), Protocol: p.Protocol.String(), Family: p.Family.String(),
		Affinity: Duration(p.Affinity.Round(time.Second)), Cluster: len(p.Cluster), Local: len(p.Local),
		Scheduler: by.Name, SchedulerNote: by.Note,
	}
	for _, f := range p.Frontends {
		out.Frontends = append(out.Frontends, Frontend{
			Kind: f.Kind.String(), Address: f.Addr, Port: f.Port,
			Pods: wayOf(f.Pods), Node: wayOf(f.Node), Others: wayOf(f.Others),
			Restricted: f.Restricted, Allow: f.Allow,
		})
	}
	return out
}

// number returns the number of a Service port, 0 if only its node port is programmed.
func number(p *route.Port) uint16 {
	i := slices.IndexFunc(p.Frontends, func(f route.Frontend) bool { return f.Kind != route.NodePort })
	if i < 0 {
		return 0
	}
	return p.Frontends[i].Port
}

func wayOf(w route.Action) Action {
	switch w.Verdict {
	case route.Reject:
		return Action{To: "refused"}
	case route.Drop:
		return Action{To: "dropped"}
	default:
		return Action{To: w.Pool.String(), Masquerade: w.Masquerade}
	}
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	PortName  string `json:"portName,omitempty"`
	Port      uint16 `json:"port,omitempty"` // 0: another Service has its addresses
	Protocol  string `json:"protocol"`
}

func servicePort(svc *route.Service, p *route.Port) ServicePort {
	return ServicePort{svc.Name.Namespace, svc.Name.Name, p.Name, number(p), p.Protocol.String()}
}

// NodePort is one node port of a Service, in one IP family.
type NodePort struct {
	Port      uint16 `json:"port"`
	Protocol  string `json:"protocol"`
	Family    string `json:"family"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	PortName  string `json:"portName,omitempty"` // of the Service port

	// Every means that all addresses of this node except loopback serve the port,
	// and Loopback that those in 127.0.0.0/8 do too. Addresses lists further ones.
	Every     bool         `json:"everyAddress,omitempty"`
	Loopback  bool         `json:"loopback,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`

	Pods     Action      `json:"pods"`
	Node     Action      `json:"node"`
	Others   Action      `json:"others"`
	Backends int         `json:"backends"` // for clients other than pods and this node
	State    Programming `json:"state"`
	Reason   string      `json:"reason,omitempty"`
}

// NodePorts lists the node ports of the Services that a filter matches, sorted
// by number. A name that is a number matches the node ports of that number.
func (i *Inspector) NodePorts(ctx context.Context, f Filter) (iter.Seq[NodePort], error) {
	number, err := strconv.ParseUint(f.Name, 10, 64) // no Service can have such a name
	byNumber := err == nil
	services := f
	if byNumber {
		services.Name = ""
	}
	s, err := i.selectServices(ctx, services)
	if err != nil {
		return nil, err
	}
	var list []NodePort
	for svc := range route.Yielding(slices.Values(s.services)) {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			at := slices.IndexFunc(p.Frontends, func(f route.Frontend) bool { return f.Kind == route.NodePort })
			if at >= 0 && (!byNumber || uint64(p.Frontends[at].Port) == number) {
				list = append(list, s.nodePort(svc, p, &p.Frontends[at]))
			}
		}
	}
	if byNumber && len(list) == 0 {
		return nil, notFoundError{"node port", f}
	}
	slices.SortStableFunc(list, func(a, b NodePort) int { return cmp.Compare(a.Port, b.Port) })
	return slices.Values(list), nil
}

func (s *selection) nodePort(svc *route.Service, p *route.Port, f *route.Frontend) NodePort {
	ports := s.Routes.Host.NodePorts
	out := NodePort{
		Port: f.Port, Protocol: p.Protocol.String(), Family: p.Family.String(),
		Namespace: svc.Name.Namespace, Service: svc.Name.Name, PortName: p.Name,
		Every: ports.All(p.Family), Loopback: ports.All127 && p.Family == route.IPv4,
		Addresses: ports.Of(p.Family),
		Pods:      wayOf(f.Pods), Node: wayOf(f.Node), Others: wayOf(f.Others),
	}
	if ports.Loopback6 && p.Family == route.IPv6 && p.Protocol != cluster.SCTP {
		out.Addresses = append(out.Addresses, netip.IPv6Loopback())
	}
	out.State, out.Reason = s.state(svc)
	if f.Others.Verdict == route.Balance {
		out.Backends = len(p.Backends(f.Others.Pool))
	}
	return out
}

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

// Address is where the process listens for a port of a Service.
type Address struct {
	Namespace string         `json:"namespace"`
	Service   string         `json:"service"`
	Port      string         `json:"port,omitempty"` // its name
	Protocol  string         `json:"protocol"`
	Pool      string         `json:"pool"` // to which backends: "cluster", "local"
	Address   netip.AddrPort `json:"address"`
	Open      int64          `json:"openConnections"` // of the port
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
