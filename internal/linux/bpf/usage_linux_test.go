package bpf

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// usage returns how full the maps are, by name.
func (n *node) usage(c *Conn) map[string]Usage {
	n.t.Helper()
	list, err := c.Usage()
	if err != nil {
		n.t.Fatal(err)
	}
	all := map[string]Usage{}
	for _, u := range list {
		all[u.Map] = u
	}
	return all
}

// Usage counts entries correctly after additions, changes, removals, growth and a restart.
func TestUsageOfTables(t *testing.T) {
	n := newNode(t)
	if list, err := n.conn.Usage(); err != nil || len(list) > 0 {
		t.Errorf("before the first write: %v, %v", list, err)
	}
	var steps []Step
	for i := range 3 * firstSize {
		steps = append(steps, Step{Entry: Slot{Pool{9}, i, netip.MustParseAddrPort("10.1.1.1:80"), 1}.Entry()})
	}
	steps = append(steps, steps[:100]...) // again
	steps = append(steps, Step{Entry: Slot{Pool{9}, 5, netip.MustParseAddrPort("10.1.1.2:80"), 1}.Entry()})
	for _, s := range steps[:10] {
		s.Remove = true
		steps = append(steps, s)
	}
	address := NodeAddr(netip.MustParseAddr("10.2.0.1"))
	steps = append(steps, Step{Entry: address}, Step{Entry: address})
	if err := n.conn.Write(t.Context(), steps); err != nil {
		t.Fatal(err)
	}
	verify := func(c *Conn) {
		t.Helper()
		all := n.usage(c)
		if u := all["slots"]; u.Entries != 3*firstSize-10 || u.Max != 4*firstSize || u.Bytes < u.Entries*40 {
			t.Errorf("%+v", u)
		}
		if u := all["node_addrs"]; u.Entries != 1 || u.Max != firstSize {
			t.Errorf("%+v", u)
		}
		if u := all["frontends"]; u.Entries != 0 || u.Max != firstSize {
			t.Errorf("%+v", u)
		}
	}
	verify(n.conn)
	other := n.open() // as another run of the program
	if _, err := other.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := other.Write(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	verify(other)
}

// Of the maps that programs write, Usage counts those that do not evict.
func TestUsageOfSockets(t *testing.T) {
	n := dns(t)
	for range 3 {
		n.with(unix.AF_INET, func(s *socket) error {
			if _, _, err := s.ask(dns4); err != nil {
				return err
			}
			other, err := openSocket(unix.AF_INET)
			if err != nil {
				return err
			}
			defer other.close()
			if err := other.connect(dns4); err != nil {
				return err
			}
			if u := n.usage(n.conn)[sockMapUDPSockets]; u.Entries != 1 || u.Max != 65536 {
				return fmt.Errorf("%+v", u)
			}
			return nil
		})
	}
	all := n.usage(n.conn)
	for name, want := range map[string]int{
		sockMapUDPSockets: 0, "udp_choices": -1, sockMapCounts: -1, "connections": -1, sockMapLoads: 0,
		sockMapClients: 0,
	} {
		if all[name].Entries != want || all[name].Max == 0 || all[name].Bytes <= 0 {
			t.Errorf("%+v, want %d entries", all[name], want)
		}
	}
	fill(t, n.conn.maps[sockMapUDPSockets])
	if u := n.usage(n.conn)[sockMapUDPSockets]; u.Entries != u.Max {
		t.Errorf("full: %+v", u)
	}
}

// BenchmarkUsage reports what a scrape costs at most.
func BenchmarkUsage(b *testing.B) {
	n := newNode(b)
	n.write()
	fill(b, n.conn.maps[sockMapUDPSockets])
	for b.Loop() {
		n.usage(n.conn)
	}
}
