//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// balance is the expected result of many connections of a client.
type balance struct {
	from, to string
	seen     source
	want     []netip.AddrPort
	n        int
	even     bool
	first    bool // the first backend gets three quarters at least, in shares that change with each connection
}

// balance makes the connections and returns an error at the first unexpected one.
func (e *env) balance(b balance) error {
	client, probe, err := e.probe(b.from, b.to)
	if err != nil {
		return err
	}
	hits := map[netip.AddrPort]int{}
	got := observation{verdict: explain.Balanced, backends: slices.Clone(b.want), hits: hits, n: b.n}
	if slices.Equal(b.want, []netip.AddrPort{probe.To}) {
		got.verdict = explain.Untouched
	} else if e.traits().proxied {
		b.seen = masqueraded
	}
	for i := range b.n {
		r := client.Try(alternately(probe, i))
		if r.Outcome != lab.Answered || !slices.Contains(b.want, r.Backend) {
			return fmt.Errorf("%s to %s: %s, want an answer of %s", b.from, b.to, r, b.want)
		}
		if !e.sees(b.seen, client, r) {
			return fmt.Errorf("%s to %s: %s, want the source %s", b.from, b.to, r, b.seen)
		}
		hits[r.Backend]++
		got.results = append(got.results, r)
	}
	for i, backend := range b.want {
		lo, hi := b.bounds(i)
		if h := hits[backend]; h < lo || h > hi {
			return fmt.Errorf("%s to %s: %d of %d connections reached %s, want %d to %d", b.from, b.to, h, b.n, backend, lo, hi)
		}
	}
	if b.first { // the shares have changed since
		got.backends, got.hits = nil, nil
	}
	return e.checkExplain(client, probe, got)
}

// bounds returns how many connections the backend with an index gets, at least and at most.
func (b *balance) bounds(i int) (least, most int) {
	switch {
	case b.even:
		return lab.Bounds(b.n, 1/float64(len(b.want)))
	case b.first && i == 0:
		return b.n * 3 / 4, b.n
	case b.first:
		return 0, b.n / 4
	}
	return 1, b.n
}

// sees reports whether the backend saw the expected source.
func (e *env) sees(want source, client *lab.Host, r lab.Result) bool {
	switch want {
	case original:
		return !r.Masqueraded()
	case masqueraded:
		return slices.Contains(e.nodeAddrs, r.Source.Addr()) && (client == e.lab.NodeA || r.Masqueraded())
	}
	return true
}

// String returns the source as a word.
func (s source) String() string {
	return [...]string{"any", "unchanged", "masqueraded"}[s]
}

// alternately returns a probe for one of several connections: of UDP every second socket does not connect.
func alternately(p lab.Probe, i int) lab.Probe {
	p.Unconnected = p.Protocol == lab.UDP && i%2 > 0
	return p
}

// probe resolves the client and the target of the connections of a step, before which it notes how many were decided
// at sockets.
func (e *env) probe(from, to string) (*lab.Host, lab.Probe, error) {
	client, p, err := e.resolve(from, to)
	if err == nil {
		err = e.noteDecided()
	}
	return client, p, err
}

// resolve resolves the client and the target of a connection: "172.30.0.41:80", "172.30.0.41:53/udp", or, with a
// socket that does not connect, "172.30.0.41:53/udp unconnected".
func (e *env) resolve(from, to string) (*lab.Host, lab.Probe, error) {
	client, err := e.host(from)
	if err != nil {
		return nil, lab.Probe{}, err
	}
	to, unconnected := strings.CutSuffix(to, " unconnected")
	target, protocol, err := e.target(to)
	if err != nil {
		return nil, lab.Probe{}, err
	}
	p := lab.Probe{Protocol: protocol, To: target, Unconnected: unconnected}
	if client == e.lab.Outside || client == e.lab.Blocked {
		p.From = netip.AddrPortFrom(client.Addr(target.Addr()), 0)
	}
	return client, p, e.awaitPod(client)
}

func (e *env) backends(texts []string) ([]netip.AddrPort, error) {
	var out []netip.AddrPort
	for _, text := range texts {
		a, err := netip.ParseAddrPort(e.text(text))
		if err != nil {
			return nil, fmt.Errorf("read backend: %w", err)
		}
		out = append(out, a)
	}
	return out, nil
}

// isLocalToNodeA reports whether the kernel of node A treats an address as its own.
func (e *env) isLocalToNodeA(a netip.Addr) bool {
	if a.IsLoopback() || slices.Contains(e.lab.NodeA.Addrs(), a) {
		return true
	}
	out, err := e.lab.NodeA.Run("", "ip", "-o", "route", "get", a.String())
	return err == nil && len(out) > 5 && out[:5] == "local"
}

// onNodeB reports whether packets from a client cross the outside host on their way to node A.
func (e *env) onNodeB(client *lab.Host) bool {
	return client == e.lab.NodeB || e.world.remote[client.Name()]
}

// isIncoming matches packets of a probe that came in from another host.
func isIncoming(p lab.Probe) func(lab.Packet) bool {
	return func(seen lab.Packet) bool {
		return !seen.Out && seen.Protocol == p.Protocol && seen.Dst == p.To
	}
}
