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

// Loop is what is asked; it waits meanwhile, so that little is done there.
type Loop interface {
	Do(ctx context.Context, look func(proxy.View)) error
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
	comparing chan struct{} // of one: there is memory for one comparison, not for many
}

// New makes an Inspector.
func New(opt Options) *Inspector { return &Inspector{opt, make(chan struct{}, 1)} }

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

// sight is what was taken out of the loop. What it points at never changes.
type sight struct {
	host     route.Host
	services []*route.Service // sorted by name; those to be removed yet, too
	pending  map[cluster.Name]string
	refused  map[cluster.Name]string                       // by the kernel, and why
	choices  map[*route.Port]map[route.Pool][]route.Choice // of Services asked for by name
}

// look takes what a filter chooses out of the loop; take runs inside it.
func (i *Inspector) look(ctx context.Context, f Filter, take func(*sight, proxy.View, Filter)) (*sight, error) {
	s := &sight{pending: map[cluster.Name]string{}, refused: map[cluster.Name]string{}, choices: map[*route.Port]map[route.Pool][]route.Choice{}}
	if err := i.opt.Loop.Do(ctx, func(v proxy.View) { take(s, v, f) }); err != nil {
		return nil, errBusy
	}
	if f.Name != "" && len(s.services) == 0 {
		return nil, &NotFoundError{"Service", f}
	}
	slices.SortFunc(s.services, func(a, b *route.Service) int { return a.Name.Compare(b.Name) })
	return s, nil
}

// explain is take with what became of each endpoint.
func (s *sight) explain(v proxy.View, f Filter) {
	s.take(v, f)
	for _, svc := range s.services {
		s.choose(v.Compiler, svc)
	}
}

// take takes Services, as they are and as they were.
func (s *sight) take(v proxy.View, f Filter) {
	s.host = v.Table.Host
	for name, err := range v.Refused {
		s.refused[name] = "the kernel does not take its rules: " + err.Error()
	}
	why := waiting(v)
	if f.Name == "" || f.Namespace == "" {
		s.takeAll(v, f, why)
		return
	}
	name := cluster.Name(f)
	touch, pending := v.Pending[name]
	if svc := v.Table.Services[name]; svc != nil {
		s.services = append(s.services, svc)
	} else if touch.Old != nil {
		s.services = append(s.services, touch.Old)
		why = removed(why)
	}
	if pending {
		s.pending[name] = why
	}
}

func (s *sight) takeAll(v proxy.View, f Filter, why string) {
	s.services = slices.DeleteFunc(all(v), func(svc *route.Service) bool { return !f.chooses(svc.Name) })
	for name, touch := range v.Pending {
		if !f.chooses(name) {
			continue
		}
		s.pending[name] = why
		if touch.New == nil && touch.Old != nil && v.Table.Services[name] == nil {
			s.services = append(s.services, touch.Old)
			s.pending[name] = removed(why)
		}
	}
}

// waiting says why what is pending is.
func waiting(v proxy.View) string {
	if v.Err != nil {
		return v.Err.Error()
	}
	return "not written yet"
}

func removed(why string) string { return "to be removed: " + why }

// choose keeps what became of the endpoints of a Service, for the pools in use;
// for the cluster pool where none is, as then none was good enough.
func (s *sight) choose(c *route.Compiler, svc *route.Service) {
	for i := range svc.Ports {
		p := &svc.Ports[i]
		pools := map[route.Pool][]route.Choice{}
		for _, pool := range poolsOf(p) {
			pools[pool] = c.Explain(svc.Name, p, pool)
		}
		s.choices[p] = pools
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
