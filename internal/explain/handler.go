package explain

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// Handler answers questions to a running proxy over HTTP:
//
//	GET /explain?source=10.244.1.5&destination=default/web:http&via=cni0
//
// with an Answer in JSON, or with what is wrong with the question and 400.
type Handler struct {
	Loop interface {
		View(ctx context.Context) (proxy.View, error)
	}
	Store interface{ Node() *cluster.Node }
	Local func(ctx context.Context) ([]netip.Addr, error) // addresses of this host
	Plane plane.Facts
}

// answerTime is how long an answer waits while the proxy writes.
const answerTime = 10 * time.Second

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
	v, err := h.Loop.View(ctx)
	if err != nil {
		return Answer{}, fmt.Errorf("ask the proxy: %w", err)
	}
	answer := Ask(View{Routes: v.Routes, Node: h.Store.Node(), Local: local, Plane: h.Plane}, q)
	answer.Notes = append(append(answer.Notes, refusals(answer.Cases, v.Refused)...), unwritten(v)...)
	return answer, nil
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
