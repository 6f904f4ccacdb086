//go:build linux

package conformance

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/test/lab"
)

// open connects and keeps the connection under a name (for UDP: the client's port). If backends
// are given, one of them must answer.
func open(name, from, to string, backends ...string) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		e.closeFlow(name)
		f, r := client.Open(probe)
		if f == nil {
			return fmt.Errorf("open %s from %s to %s: %s", name, from, to, r)
		}
		e.flows[name] = f
		if len(backends) == 0 {
			return nil
		}
		return send(name, backends...)(e)
	}
}

// send sends a request on an open flow, and one of the backends must answer. Without backends
// it must be the one that answered before; the first time, any.
func send(name string, backends ...string) step {
	return func(e *env) error {
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		if before, ok := e.answered[name]; ok && len(want) == 0 {
			want = []netip.AddrPort{before}
		}
		f := e.flows[name]
		if f == nil {
			return fmt.Errorf("no flow %q is open", name)
		}
		r := f.AskWithin(nil, 4*lab.Soon)
		if r.Outcome != lab.Answered || len(want) > 0 && !slices.Contains(want, r.Backend) {
			return fmt.Errorf("flow %s: %s, want an answer of %s", name, r, want)
		}
		e.answered[name] = r.Backend
		return nil
	}
}

// openAlso opens a flow under a name that no other flow has.
func openAlso(name, from, to string) step {
	return func(e *env) error {
		name := fmt.Sprintf("%s in mode %s", name, e.traits().mode)
		for e.flows[name] != nil {
			name += " again"
		}
		return sequence(open(name, from, to), send(name))(e)
	}
}

// choosesAnew reports whether an unconnected UDP socket gets another backend in the next mode: packets and sockets
// choose for it.
func (e *env) choosesAnew() bool {
	return e.proxy.plane.Sockets || slices.ContainsFunc(e.proxy.plane.Others, func(other func() Plane) bool {
		return other().Sockets
	})
}

// sendOnAll sends a request on each open flow. The backend that answered before must answer.
func sendOnAll(e *env) error {
	for _, name := range slices.Sorted(maps.Keys(e.flows)) {
		if e.flows[name].Probe().Unconnected && e.choosesAnew() {
			delete(e.answered, name)
		}
		if err := send(name)(e); err != nil {
			return err
		}
	}
	return nil
}

// unanswered sends a request on an open flow and verifies its outcome, such as lab.TimedOut or lab.Refused.
func unanswered(name string, want lab.Outcome) step {
	return func(e *env) error {
		f := e.flows[name]
		if f == nil {
			return fmt.Errorf("no flow %q is open", name)
		}
		if r := f.AskWithin(nil, lab.Soon); r.Outcome != want {
			return fmt.Errorf("flow %s: %s, want %s", name, r, want)
		}
		return nil
	}
}

// closeFlow closes the flow with this name, if there is one.
func (e *env) closeFlow(name string) {
	if f := e.flows[name]; f != nil {
		f.Close()
		delete(e.flows, name)
		delete(e.answered, name)
	}
}
