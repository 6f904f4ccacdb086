package app

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Explain answers a question as if the manifests were what there is. It needs
// no privileges.
func Explain(ctx context.Context, o Options, q explain.Question) (explain.Answer, error) {
	store := cluster.NewStore()
	if err := openManifests(store, o, o.report).Load(); err != nil {
		return explain.Answer{}, err
	}
	addresses := address.New(address.Options{NetNS: o.NetNS})
	local, err := addresses.List(ctx)
	if err != nil {
		return explain.Answer{}, err
	}
	store.SetLocalAddresses(local)
	store.SetStandIn(standIn(addresses, o.Config.NodeName, o.Log))
	compiler := route.NewCompiler(Policy(o.Config, []route.Family{route.IPv4, route.IPv6}))
	compiler.Compile(store.Take()) // problems of what is asked about are in the answer
	return explain.Ask(explain.View{Routes: compiler, Node: store.Node(), Local: local, Plane: kindOf(o.Config.Mode).explain()}, q), nil
}

// Explainer answers questions to a running proxy over HTTP:
//
//	GET /explain?source=10.244.1.5&destination=default/web:http&via=cni0
//
// with an explain.Answer in JSON, or with what is wrong with the question and
// 400.
type Explainer struct {
	Loop interface {
		Do(ctx context.Context, look func(proxy.View)) error
	}
	Store interface{ Node() *cluster.Node }
	Local func(ctx context.Context) ([]netip.Addr, error) // addresses of this host
	Plane explain.Plane
}

// answerTime is how long an answer waits while the proxy writes.
const answerTime = 10 * time.Second

// ServeHTTP implements http.Handler.
func (e Explainer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, err := explain.Parse(r.FormValue("source"), r.FormValue("destination"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q.Via = r.FormValue("via")
	answer, err := e.Ask(r.Context(), q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // who asked may have gone
}

// Ask answers a question, or gives up when the proxy does not come to it.
func (e Explainer) Ask(ctx context.Context, q explain.Question) (explain.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	local, err := e.Local(ctx)
	if err != nil {
		return explain.Answer{}, err
	}
	var answer explain.Answer
	err = e.Loop.Do(ctx, func(v proxy.View) {
		answer = explain.Ask(explain.View{Routes: v.Compiler, Node: e.Store.Node(), Local: local, Plane: e.Plane}, q)
		answer.Notes = append(answer.Notes, unwritten(v)...)
	})
	if err != nil {
		return explain.Answer{}, fmt.Errorf("ask the proxy: %w", err)
	}
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
