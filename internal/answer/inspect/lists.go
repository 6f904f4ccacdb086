package inspect

import (
	"cmp"
	"context"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
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

// Backend is one backend of a port of a Service.
type Backend struct {
	ServicePort

	Address netip.Addr `json:"address"`
	Target  uint16     `json:"targetPort,omitempty"` // 0: its EndpointSlice has no such port

	// Pools are the pools that contain it: "cluster", "local". LeftOut has the reason for each other pool in use.
	Pools   []string          `json:"pools,omitempty"`
	LeftOut map[string]string `json:"leftOut,omitempty"`

	// Standing describes what happens to a backend as connections to it failed; empty: nothing.
	Standing string `json:"standing,omitempty"`

	State  Programming `json:"state"` // of the Service
	Reason string      `json:"reason,omitempty"`

	Endpoint *Endpoint `json:"endpoint,omitempty"`

	Balancing *Balancing `json:"balancing,omitempty"` // nil in modes that neither weigh nor count
}

// Endpoint is what an EndpointSlice contains about a backend.
type Endpoint struct {
	Slice       string `json:"endpointSlice"`
	Node        string `json:"node,omitempty"`
	Ready       bool   `json:"ready"`
	Serving     bool   `json:"serving"`
	Terminating bool   `json:"terminating"`
}

// Backends lists the backends of the Services that a filter matches, sorted by Service, port and address. It lists the
// endpoints that are left out, with the reason, if the filter has a name, and of ports without backends.
func (i *Inspector) Backends(ctx context.Context, f Filter) (iter.Seq[Backend], error) {
	s, err := i.selectServices(ctx, f)
	if err != nil {
		return nil, err
	}
	return route.Yielding(func(yield func(Backend) bool) {
		for _, svc := range s.services {
			for p := range svc.Ports {
				for _, b := range i.balanced(ctx, s, svc, p) {
					if !yield(b) {
						return
					}
				}
			}
		}
	}), nil
}

// backendKey identifies a backend of a port: several endpoints may have one address.
type backendKey struct {
	at       netip.AddrPort
	endpoint *cluster.Endpoint
}

// common returns the fields that all backends of a port share.
func (s *selection) common(svc *route.Service, p *route.Port) Backend {
	b := Backend{ServicePort: servicePort(svc, p)}
	b.State, b.Reason = s.state(svc)
	return b
}

// backends lists the backends of a port, whichever pools they are in.
func (s *selection) backends(svc *route.Service, p *route.Port) []Backend {
	common := s.common(svc, p)
	var list []Backend
	known := map[backendKey]int{}
	for _, pool := range poolsOf(p) {
		for _, c := range s.choices(svc, p, pool) {
			if c.Reason == route.WrongFamily {
				continue // it belongs to the port of the other family
			}
			key := backendKey{c.Backend, c.Endpoint}
			i, found := known[key]
			if !found {
				i = len(list)
				known[key], list = i, append(list, common)
			}
			list[i].add(c, pool.String())
		}
	}
	slices.SortStableFunc(list, func(a, b Backend) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Target, b.Target))
	})
	return list
}

// choices returns the endpoints of a pool, with those that are left out if the query names the Service, or if the port
// has no backends.
func (s *selection) choices(svc *route.Service, p *route.Port, pool route.Pool) []route.Choice {
	all := s.Routes.Explain(svc.Name, p, pool)
	if len(all) == 0 { // of a Service that is to be removed
		for _, b := range p.Backends(pool) {
			all = append(all, route.Choice{Backend: b, Reason: route.Chosen})
		}
	}
	inUse := func(pool route.Pool) bool { return len(p.Backends(pool)) > 0 }
	if s.filter.detailed() || !slices.ContainsFunc(poolsOf(p), inUse) {
		return all
	}
	return slices.DeleteFunc(all, func(c route.Choice) bool {
		return c.Reason != route.Chosen && c.Reason != route.Ejected
	})
}

func (b *Backend) add(c route.Choice, pool string) {
	b.Address, b.Target = c.Backend.Addr(), c.Backend.Port()
	if e := c.Endpoint; e != nil {
		b.Endpoint = &Endpoint{c.Slice.Name.Name, e.Node, e.Ready, e.Serving, e.Terminating}
	}
	b.Standing = explain.Standing(c.Share, time.Now())
	switch {
	case c.Reason == route.Chosen:
		b.Pools = append(b.Pools, pool)
	case b.LeftOut == nil:
		b.LeftOut = map[string]string{pool: explain.Reason(c, time.Now())}
	default:
		b.LeftOut[pool] = explain.Reason(c, time.Now())
	}
}

// poolsOf returns the pools that frontends of a port use; if none uses one, the cluster
// pool, so that the reasons for that can be listed.
func poolsOf(p *route.Port) []route.Pool {
	switch {
	case !p.Uses(route.Local):
		return []route.Pool{route.Cluster}
	case !p.Uses(route.Cluster):
		return []route.Pool{route.Local}
	}
	return []route.Pool{route.Cluster, route.Local}
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
