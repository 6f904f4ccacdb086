package inspect

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/route"
)

// NodePort is one node port of a Service, in one IP family.
type NodePort struct {
	Port      uint16 `json:"port"`
	Protocol  string `json:"protocol"`
	Family    string `json:"family"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	PortName  string `json:"portName,omitempty"` // of the Service port

	// Every address of this node but loopback serves it, with Loopback those in
	// 127.0.0.0/8 too. Addresses do besides, or alone.
	Every     bool         `json:"everyAddress,omitempty"`
	Loopback  bool         `json:"loopback,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`

	Pods     Way         `json:"pods"`
	Node     Way         `json:"node"`
	Others   Way         `json:"others"`
	Backends int         `json:"backends"` // for clients other than pods and this node
	State    Programming `json:"state"`
	Reason   string      `json:"reason,omitempty"`
}

// NodePorts lists the node ports of the Services that a filter chooses, sorted
// by number. A name that is a number chooses the node ports that have it.
func (i *Inspector) NodePorts(ctx context.Context, f Filter) (iter.Seq[NodePort], error) {
	asked := f
	number, err := strconv.ParseUint(f.Name, 10, 16)
	byNumber := err == nil
	if byNumber {
		f.Name = ""
	}
	s, err := i.look(ctx, f)
	if err != nil {
		return nil, err
	}
	list := s.nodePorts()
	if byNumber {
		list = slices.DeleteFunc(list, func(n nodePort) bool { return uint64(n.front.Port) != number })
		if len(list) == 0 {
			return nil, &NotFoundError{"node port", asked}
		}
	}
	return route.Yielding(func(yield func(NodePort) bool) {
		for _, n := range list {
			if !yield(s.nodePort(n)) {
				return
			}
		}
	}), nil
}

// nodePort is where a node port comes from.
type nodePort struct {
	service *route.Service
	port    *route.Port
	front   *route.Front
}

func (s *sight) nodePorts() []nodePort {
	var list []nodePort
	for svc := range route.Yielding(slices.Values(s.services)) {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			at := slices.IndexFunc(p.Fronts, func(f route.Front) bool { return f.Kind == route.NodePort })
			if at >= 0 {
				list = append(list, nodePort{svc, p, &p.Fronts[at]})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b nodePort) int { return int(a.front.Port) - int(b.front.Port) })
	return list
}

func (s *sight) nodePort(n nodePort) NodePort {
	out := NodePort{
		Port: n.front.Port, Protocol: n.port.Protocol.String(), Family: n.port.Family.String(),
		Namespace: n.service.Name.Namespace, Service: n.service.Name.Name, PortName: n.port.Name,
		Every:    s.Routes.Host.NodePorts.All(n.port.Family),
		Loopback: s.Routes.Host.NodePorts.All127 && n.port.Family == route.IPv4,
		Pods:     wayOf(n.front.Pods), Node: wayOf(n.front.Node), Others: wayOf(n.front.Others),
	}
	out.State, out.Reason = s.state(n.service)
	if n.front.Others.Verdict == route.Balance {
		out.Backends = len(n.port.Backends(n.front.Others.Pool))
	}
	for _, a := range s.Routes.Host.NodePorts.Addrs {
		if route.FamilyOf(a) == n.port.Family {
			out.Addresses = append(out.Addresses, a)
		}
	}
	return out
}
