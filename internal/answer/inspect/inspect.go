// Package inspect answers queries to a running daemon: which Services are programmed on this node, where a connection
// goes, and the status of the daemon. It computes answers from snapshots, so that no query delays the proxy's loop.
package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// Options for New. All are required, except Opened, Meter, Flows, Selector, Settings and Drain.
type Options struct {
	Loop interface {
		View(ctx context.Context) (proxy.View, error)
	}
	Store interface {
		Backlog() cluster.Window
		Node() *cluster.Node
		Labels(name cluster.Name) string
	}
	History *History
	Sizes   func() sizes.Sizes                              // of the Services in the kernel
	Local   func(ctx context.Context) ([]netip.Addr, error) // addresses of this host
	Plane   plane.Facts
	Opened  plane.Opened // Balance, Shares, Sockets and Traffic of it are used

	Meter *traffic.Meter // nil: one that has Traffic of Opened
	Flows Flows          // nil: there is no conntrack

	// Selector parses a label selector. The function reports whether it selects Labels of the Store.
	Selector func(text string) (selects func(labels string) bool, err error)

	// Status returns all fields that Inspector.Status does not fill in.
	Status func(context.Context) Status

	// Diff compares the kernel with the table. The Inspector never calls it concurrently.
	Diff func(context.Context) (plane.Plan, error)

	// Plan returns the rules that the kernel should have. The Inspector never calls it concurrently with itself and Diff.
	Plan func(context.Context) (plane.Plan, error)

	Settings Settings

	// Drain waits for pods of this node. Nil: this system has no table of connections.
	Drain *drain.Waits
}

// Settings are what the daemon was told.
type Settings struct {
	Configuration json.RawMessage   `json:"configuration,omitempty"` // in force, defaults and flags included
	Flags         map[string]string `json:"flags,omitempty"`
}

// Inspector answers queries. It is safe for concurrent use.
type Inspector struct {
	opt     Options
	queries serial // that may walk through all Services
	diffs   serial // each needs much memory
}

// New returns an Inspector.
func New(opt Options) *Inspector {
	if opt.Meter == nil {
		opt.Meter = traffic.NewMeter(traffic.MeterOptions{Traffic: opt.Opened.Traffic})
	}
	return &Inspector{opt, make(serial, 1), make(serial, 1)}
}

// errBusy means that the loop has not returned a View in time.
var errBusy = errors.New("the proxy is writing to the kernel and has not answered in time; try again")

// errUnlisted means that not all objects have arrived yet, so that no query about Services can be answered.
var errUnlisted = errors.New("not all Services have arrived yet")

// unlisted returns errUnlisted with what is known.
func unlisted(from Source) error {
	reason := strings.TrimSpace(from.Kind+" "+from.From) + ifSet(", %s", from.Trouble)
	return fmt.Errorf("%w (%s): Sluice has written nothing since it started, and connections follow the rules that an "+
		"earlier run left in the kernel", errUnlisted, reason)
}

// view returns the state that an answer is computed from.
func (i *Inspector) view(ctx context.Context) (explain.View, error) {
	v, err := i.opt.Loop.View(ctx)
	switch {
	case err != nil:
		return explain.View{}, errBusy
	case !v.Listed:
		return explain.View{}, unlisted(i.opt.Status(ctx).Source)
	}
	return explain.View{View: v, Node: i.opt.Store.Node(), Plane: i.opt.Plane, Shares: i.opt.Opened.Shares}, nil
}

// diff compares the kernel with the rules that it should have. Before these are known the error says how much it has.
func (i *Inspector) diff(ctx context.Context) (plane.Plan, error) {
	plan, err := i.opt.Diff(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := i.view(ctx); errors.Is(err, errUnlisted) {
		return nil, fmt.Errorf("%w: %s", err, text.Count(plan.Steps(), "object"))
	}
	return plan, nil
}

// plan returns the rules that the kernel should have.
func (i *Inspector) plan(ctx context.Context) (plane.Plan, error) {
	if _, err := i.view(ctx); err != nil {
		return nil, err
	}
	return i.opt.Plan(ctx)
}

func (i *Inspector) explain(r *http.Request) (explain.Answer, error) {
	q, err := explain.Parse(r.FormValue("source"), r.FormValue("destination"))
	if err != nil {
		return explain.Answer{}, err
	}
	q.Via = r.FormValue("via")
	return i.Explain(r.Context(), q)
}

// Explain answers where the connections of a question go.
func (i *Inspector) Explain(ctx context.Context, q explain.Question) (explain.Answer, error) {
	local, err := i.opt.Local(ctx)
	if err != nil {
		return explain.Answer{}, err
	}
	v, err := i.view(ctx)
	if err != nil {
		return explain.Answer{}, err
	}
	if v.Local = local; i.opt.Plane.Sockets != "" {
		v.Sockets = i.opt.Opened.Sockets()
	}
	return explain.Ask(v, q), nil
}

// Filter selects Services; an empty field matches all.
type Filter struct {
	Namespace, Name string

	// Brief leaves out what only a query for a Service by name has, such as endpoints that are left out.
	Brief bool

	// Counts adds the connections of each port to a list of Services.
	Counts bool
}

// ParseFilter parses "NAME" or "NAMESPACE/NAME", with an optional separate namespace.
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

func (f Filter) matches(n cluster.Name) bool {
	return (f.Namespace == "" || f.Namespace == n.Namespace) && (f.Name == "" || f.Name == n.Name)
}

// detailed reports whether a list has everything about the Service.
func (f Filter) detailed() bool { return f.Name != "" && !f.Brief }

// matchesPrefix reports whether the filter is a prefix of a name, or of its namespace if the filter has none.
func (f Filter) matchesPrefix(n cluster.Name) bool {
	if f.Namespace != "" {
		return f.Namespace == n.Namespace && strings.HasPrefix(n.Name, f.Name)
	}
	return strings.HasPrefix(n.String(), f.Name) || strings.HasPrefix(n.Name, f.Name)
}

// String returns the filter as users write it.
func (f Filter) String() string {
	if f.Namespace == "" {
		return f.Name
	}
	return f.Namespace + "/" + f.Name
}

// notFoundError is the error if no object of a kind, "Service" or "node port", has the name in the query.
type notFoundError struct {
	kind   string
	filter Filter
}

func (e notFoundError) Error() string {
	if e.kind == "pod" {
		return fmt.Sprintf("no pod %q of this node is a backend of a Service; for another pod of this node give its address",
			e.filter)
	}
	list := strings.ToLower(strings.ReplaceAll(e.kind, " ", "")) + "s"
	return fmt.Sprintf("no %s %q is known on this node; sluice get %s lists them", e.kind, e.filter, list)
}

// selection has the Services of a View that a Filter matches.
type selection struct {
	explain.View

	filter   Filter
	services []*route.Service // sorted by name, with those that are pending removal
	why      string           // the reason for Pending
}

func (i *Inspector) selectServices(ctx context.Context, f Filter) (*selection, error) {
	v, err := i.view(ctx)
	if err != nil {
		return nil, err
	}
	s := &selection{View: v, filter: f, why: "not written yet"}
	if v.Err != nil {
		s.why = v.Err.Error()
	}
	if f.Name != "" && f.Namespace != "" {
		s.add(cluster.Name{Namespace: f.Namespace, Name: f.Name})
	} else {
		s.addAll()
	}
	if f.Name != "" && len(s.services) == 0 {
		return nil, notFoundError{"Service", f}
	}
	return s, nil
}

// add adds one Service, or its former state if its removal is pending.
func (s *selection) add(name cluster.Name) {
	svc := s.Routes.Service(name)
	if svc == nil {
		svc = s.Pending.Of(name).Old
	}
	if svc != nil {
		s.services = []*route.Service{svc}
	}
}

func (s *selection) addAll() {
	for svc := range s.Routes.Services() {
		if s.filter.matches(svc.Name) {
			s.services = append(s.services, svc)
		}
	}
	for t := range route.Yielding(s.Pending.Scan) {
		if s.filter.matches(t.Name) && t.New == nil && s.removed(t) {
			s.services = append(s.services, t.Old)
		}
	}
	slices.SortFunc(s.services, func(a, b *route.Service) int { return a.Name.Compare(b.Name) })
}

// removed reports whether a pending change removes a Service.
func (s *selection) removed(t route.Touch) bool {
	return t.Old != nil && s.Routes.Service(t.Name) == nil
}

// Programming says whether the rules of a Service are in the kernel.
type Programming string

// The states of Services.
const (
	Programmed    Programming = "programmed"
	Pending       Programming = "pending"        // a write is due, or failed
	NotProgrammed Programming = "not programmed" // or with rules from before a change that the kernel rejects
)

// state returns the state of a Service, and the reason unless it is completely programmed.
func (s *selection) state(svc *route.Service) (Programming, string) {
	refusal, pending := s.Refused[svc.Name], s.Pending.Has(svc.Name)
	switch {
	case refusal != nil:
		return NotProgrammed, plane.Problem(refusal) + ": " + refusal.Error()
	case pending && s.removed(s.Pending.Of(svc.Name)):
		return Pending, "to be removed: " + s.why
	case pending:
		return Pending, s.why
	case svc.Ignored != "":
		return NotProgrammed, svc.Ignored
	case len(svc.Ports) == 0:
		return NotProgrammed, "conflict: other Services own all its addresses and ports"
	case svc.Lost > 0:
		return Programmed, fmt.Sprintf("conflict: other Services own %d of its addresses and ports", svc.Lost)
	}
	return Programmed, ""
}

// maxNames is how many names Names returns at most.
const maxNames = 200

// names lists Services whose name, or namespace and name, begin with a prefix,
// sorted; at most maxNames. It is for the completion of shells.
func (i *Inspector) names(r *http.Request) (iter.Seq[string], error) {
	f := Filter{Namespace: r.FormValue("namespace"), Name: r.FormValue("name")}
	v, err := i.view(r.Context())
	if err != nil {
		return nil, err
	}
	var names []string
	for svc := range v.Routes.Services() {
		if f.matchesPrefix(svc.Name) {
			names = append(names, svc.Name.String())
		}
		if len(names) == maxNames {
			break
		}
	}
	return slices.Values(names), nil
}

// namespaces lists the namespaces of Services that begin with ?name=, for the completion of shells.
func (i *Inspector) namespaces(r *http.Request) (iter.Seq[string], error) {
	v, err := i.view(r.Context())
	if err != nil {
		return nil, err
	}
	names := map[string]struct{}{}
	for svc := range v.Routes.Services() {
		if strings.HasPrefix(svc.Name.Namespace, r.FormValue("name")) {
			names[svc.Name.Namespace] = struct{}{}
		}
	}
	return slices.Values(slices.Sorted(maps.Keys(names))), nil
}
