// Package inspect answers what a person asks a running daemon: what is
// programmed on this node and what is not, and how the daemon is. It only looks.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/follow/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Loop is the proxy's loop.
type Loop interface {
	View(ctx context.Context) (proxy.View, error)
}

// Store is where changes come in.
type Store interface {
	Backlog() cluster.Window
	Node() *cluster.Node
}

// Options for New. All are needed.
type Options struct {
	Loop    Loop
	Store   Store
	History *History
	Sizes   func() sizes.Sizes // of what is in the kernel

	// Status is what the others do not know: all of it but what Inspector.Status
	// fills in.
	Status func(context.Context) Status

	// Diff compares the kernel as it is now with what should be. It is
	// asked once at a time.
	Diff func(context.Context) (Difference, error)

	// Explain answers /explain.
	Explain http.Handler
}

// Difference is what would be written to make the kernel as it should be.
type Difference struct {
	Steps int    `json:"steps"`
	Text  string `json:"text"` // one step per line, in the language of the data plane
}

// Inspector answers. It is safe for concurrent use.
type Inspector struct {
	opt       Options
	asking    turn // of questions that look through all Services
	comparing turn // there is memory for one comparison, not for many
}

// New makes an Inspector.
func New(opt Options) *Inspector { return &Inspector{opt, newTurn(), newTurn()} }

// Filter chooses Services; an empty field chooses all.
type Filter struct{ Namespace, Name string }

// ParseFilter reads "NAME" or "NAMESPACE/NAME", and a namespace said on its own.
func ParseFilter(name, namespace string) (Filter, error) {
	ns, rest, both := strings.Cut(name, "/")
	switch {
	case !both:
		return Filter{Namespace: namespace, Name: name}, nil
	case ns == "" || rest == "" || strings.Contains(rest, "/"):
		return Filter{}, fmt.Errorf("name %q: want NAME or NAMESPACE/NAME", name)
	case namespace != "" && namespace != ns:
		return Filter{}, fmt.Errorf("name %q is not in namespace %q", name, namespace)
	}
	return Filter{Namespace: ns, Name: rest}, nil
}

func (f Filter) chooses(n cluster.Name) bool {
	return (f.Namespace == "" || f.Namespace == n.Namespace) && (f.Name == "" || f.Name == n.Name)
}

// begins reports whether a name, or its namespace if that may be any, begins
// with what the filter says.
func (f Filter) begins(n cluster.Name) bool {
	if f.Namespace != "" {
		return f.Namespace == n.Namespace && strings.HasPrefix(n.Name, f.Name)
	}
	ns, name, both := strings.Cut(f.Name, "/")
	if both {
		return n.Namespace == ns && strings.HasPrefix(n.Name, name)
	}
	return strings.HasPrefix(n.Name, f.Name) || strings.HasPrefix(n.Namespace, f.Name)
}

// String returns the filter as it is written.
func (f Filter) String() string {
	if f.Namespace == "" {
		return f.Name
	}
	return f.Namespace + "/" + f.Name
}

// NotFoundError says that there is nothing of the name asked for.
type NotFoundError struct {
	Kind   string // "Service", "node port"
	Filter Filter
}

// Error implements error.
func (e *NotFoundError) Error() string {
	list := strings.ToLower(strings.ReplaceAll(e.Kind, " ", "")) + "s"
	return fmt.Sprintf("no %s %q is known on this node; sluice get %s lists them", e.Kind, e.Filter, list)
}

// errBusy says that the loop has not come to answer.
var errBusy = errors.New("the proxy is writing to the kernel and has not answered in time; try again")

// sight is what a question is answered from: a View, and the Services in it that
// a filter chooses.
type sight struct {
	proxy.View

	services []*route.Service // sorted by name; those that are not removed yet as well
	why      string           // for all that is pending
	choices  map[*route.Port]map[route.Pool][]route.Choice
}

// look asks the loop, and chooses Services. The walk is outside of the loop,
// which goes on meanwhile.
func (i *Inspector) look(ctx context.Context, f Filter) (*sight, error) {
	v, err := i.opt.Loop.View(ctx)
	if err != nil {
		return nil, errBusy
	}
	s := &sight{View: v, why: waiting(v)}
	if f.Name != "" && f.Namespace != "" {
		s.one(cluster.Name(f))
	} else {
		s.all(f)
	}
	if f.Name != "" && len(s.services) == 0 {
		return nil, &NotFoundError{"Service", f}
	}
	return s, nil
}

// one takes a Service, as it is or as it was.
func (s *sight) one(name cluster.Name) {
	svc := s.Routes.Service(name)
	if svc == nil {
		svc = s.Pending.Of(name).Old
	}
	if svc != nil {
		s.services = []*route.Service{svc}
	}
}

// all takes the Services that a filter chooses, as they are or as they were.
func (s *sight) all(f Filter) {
	for svc := range s.Routes.Services() {
		if f.chooses(svc.Name) {
			s.services = append(s.services, svc)
		}
	}
	for t := range route.Yielding(s.Pending.All()) {
		if f.chooses(t.Name) && s.removed(t) {
			s.services = append(s.services, t.Old)
		}
	}
	slices.SortFunc(s.services, func(a, b *route.Service) int { return a.Name.Compare(b.Name) })
}

// removed reports whether a pending change is that the Service goes.
func (s *sight) removed(t route.Touch) bool {
	return t.New == nil && t.Old != nil && s.Routes.Service(t.Name) == nil
}

// pending returns why a Service may not be in the kernel as it should be; false:
// it is.
func (s *sight) pending(name cluster.Name) (why string, is bool) {
	if !s.Pending.Has(name) {
		return "", false
	}
	if t := s.Pending.Of(name); t.Old != nil && s.Routes.Service(name) == nil {
		return "to be removed: " + s.why, true
	}
	return s.why, true
}

// waiting says why what is pending is.
func waiting(v proxy.View) string {
	if v.Err != nil {
		return v.Err.Error()
	}
	return "not written yet"
}

// explain keeps what became of the endpoints of the Services, for the pools in
// use; for the cluster pool where none is, as then none was good enough.
func (s *sight) explain() {
	s.choices = map[*route.Port]map[route.Pool][]route.Choice{}
	for svc := range route.Yielding(slices.Values(s.services)) {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			s.choices[p] = map[route.Pool][]route.Choice{}
			for _, pool := range poolsOf(p) {
				s.choices[p][pool] = s.Routes.Explain(svc.Name, p, pool)
			}
		}
	}
}

// poolsOf returns the pools that fronts of a port use; if none does, that of
// the cluster.
func poolsOf(p *route.Port) []route.Pool {
	var pools []route.Pool
	for _, f := range p.Fronts {
		for _, w := range []route.Way{f.Pods, f.Node, f.Others} {
			if w.Verdict == route.Balance && !slices.Contains(pools, w.Pool) {
				pools = append(pools, w.Pool)
			}
		}
	}
	if len(pools) == 0 {
		return []route.Pool{route.Cluster}
	}
	slices.Sort(pools)
	return pools
}
