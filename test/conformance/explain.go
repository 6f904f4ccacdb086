//go:build linux

package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/test/lab"
)

// observation is the result of a step's connections from one client.
type observation struct {
	verdict  explain.Verdict
	backends []netip.AddrPort // exactly these answered; if nil, only results are compared
	results  []lab.Result     // connections that were answered

	hits map[netip.AddrPort]int // how many of n connections reached each backend; nil if they are not counted
	n    int

	sticky bool // all connections reached one backend
	pings  bool // instead of connections
}

// checkExplain compares the answer of explain with the connections of a client. It checks
// nothing while the routes of the proxy are not in the kernel.
func (e *env) checkExplain(client *lab.Host, p lab.Probe, got observation) error {
	answer, known, err := e.explain(client, p)
	if err != nil || !known {
		return err
	}
	c := answer.Cases[0]
	err = e.compareExplain(client, c, got)
	if err == nil {
		err = e.compareSockets(client, c, got)
	}
	if err != nil {
		return fmt.Errorf("explain contradicts the connections: %w; its answer:\n%s", err, text.Printed(answer))
	}
	return nil
}

func (e *env) compareExplain(client *lab.Host, c explain.Case, got observation) error {
	explained := map[netip.AddrPort]explain.Backend{}
	var order []netip.AddrPort
	certain := false // one backend gets all connections of the client
	for _, b := range c.Backends {
		a := netip.MustParseAddrPort(b.Address)
		chance, err := lab.Chance(b.Chance)
		if err != nil {
			return err
		}
		if explained[a] = b; chance > 0 {
			order = append(order, a)
		}
		certain = certain || chance == 1
	}
	slices.SortFunc(got.backends, netip.AddrPort.Compare)
	switch {
	case c.Verdict != got.verdict:
		return fmt.Errorf("connections are %s", got.verdict)
	case got.verdict != explain.Balanced:
		return nil
	case got.backends != nil && !slices.Equal(got.backends, order):
		return fmt.Errorf("the backends are %s", got.backends)
	case got.sticky && c.AffinitySeconds == 0 && !certain && !strings.Contains(c.Why, "by a hash of the client"):
		return fmt.Errorf("the client stays with its backend")
	}
	if err := e.compareChances(c, got); err != nil {
		return err
	}
	for _, r := range got.results {
		b, known := explained[r.Backend]
		want := original
		if c.SourceNAT.Applied || b.Hairpin {
			want = masqueraded
		}
		if !known || !e.sees(want, client, r) {
			return fmt.Errorf("a connection is %s", r)
		}
		if r.Local.IsValid() && r.Local.Addr().String() != c.Client.Address {
			return fmt.Errorf("the client is %s", r.Local.Addr())
		}
	}
	return nil
}

// compareChances compares the chances of backends with how many connections reached them. A plane whose chances
// follow from the weights does not know the backend of a client with session affinity.
func (e *env) compareChances(c explain.Case, got observation) error {
	if got.hits == nil || c.AffinitySeconds > 0 && e.proxy.shares == nil {
		return nil
	}
	for _, b := range c.Backends {
		p, err := lab.Chance(b.Chance)
		if err != nil {
			return err
		}
		lo, hi := lab.Bounds(got.n, p)
		if hits := got.hits[netip.MustParseAddrPort(b.Address)]; hits < lo || hits > hi {
			return fmt.Errorf("%d of %d connections reached %s; with the chance %s they are %d to %d",
				hits, got.n, b.Address, b.Chance, lo, hi)
		}
	}
	return nil
}

// explain computes the answer of explain for the connections of a client, from the routes that
// the proxy has, or had when it stopped. The answer is not known while these are not in the
// kernel, because another program deleted them or the kernel refused them.
func (e *env) explain(client *lab.Host, p lab.Probe) (answer explain.Answer, known bool, err error) {
	if e.proxy.skipExplain {
		return answer, false, nil
	}
	local, err := address.New(address.Options{
		NetNS:  e.lab.NodeA.NetNSFD(),
		Except: takeover.ServiceDevice,
	}).List(context.Background())
	if err != nil {
		return answer, false, err
	}
	q := e.question(client, p)
	routes, err := e.proxy.routes()
	if known = routes != nil; known {
		answer = explain.Ask(explain.View{
			View: proxy.View{Routes: routes, Started: true}, Node: e.proxy.store.Node(), Local: local,
			Plane: e.proxy.plane.Explain, Shares: e.proxy.shares,
		}, q)
	}
	if known && len(answer.Cases) != 1 {
		err = fmt.Errorf("explain answers with %d cases, want one:\n%s", len(answer.Cases), text.Printed(answer))
	}
	return answer, known, err
}

// question returns the question about the connections of a probe.
func (e *env) question(client *lab.Host, p lab.Probe) explain.Question {
	q := explain.Question{Destination: p.To.Addr(), Port: p.To.Port(), Protocol: p.Protocol}
	if q.Port == 0 {
		q.Protocol = explain.ICMP
	}
	if client == e.lab.NodeA {
		return q
	}
	if q.Source = p.From.Addr(); !q.Source.IsValid() {
		q.Source = client.Addr(p.To.Addr())
	}
	detector := e.proxy.options.Detector
	switch {
	case client == e.lab.Outside || client == e.lab.Blocked || e.onNodeB(client):
		q.Via = e.lab.NodeA.Interface()
	case detector.Kind == route.DetectBridge:
		q.Via = detector.Interface
	default:
		q.Via = client.Interface()
	}
	return q
}
