package ebpf

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// ofPort returns a connection of a client to a Service with one port.
func ofPort(p route.Port, from plane.Connection) plane.Connection {
	p.Name, p.Protocol, p.Family, p.Frontends = "http", 6, route.IPv4, make([]route.Frontend, 1)
	from.Service, from.Way = &route.Service{Ports: []route.Port{p}}, route.Way{Verdict: route.Balance}
	return from
}

// percents prints the shares of backends, in their order.
func percents(s plane.Shares, backends []netip.AddrPort) string {
	var list []string
	for _, at := range backends {
		list = append(list, fmt.Sprintf("%.1f", 100*s.Of[at]))
	}
	if len(s.Of) == 0 {
		return "packets"
	}
	return strings.Join(list, " ") + " " + s.How
}

const (
	toLeast  = " to the one with the fewest open connections for its weight"
	toHashed = " to the one that a hash of the client chooses"
)

func TestShares(t *testing.T) {
	b := pods(3)
	inside := plane.Connection{Inside: true, Client: netip.MustParseAddr("10.180.0.2")}
	node := plane.Connection{Inside: true, Node: true, NodeName: "a"}
	weights := func(w ...uint16) map[netip.AddrPort]uint16 {
		return map[netip.AddrPort]uint16{b[0]: w[0], b[1]: w[1], b[2]: w[2]}
	}
	for name, c := range map[string]struct {
		from plane.Connection
		port route.Port
		want string
	}{
		"at random":       {inside, route.Port{}, "packets"},
		"from outside":    {plane.Connection{}, route.Port{Scheduler: "lc", Weights: weights(1, 2, 3)}, "packets"},
		"with affinity":   {inside, route.Port{Affinity: time.Hour, Weights: weights(1, 2, 3)}, "packets"},
		"by weight":       {inside, route.Port{Weights: weights(0, 1, 3)}, "0.0 25.0 75.0 by their weights"},
		"all of weight 0": {inside, route.Port{Weights: weights(0, 0, 0)}, "packets"},
		"the fewest":      {node, route.Port{Scheduler: "lc"}, "33.3 33.3 33.3" + toLeast},
		"the fewest for its weight": {
			node, route.Port{Scheduler: "lc", Weights: weights(5, 1, 1)}, "71.4 14.3 14.3" + toLeast,
		},
		"slow start": {inside, route.Port{SlowStart: 1}, "packets"},
		"by the hash of nobody known": {
			plane.Connection{Inside: true, Node: true}, route.Port{Scheduler: "mh", Weights: weights(0, 1, 3)},
			"0.0 25.0 75.0" + toHashed,
		},
	} {
		c.port.Cluster = b
		if got := percents(shares(ofPort(c.port, c.from)), b); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A client has one backend by hash. As many clients have a backend as its weight says.
func TestSharesByHash(t *testing.T) {
	b := pods(3)
	port := route.Port{Scheduler: "maglev", Cluster: b, Weights: map[netip.AddrPort]uint16{b[0]: 3, b[1]: 0}}
	var got [3]float64
	const clients = 20_000
	for i := range clients {
		of := shares(ofPort(port, plane.Connection{
			Inside: true, Client: netip.AddrFrom4([4]byte{10, 180, byte(i / 250), byte(i % 250)}),
		})).Of
		if len(of) != 1 {
			t.Fatalf("client %d has the backends %v", i, of)
		}
		got[slices.Index(b, slices.Collect(maps.Keys(of))[0])] += 1.0 / clients
	}
	for i, want := range []float64{0.75, 0, 0.25} {
		if math.Abs(got[i]-want) > 0.02 {
			t.Errorf("the clients have %.3f of backend %d, want %.3f", got[i], i, want)
		}
	}
}

// The open connections of a backend are those of all clients.
func TestBalance(t *testing.T) {
	b := pods(3)
	by := ofPort(route.Port{Scheduler: "lc", Cluster: b}, plane.Connection{})
	answers := balancing{
		connections: func(context.Context, func(netip.AddrPort) bool) (sockdiag.Connections, error) {
			return sockdiag.Connections{b[0]: {sockdiag.OfNode: 1, 7: 1}, b[1]: {7: 1}}, nil
		},
		sockets: func() ([]bpf.Socket, error) { return nil, nil },
	}
	got, err := answers.balance(t.Context(), by.Service, 0, nil)
	if err != nil || got.Scheduler != "lc" || got.Backends[b[0]].Active != 2 || got.Backends[b[2]].Active != 0 {
		t.Errorf("answers %+v, %v", got, err)
	}
}
