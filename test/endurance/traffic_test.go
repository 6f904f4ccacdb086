//go:build linux

package endurance

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Live connections come from the conntrack table of the kernel, by Service, by backend and by client. A connection that
// ended is not live, but it still holds the table.
func TestLiveConnections(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			newTestEnv(t).checkLive(mode)
		})
	}
}

func (w *testEnv) checkLive(mode string) {
	w.Helper()
	d := w.start(launch{}, "--proxy-mode="+mode)
	d.waitSynced(1)
	const open = 5
	to := netip.AddrPortFrom(netip.MustParseAddr(webIP4), 80)
	var flows []*lab.Flow
	for range open {
		flow, result := w.client.Open(lab.Probe{Protocol: lab.TCP, To: to, Timeout: timeout})
		if flow == nil {
			w.Fatal(result)
		}
		flows = append(flows, flow)
	}
	w.eventually(func() error { return w.liveAre(open, open) })
	if got := w.live("sluice_service_live_connections"); got != open {
		w.Errorf("the metrics have %v live connections, want %d", got, open)
	}

	flows[0].Close()
	w.eventually(func() error { return w.liveAre(open-1, open) })
	for _, f := range flows[1:] {
		f.Close()
	}
	w.eventually(func() error { return w.liveAre(0, open) })
	d.checkAlive()
}

// In mode ebpf connections have backends as their destination from the start.
func TestLiveConnectionsOfSockets(t *testing.T) {
	s := newSockets(t, "ebpf")
	to := netip.AddrPortFrom(netip.MustParseAddr(webIP4), 80)
	const open = 4
	for range open {
		flow, result := s.client.Open(lab.Probe{Protocol: lab.TCP, To: to, Timeout: timeout})
		if flow == nil {
			t.Fatal(result)
		}
		defer flow.Close()
	}
	s.eventually(func() error {
		backends, err := topOf[inspect.Traffic](s.testEnv, "backends", "web")
		var sum uint64
		for _, b := range backends {
			if b.Conntrack == nil || b.Conntrack.Entries != b.Signals[plane.Live] {
				return fmt.Errorf("conntrack has %+v of %+v", b.Conntrack, b)
			}
			sum += b.Conntrack.Entries
		}
		if err == nil && sum != open {
			err = fmt.Errorf("the backends have %d entries, want %d: %+v", sum, open, backends)
		}
		return err
	})
}

// liveAre compares all tables of sluice top with what a client has opened.
func (w *testEnv) liveAre(live, entries uint64) error {
	w.Helper()
	ports, err := topOf[inspect.Traffic](w, "services", "web")
	if err != nil {
		return err
	}
	if len(ports) != 1 || ports[0].Signals[plane.Live] != live || ports[0].Conntrack.Entries != entries {
		return fmt.Errorf("sluice top: %+v, want %d live of %d entries", ports, live, entries)
	}
	backends, err := topOf[inspect.Traffic](w, "backends", "web")
	if err != nil {
		return err
	}
	var sum uint64
	for _, b := range backends {
		sum += b.Signals[plane.Live]
		if !slices.ContainsFunc(w.pods[:], func(p *lab.Host) bool { return p.Addr(b.Backend.Addr()) == b.Backend.Addr() }) {
			return fmt.Errorf("%s is no pod", b.Backend)
		}
	}
	if sum != live {
		return fmt.Errorf("the backends have %d live connections, want %d: %+v", sum, live, backends)
	}
	clients, err := topOf[inspect.Client](w, "clients")
	if err != nil {
		return err
	}
	from := w.client.Addr(netip.MustParseAddr(webIP4))
	i := slices.IndexFunc(clients, func(c inspect.Client) bool { return c.Client == from })
	if i < 0 || clients[i].Live != live || clients[i].Entries != entries || clients[i].Service != "web" {
		return fmt.Errorf("sluice top clients: %+v, want %d live of %d entries of %s at web", clients, live, entries, from)
	}
	return nil
}

// topOf returns what sluice top prints.
func topOf[T any](w *testEnv, args ...string) ([]T, error) {
	out, status := w.runSluice(append([]string{"top", "-o", "json", "--interval=100ms"}, args...)...)
	var list struct{ Items []T }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("sluice top %v: %d, %s: %w", args, status, out, err)
	}
	return list.Items, nil
}

// live returns the sum of all series of a family.
func (w *testEnv) live(family string) (sum float64) {
	w.Helper()
	_, body, err := w.get(metricsAt, "/metrics")
	w.must(err)
	for line := range strings.Lines(body) {
		var n float64
		if series, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && strings.HasPrefix(series, family+"{") {
			_, err := fmt.Sscan(value, &n)
			w.must(err)
			sum += n
		}
	}
	return sum
}
