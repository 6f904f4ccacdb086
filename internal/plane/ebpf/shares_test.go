package ebpf

import (
	"context"
	"errors"
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

// fakeKernel has open connections and new backends, all of one pool.
type fakeKernel struct {
	pool bpf.Pool
	open []netip.AddrPort
	new  map[netip.AddrPort]uint32
	err  error
}

func (k fakeKernel) loads() (map[netip.AddrPort]bpf.Load, error) {
	all := map[netip.AddrPort]bpf.Load{}
	for i, at := range append(pods(3), k.open...) {
		l := all[at]
		if i >= 3 {
			l.Since++
		}
		all[at] = l
	}
	return all, k.err
}

func (k fakeKernel) parts() (map[bpf.Member]uint32, error) {
	parts := map[bpf.Member]uint32{}
	for at, part := range k.new {
		parts[bpf.Member{Pool: k.pool, Backend: at}] = part
	}
	return parts, k.err
}

// ofPort returns a connection of a client to a Service with one port.
func ofPort(p route.Port, from plane.Connection) plane.Connection {
	p.Name, p.Protocol, p.Family, p.Frontends = "http", 6, route.IPv4, make([]route.Frontend, 1)
	from.Service, from.Way = &route.Service{Ports: []route.Port{p}}, route.Action{Verdict: route.Balance}
	return from
}

func poolIn(by plane.Connection) bpf.Pool {
	return poolID(by.Service.Name, &by.Service.Ports[0], route.Cluster)
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
	node := plane.Connection{Inside: true, Node: true, Client: netip.MustParseAddr("192.168.0.2")}
	weights := func(w ...uint16) map[netip.AddrPort]uint16 {
		return map[netip.AddrPort]uint16{b[0]: w[0], b[1]: w[1], b[2]: w[2]}
	}
	for name, c := range map[string]struct {
		from     plane.Connection
		port     route.Port
		open     []netip.AddrPort
		new      map[netip.AddrPort]uint32
		want     string
		unopened string // without a kernel; empty: the same
	}{
		"at random":    {from: inside, want: "packets"},
		"from outside": {port: route.Port{Scheduler: "lc", Weights: weights(1, 2, 3)}, want: "packets"},
		"with affinity": {
			from: inside, port: route.Port{Affinity: time.Hour, Weights: weights(1, 2, 3)}, want: "packets",
		},
		"by weight": {
			from: inside, port: route.Port{Weights: weights(0, 1, 3)}, want: "0.0 25.0 75.0 by their weights",
		},
		"all of weight 0": {from: inside, port: route.Port{Weights: weights(0, 0, 0)}, want: "packets"},
		"the fewest": {
			from: node, port: route.Port{Scheduler: "lc"}, open: []netip.AddrPort{b[0], b[0], b[1]},
			want: "0.0 0.0 100.0" + toLeast, unopened: "33.3 33.3 33.3" + toLeast,
		},
		"the fewest for its weight": {
			from: node, port: route.Port{Scheduler: "lc", Weights: weights(5, 1, 1)}, open: []netip.AddrPort{b[0], b[0], b[1]},
			want: "100.0 0.0 0.0" + toLeast, unopened: "71.4 14.3 14.3" + toLeast,
		},
		"the first of two": {
			from: node, port: route.Port{Scheduler: "lc"}, open: []netip.AddrPort{b[0]}, want: "0.0 66.7 33.3" + toLeast,
			unopened: "33.3 33.3 33.3" + toLeast,
		},
		"the fewest, one is new": {
			from: node, port: route.Port{Scheduler: "lc", SlowStart: 1}, new: map[netip.AddrPort]uint32{b[0]: 128},
			want: "0.0 66.7 33.3" + toLeast, unopened: "33.3 33.3 33.3" + toLeast,
		},
		"new at random": {
			from: inside, port: route.Port{SlowStart: 1}, new: map[netip.AddrPort]uint32{b[2]: 26},
			want: "47.2 47.2 5.6 with the same chance, except that backends in slow start get less", unopened: "packets",
		},
		"new, by weight": {
			from: inside, port: route.Port{SlowStart: 1, Weights: weights(0, 1, 3)}, new: map[netip.AddrPort]uint32{b[2]: 128},
			want: "0.0 39.2 60.8 by their weights; backends in slow start get less", unopened: "0.0 25.0 75.0 by their weights",
		},
		"new, without slow start now": {
			from: inside, port: route.Port{}, new: map[netip.AddrPort]uint32{b[2]: 26}, want: "packets",
		},
		"by the hash of nobody known": {
			from: plane.Connection{Inside: true, Node: true}, port: route.Port{Scheduler: "mh", Weights: weights(0, 1, 3)},
			want: "0.0 25.0 75.0" + toHashed,
		},
	} {
		c.port.Cluster = b
		by := ofPort(c.port, c.from)
		k := fakeKernel{pool: poolIn(by), open: c.open, new: c.new}
		if got := percents((&balancing{loads: k.loads, parts: k.parts}).shares(by), b); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if c.unopened == "" {
			c.unopened = c.want
		}
		k.err = errors.New("unreadable")
		for _, unopened := range []*balancing{new(balancing), {loads: k.loads, parts: k.parts}} {
			if got := percents(unopened.shares(by), b); got != c.unopened {
				t.Errorf("%s, without a kernel: %s, want %s", name, got, c.unopened)
			}
		}
	}
}

// A client has one backend by hash. As many clients have a backend as its weight says, fewer while it is new.
func TestSharesByHash(t *testing.T) {
	b := pods(3)
	port := route.Port{Scheduler: "maglev", SlowStart: 1, Cluster: b, Weights: map[netip.AddrPort]uint16{b[0]: 3, b[1]: 0}}
	count := func(k fakeKernel) (got [3]float64) {
		const clients = 20_000
		for i := range clients {
			by := ofPort(port, plane.Connection{
				Inside: true, Client: netip.AddrFrom4([4]byte{10, 180, byte(i / 250), byte(i % 250)}),
			})
			k.pool = poolIn(by)
			shares := (&balancing{parts: k.parts}).shares(by).Of
			if len(shares) != 1 {
				t.Fatalf("client %d has the backends %v", i, shares)
			}
			got[slices.Index(b, slices.Collect(maps.Keys(shares))[0])] += 1.0 / clients
		}
		return got
	}
	for name, c := range map[string]struct {
		new  map[netip.AddrPort]uint32
		want [3]float64
	}{
		"none is new": {nil, [3]float64{0.75, 0, 0.25}},
		"one is new":  {map[netip.AddrPort]uint32{b[0]: 128}, [3]float64{0.608, 0, 0.392}},
	} {
		got := count(fakeKernel{new: c.new})
		for i := range b {
			if math.Abs(got[i]-c.want[i]) > 0.02 {
				t.Errorf("%s: the clients have %.3f, want %.3f", name, got, c.want)
			}
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
	if err != nil || got[b[0]].Active != 2 || got[b[2]].Active != 0 {
		t.Errorf("answers %+v, %v", got, err)
	}
}
