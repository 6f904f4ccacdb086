package inspect

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Service is one Service as programmed on this node.
type Service struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	State     Programming `json:"state"`
	Reason    string      `json:"reason,omitempty"` // why it is not as it should be, or not programmed
	Ports     []Port      `json:"ports,omitempty"`

	// LeftOut is how many addresses and ports it asks for and does not get, as
	// they belong to other Services or to earlier ports of its own.
	LeftOut int `json:"leftOut,omitempty"`
}

// Programming says whether the kernel does what it should for a Service.
type Programming string

// The states of Services.
const (
	Programmed    Programming = "programmed"
	Pending       Programming = "pending"        // a write is due, or failed
	NotProgrammed Programming = "not programmed" // or as before a change that the kernel refuses
)

// Port is one port of a Service, in one IP family.
type Port struct {
	Name     string   `json:"name,omitempty"`
	Port     uint16   `json:"port,omitempty"` // 0: another Service has its addresses
	Protocol string   `json:"protocol"`
	Family   string   `json:"family"`
	Fronts   []Front  `json:"fronts"`
	Affinity Duration `json:"affinity,omitzero"`

	// Cluster and Local are how many backends there are in the pools, as far
	// as a front uses them.
	Cluster int `json:"clusterBackends"`
	Local   int `json:"localBackends"`
}

// Front is an address and port that clients use.
type Front struct {
	Kind    string     `json:"kind"`             // "clusterIP", "nodePort", "externalIP", "loadBalancerIP"
	Address netip.Addr `json:"address,omitzero"` // none for a node port: see those
	Port    uint16     `json:"port"`

	// What happens to a connection from pods on this node, from the node itself,
	// and from anybody else.
	Pods   Way `json:"pods"`
	Node   Way `json:"node"`
	Others Way `json:"others"`

	Restricted bool           `json:"restricted,omitempty"` // to clients in Allow
	Allow      []netip.Prefix `json:"allow,omitempty"`
}

// Way is what happens to a connection.
type Way struct {
	To         string `json:"to"` // the pool "cluster" or "local", "refused" or "dropped"
	Masquerade bool   `json:"masquerade,omitempty"`
}

// Services lists the Services that a filter chooses, sorted by name.
func (i *Inspector) Services(ctx context.Context, f Filter) (iter.Seq[Service], error) {
	s, err := i.look(ctx, f)
	if err != nil {
		return nil, err
	}
	return route.Yielding(func(yield func(Service) bool) {
		for _, svc := range s.services {
			if !yield(s.service(svc)) {
				return
			}
		}
	}), nil
}

func (s *sight) service(svc *route.Service) Service {
	out := Service{Namespace: svc.Name.Namespace, Name: svc.Name.Name, LeftOut: svc.Lost}
	out.State, out.Reason = s.state(svc)
	for i := range svc.Ports {
		out.Ports = append(out.Ports, portOf(&svc.Ports[i]))
	}
	return out
}

func (s *sight) state(svc *route.Service) (Programming, string) {
	why, pending := s.pending(svc.Name)
	refusal := s.Refused[svc.Name]
	switch {
	case refusal != nil:
		return NotProgrammed, "the kernel does not take its rules: " + refusal.Error()
	case pending:
		return Pending, why
	case svc.Ignored != "":
		return NotProgrammed, svc.Ignored
	case len(svc.Ports) == 0:
		return NotProgrammed, "conflict: other Services have all its addresses and ports"
	case svc.Lost > 0:
		return Programmed, fmt.Sprintf("conflict: others have %d of its addresses and ports", svc.Lost)
	}
	return Programmed, ""
}

func portOf(p *route.Port) Port {
	out := Port{
		Name: p.Name, Port: number(p), Protocol: p.Protocol.String(), Family: p.Family.String(),
		Affinity: Duration(p.Affinity.Round(time.Second)), Cluster: len(p.Cluster), Local: len(p.Local),
	}
	for _, f := range p.Fronts {
		out.Fronts = append(out.Fronts, Front{
			Kind: f.Kind.String(), Address: f.Addr, Port: f.Port,
			Pods: wayOf(f.Pods), Node: wayOf(f.Node), Others: wayOf(f.Others),
			Restricted: f.Restricted, Allow: f.Allow,
		})
	}
	return out
}

// number is that of the Service port; a node port has another.
func number(p *route.Port) uint16 {
	i := slices.IndexFunc(p.Fronts, func(f route.Front) bool { return f.Kind != route.NodePort })
	if i < 0 {
		return 0
	}
	return p.Fronts[i].Port
}

func wayOf(w route.Way) Way {
	switch w.Verdict {
	case route.Reject:
		return Way{To: "refused"}
	case route.Drop:
		return Way{To: "dropped"}
	default:
		return Way{To: poolName(w.Pool), Masquerade: w.Masquerade}
	}
}

func poolName(p route.Pool) string {
	if p == route.Local {
		return "local"
	}
	return "cluster"
}
