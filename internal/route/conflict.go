package route

import (
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// MaxAlike is how many problems of the same kind with one object are listed.
// The last one listed counts the rest.
const MaxAlike = 3

// loss identifies something that a Service asks for and does not get.
type loss struct {
	claim claim
	port  int // index in the ports of the Service
}

// lost reports whether the Service does not get the candidate.
func (c candidate) lost(svc *cluster.Service, claims *claims) bool {
	return c.twin != c.port || claims.owner[c.claim] != svc
}

// conflict is one or more alike candidates that a Service does not get.
type conflict struct {
	candidate          // the first
	contest   *contest // for it; nil: it is lost to another port
	count     int
}

// digest lists the first MaxAlike candidates of each kind, those lost to a port
// of the Service itself apart. The last one listed counts the rest.
func digest(lost []candidate, claims *claims) []conflict {
	type key struct {
		kind Kind
		twin bool
	}
	var list []conflict
	listed := map[key]int{}
	last := map[key]int{}
	for _, c := range lost {
		k := key{c.kind, c.twin != c.port}
		if listed[k] == MaxAlike {
			list[last[k]].count++
			continue
		}
		listed[k]++
		last[k] = len(list)
		next := conflict{candidate: c, count: 1}
		if !k.twin {
			next.contest = claims.contests[c.claim]
		}
		list = append(list, next)
	}
	return list
}

// problem says why a candidate is left out.
func (c candidate) problem(svc *cluster.Service, reason string) Problem {
	p := Problem{
		Object: "Service " + svc.Name.String(),
		Value:  fmt.Sprintf("%d/%s", c.claim.port, c.claim.protocol),
		Reason: reason,
	}
	if c.addr.IsValid() {
		p.Value = fmt.Sprintf("%s/%s", netip.AddrPortFrom(c.addr, c.claim.port), c.claim.protocol)
	}
	switch c.kind {
	case ClusterIP:
		p.Field = "spec.clusterIPs"
	case ExternalIP:
		p.Field = "spec.externalIPs"
	case LoadBalancer:
		p.Field = "status.loadBalancer.ingress"
	case NodePort:
		p.Field = fmt.Sprintf("spec.ports[%d].nodePort", c.port)
	case healthCheck:
		p.Field = "spec.healthCheckNodePort"
	}
	return p
}

// report says which Service or port has what was lost now.
func (c conflict) report(svc *cluster.Service) Problem {
	holder := fmt.Sprintf("spec.ports[%d]", c.twin)
	if c.contest != nil {
		holder = "Service " + c.contest.holder.Load().Name.String()
	}
	return c.problem(svc, "left out, as it belongs to "+holder).Times(c.count)
}

// troubles are the problems of a Service at present, all of which were reported.
// They do not change, and any goroutine may read them. Conflicts are kept as
// candidates, so that a report names the owner at the time of the report.
type troubles struct {
	svc       *cluster.Service
	lost      []loss
	conflicts []conflict
	others    []Problem
}

// problems lists them.
func (t *troubles) problems() []Problem {
	if t == nil {
		return nil
	}
	return append(render(t.conflicts, t.svc), t.others...)
}

func render(list []conflict, svc *cluster.Service) []Problem {
	if len(list) == 0 {
		return nil
	}
	out := make([]Problem, len(list))
	for i, c := range list {
		out[i] = c.report(svc)
	}
	return out
}

// newlyLost returns the candidates that were not lost before.
func (t *troubles) newlyLost(lost []candidate) []candidate {
	if t == nil || len(t.lost) == 0 || len(lost) == 0 {
		return lost
	}
	known := make(map[loss]struct{}, len(t.lost))
	for _, l := range t.lost {
		known[l] = struct{}{}
	}
	var news []candidate
	for _, c := range lost {
		if _, ok := known[loss{c.claim, c.port}]; !ok {
			news = append(news, c)
		}
	}
	return news
}

func losses(lost []candidate) []loss {
	list := make([]loss, len(lost))
	for i, c := range lost {
		list[i] = loss{c.claim, c.port}
	}
	return list
}
