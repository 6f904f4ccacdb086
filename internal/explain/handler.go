package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Handler answers questions to a running proxy over HTTP:
//
//	GET /explain?source=10.244.1.5&destination=default/web:http&via=cni0
//
// with an Answer in JSON, or with what is wrong with the question and 400.
type Handler struct {
	Loop interface {
		Do(ctx context.Context, look func(proxy.View)) error
	}
	Store interface{ Node() *cluster.Node }
	Local func(ctx context.Context) ([]netip.Addr, error) // addresses of this host
	Plane Plane
}

// answerTime is how long an answer waits while the proxy writes, and tries how
// often it is begun anew as a Service that it is about was changed meanwhile.
const (
	answerTime = 10 * time.Second
	tries      = 3
)

// ServeHTTP implements http.Handler.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, err := Parse(r.FormValue("source"), r.FormValue("destination"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q.Via = r.FormValue("via")
	answer, err := h.Ask(r.Context(), q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // who asked may have gone
}

// Ask answers a question, or gives up when the proxy does not come to it.
func (h Handler) Ask(ctx context.Context, q Question) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	local, err := h.Local(ctx)
	if err != nil {
		return Answer{}, err
	}
	var answer Answer
	for range tries {
		answer, err = h.ask(ctx, local, q)
		if !errors.Is(err, errChanged) {
			break
		}
	}
	if err != nil {
		return Answer{}, fmt.Errorf("ask the proxy: %w", err)
	}
	return answer, nil
}

func (h Handler) ask(ctx context.Context, local []netip.Addr, q Question) (Answer, error) {
	routes := &snapshot{do: func(look func(proxy.View)) error { return h.Loop.Do(ctx, look) }}
	var notes []string
	var refused map[cluster.Name]error
	err := routes.do(func(v proxy.View) {
		routes.table = copied(v.Compiler.Table())
		notes, refused = unwritten(v), v.Refused
	})
	if err != nil {
		return Answer{}, err
	}
	answer := Ask(View{Routes: routes, Node: h.Store.Node(), Local: local, Plane: h.Plane}, q)
	answer.Notes = append(append(answer.Notes, refusals(answer.Cases, refused)...), notes...)
	return answer, routes.err
}

// copied shares the Services with the table: they never change.
func copied(t *route.Table) *route.Table {
	return &route.Table{Host: t.Host, Services: maps.Clone(t.Services)}
}

// unwritten says so if the kernel does not do yet what the answer says.
func unwritten(v proxy.View) []string {
	switch {
	case v.Err != nil:
		return []string{"the kernel may not do so yet, it refuses to: " + strings.ReplaceAll(v.Err.Error(), "\n", "; ")}
	case !v.Started:
		return []string{"the kernel may not do so yet: nothing was written since the start"}
	}
	return nil
}

// refusals say so of the Services that the cases lead to, once each.
func refusals(cases []Case, refused map[cluster.Name]error) []string {
	var notes []string
	for _, c := range cases {
		if c.Front == nil || refused[c.Front.name] == nil {
			continue
		}
		note := fmt.Sprintf("the kernel does not do so, it does not take the rules of %s: %v", c.Front.name, refused[c.Front.name])
		if !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	return notes
}

// errChanged says that what was found does not belong together.
var errChanged = errors.New("it is being changed all the time; try again")

// snapshot is Routes as they were at one moment. All Services are looked at
// outside of the loop, which is only asked about the few that matter.
type snapshot struct {
	do    func(look func(proxy.View)) error
	table *route.Table
	err   error // the first
}

// Table implements Routes.
func (s *snapshot) Table() *route.Table { return s.table }

// Explain implements Routes.
func (s *snapshot) Explain(name cluster.Name, port *route.Port, pool route.Pool) (choices []route.Choice) {
	s.look(name, func(c *route.Compiler) { choices = c.Explain(name, port, pool) })
	return choices
}

// Problems implements Routes.
func (s *snapshot) Problems(name cluster.Name) (problems []route.Problem) {
	s.look(name, func(c *route.Compiler) { problems = c.Problems(name) })
	return problems
}

// look asks about a Service, provided that it is as it was.
func (s *snapshot) look(name cluster.Name, take func(*route.Compiler)) {
	if s.err != nil {
		return
	}
	err := s.do(func(v proxy.View) {
		if v.Compiler.Table().Services[name] != s.table.Services[name] {
			s.err = fmt.Errorf("%s: %w", name, errChanged)
			return
		}
		take(v.Compiler)
	})
	if err != nil {
		s.err = err
	}
}
