package route

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Problem is a fault in an object. Only the address, port or object that it names is left out.
type Problem struct {
	Object string `json:"object"`          // "Service default/web"
	Field  string `json:"field,omitempty"` // "spec.externalIPs[0]"
	Value  string `json:"value,omitempty"`
	Reason string `json:"reason"`

	// Count is how many problems this one stands for, itself included; 0 means 1. If it is larger, Reason names it too.
	Count int `json:"count"`
}

// String returns the problem as one sentence.
func (p Problem) String() string {
	s := p.Object
	if p.Field != "" {
		s += ": " + p.Field
	}
	if p.Value != "" {
		s += ": " + p.Value
	}
	return s + ": " + p.Reason
}

// Weight returns how many problems this one stands for.
func (p Problem) Weight() int { return max(1, p.Count) }

// Times returns the problem so that it stands for count problems of its kind.
func (p Problem) Times(count int) Problem {
	if count > 1 {
		p.Count = count
		p.Reason += fmt.Sprintf(" (and %d more like it)", count-1)
	}
	return p
}

// Collector keeps MaxAlike of the problems that differ only in value and index; the last one counts the rest.
type Collector struct {
	list  []Problem
	alike map[Problem]*tail
}

// tail is the last problem kept of a group: how many were kept, its index and its count.
type tail struct{ kept, at, count int }

// Add adds a problem.
func (c *Collector) Add(p Problem) {
	if c.alike == nil {
		c.alike = map[Problem]*tail{}
	}
	list, _, _ := strings.Cut(p.Field, "[")
	key := Problem{Object: p.Object, Field: list, Reason: p.Reason}
	t := c.alike[key]
	if t == nil {
		t = &tail{}
		c.alike[key] = t
	}
	if t.kept == MaxAlike {
		t.count++
		return
	}
	t.kept++
	t.at, t.count = len(c.list), 1
	c.list = append(c.list, p)
}

// Problems returns the kept problems in the order in which they were added.
func (c *Collector) Problems() []Problem {
	for _, t := range c.alike {
		c.list[t.at] = c.list[t.at].Times(t.count)
		t.count = 1
	}
	return c.list
}

// MaxAlike is how many problems of the same kind with one object are listed. The last one listed counts the rest.
const MaxAlike = 3

// loss identifies a claim of a Service that another Service or an earlier port owns.
type loss struct {
	claim claim
	port  int // index in the ports of the Service
}

// lost reports whether the Service does not own the candidate.
func (c candidate) lost(svc *cluster.Service, claims *claims) bool {
	return c.twin != c.port || claims.owner[c.claim] != svc
}

// conflict is one or more candidates of a kind that a Service does not own.
type conflict struct {
	candidate         // the first
	rivals    *rivals // of its claim; nil if another port of the Service owns it
	count     int
}

// digest returns the first MaxAlike candidates of each kind. Candidates that a port of the Service itself owns are
// kinds of their own. The last one of a kind counts the rest.
func digest(lost []candidate, claims *claims) []conflict {
	type key struct {
		kind FrontendKind
		twin bool
	}
	var list []conflict
	listed := map[key][]int{} // indexes in list
	for _, c := range lost {
		k := key{c.kind, c.twin != c.port}
		if at := listed[k]; len(at) == MaxAlike {
			list[at[MaxAlike-1]].count++
			continue
		}
		listed[k] = append(listed[k], len(list))
		next := conflict{candidate: c, count: 1}
		if !k.twin {
			next.rivals = claims.rivals[c.claim]
		}
		list = append(list, next)
	}
	return list
}

// problem returns the Problem of a candidate that is left out.
func (c candidate) problem(svc *cluster.Service, reason string) Problem {
	p := Frontend{Kind: c.kind, Addr: c.addr, Port: c.claim.port}.Problem(svc.Name, c.claim.protocol, reason)
	if c.kind == NodePort {
		p.Field = fmt.Sprintf("spec.ports[%d].nodePort", c.port)
	}
	return p
}

// Problem returns a problem of a frontend of a Service.
func (f Frontend) Problem(of cluster.Name, protocol cluster.Protocol, reason string) Problem {
	p := Problem{Object: "Service " + of.String(), Value: fmt.Sprintf("%d/%s", f.Port, protocol), Reason: reason}
	if f.Addr.IsValid() {
		p.Value = fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.Addr, f.Port), protocol)
	}
	p.Field = [...]string{
		ClusterIP: "spec.clusterIPs", NodePort: "spec.ports.nodePort", ExternalIP: "spec.externalIPs",
		LoadBalancer: "status.loadBalancer.ingress", healthCheck: "spec.healthCheckNodePort",
	}[f.Kind]
	return p
}

// problem names the Service or port that owns the claim at present.
func (c conflict) problem(svc *cluster.Service) Problem {
	holder := fmt.Sprintf("spec.ports[%d]", c.twin)
	if c.rivals != nil {
		holder = "Service " + c.rivals.holder.Load().Name.String()
	}
	return c.candidate.problem(svc, "left out, as it belongs to "+holder).Times(c.count)
}

// reported has the present problems of a Service. The Compiler has returned all of them. It does not change, and any
// goroutine may read it. Conflicts are kept as candidates, so that problems names the owner at the time of the call.
type reported struct {
	svc       *cluster.Service
	lost      []loss
	conflicts []conflict
	others    []Problem
}

// problems returns all of them.
func (r *reported) problems() []Problem {
	if r == nil {
		return nil
	}
	return append(render(r.conflicts, r.svc), r.others...)
}

func render(list []conflict, svc *cluster.Service) []Problem {
	if len(list) == 0 {
		return nil
	}
	out := make([]Problem, len(list))
	for i, c := range list {
		out[i] = c.problem(svc)
	}
	return out
}

// added returns the lost candidates without a reported conflict.
func (r *reported) added(lost []candidate) []candidate {
	if r == nil || len(lost) == 0 {
		return lost
	}
	known := make(map[loss]struct{}, len(r.lost))
	for _, l := range r.lost {
		known[l] = struct{}{}
	}
	var added []candidate
	for _, c := range lost {
		if _, ok := known[loss{c.claim, c.port}]; !ok {
			added = append(added, c)
		}
	}
	return added
}

func losses(lost []candidate) []loss {
	list := make([]loss, len(lost))
	for i, c := range lost {
		list[i] = loss{c.claim, c.port}
	}
	return list
}
