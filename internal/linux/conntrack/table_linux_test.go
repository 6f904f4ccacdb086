package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/testing/conntracktest"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// table is the common interface of the kernel's table and the fake.
type table interface {
	Create(conntrack.Entry) error
	Each(context.Context, conntrack.Filter, func(conntrack.Entry) error) error
	Delete(context.Context, conntrack.Entry) error
	Get(context.Context, conntrack.Entry) (conntrack.Entry, bool, error)
}

// both runs a test against the kernel and against the fake, which must behave in the same way.
func both(t *testing.T, test func(*testing.T, table)) {
	t.Run("kernel", func(t *testing.T) { test(t, conntracktest.Open(t)) })
	t.Run("fake", func(t *testing.T) { test(t, &conntracktest.Table{}) })
}

// flow returns an entry from src to dst, translated to via.
func flow(protocol uint8, src, dst, via string) conntrack.Entry {
	e := conntrack.Entry{
		Protocol: protocol,
		OrigSrc:  netip.MustParseAddrPort(src),
		OrigDst:  netip.MustParseAddrPort(dst),
		ReplySrc: netip.MustParseAddrPort(via),
	}
	e.ReplyDst = e.OrigSrc
	return e
}

func zoned(zone uint16, e conntrack.Entry) conntrack.Entry {
	e.Zone = zone
	return e
}

func in(s conntrack.State, e conntrack.Entry) conntrack.Entry {
	e.State = s
	return e
}

func answered(e conntrack.Entry) conntrack.Entry {
	e.Status |= conntrack.Answered
	return e
}

func create(t testing.TB, ct table, entries ...conntrack.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := ct.Create(e); err != nil {
			t.Fatal(err)
		}
	}
}

func list(t *testing.T, ct table, f conntrack.Filter) []conntrack.Entry {
	t.Helper()
	var got []conntrack.Entry
	err := ct.Each(t.Context(), f, func(e conntrack.Entry) error {
		got = append(got, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func lines(entries []conntrack.Entry) []string {
	s := []string{}
	for _, e := range entries {
		s = append(s, e.String())
	}
	slices.Sort(s)
	return s
}

// A filter selects exactly the matching entries, in both families.
func TestEach(t *testing.T) {
	const (
		dns4     = "17 10.0.0.1:1000 > 10.96.0.10:53 via 10.1.0.1:5353"
		dns4b    = "17 10.0.0.2:1000 > 10.96.0.10:53 via 10.1.0.2:5353"
		plain4   = "17 10.0.0.3:1000 > 10.96.0.10:53"
		other4   = "17 10.0.0.1:1000 > 10.96.0.10:54 via 10.1.0.1:5353"
		node4    = "17 10.0.0.1:1000 > 192.0.2.1:53 via 10.1.0.1:5353"
		tcp4     = "6 10.0.0.1:1000 > 10.96.0.10:53 via 10.1.0.1:5353"
		opening4 = "6 10.0.0.2:1000 > 10.96.0.10:53"
		opening6 = "6 [fd00::1]:1000 > [fd96::10]:53 via [fd01::1]:5353"
		dns6     = "17 [fd00::1]:1000 > [fd96::10]:53 via [fd01::1]:5353"
		sctp4    = "132 10.0.0.1:1000 > 10.96.0.10:53 via 10.1.0.1:5353"
	)
	end := netip.MustParseAddrPort
	port := func(p uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, p) }
	udp4 := conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.UDP}
	udp6 := conntrack.Filter{Family: conntrack.IPv6, Protocol: conntrack.UDP}
	with := func(f conntrack.Filter, orig, reply netip.AddrPort) conntrack.Filter {
		f.OrigDst, f.ReplySrc = orig, reply
		return f
	}
	none := netip.AddrPort{}
	cases := []struct {
		filter conntrack.Filter
		want   []string
	}{
		{udp4, []string{dns4, node4, other4, dns4b, plain4}},
		{udp6, []string{dns6}},
		{conntrack.Filter{Family: conntrack.IPv4}, []string{dns4, node4, other4, dns4b, plain4, tcp4, opening4, sctp4}},
		{
			conntrack.Filter{Family: conntrack.IPv4, ReplySrc: end("10.1.0.1:0")},
			[]string{dns4, node4, other4, tcp4, sctp4},
		},
		{conntrack.Filter{Family: conntrack.IPv6, ReplySrc: end("[fd01::1]:0")}, []string{dns6, opening6}},
		{with(udp4, end("10.96.0.10:53"), none), []string{dns4, dns4b, plain4}},
		{with(udp4, port(53), none), []string{dns4, node4, dns4b, plain4}},
		{with(udp4, none, end("10.1.0.1:5353")), []string{dns4, node4, other4}},
		{with(udp4, end("10.96.0.10:53"), end("10.1.0.1:5353")), []string{dns4}},
		{with(udp4, end("10.96.0.10:53"), end("10.96.0.10:53")), []string{plain4}},
		{with(udp4, none, port(5353)), []string{dns4, node4, other4, dns4b}},
		{with(udp6, end("[fd96::10]:53"), none), []string{dns6}},
		{with(udp6, none, end("[fd01::1]:5353")), []string{dns6}},
		{with(udp6, end("[fd96::10]:53"), end("[fd01::2]:5353")), []string{}},
		{with(udp4, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 0), none), []string{node4}},
		{conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.TCP}, []string{tcp4, opening4}},
		{conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.TCP, Unanswered: true}, []string{opening4}},
		{conntrack.Filter{Protocol: conntrack.TCP, Unanswered: true}, []string{opening4, opening6}},
		{conntrack.Filter{Protocol: conntrack.TCP}, []string{opening4, tcp4, opening6}},
	}
	both(t, func(t *testing.T, ct table) {
		create(t, ct,
			flow(conntrack.UDP, "10.0.0.1:1000", "10.96.0.10:53", "10.1.0.1:5353"),
			flow(conntrack.UDP, "10.0.0.2:1000", "10.96.0.10:53", "10.1.0.2:5353"),
			flow(conntrack.UDP, "10.0.0.3:1000", "10.96.0.10:53", "10.96.0.10:53"),
			flow(conntrack.UDP, "10.0.0.1:1000", "10.96.0.10:54", "10.1.0.1:5353"),
			flow(conntrack.UDP, "10.0.0.1:1000", "192.0.2.1:53", "10.1.0.1:5353"),
			answered(flow(conntrack.TCP, "10.0.0.1:1000", "10.96.0.10:53", "10.1.0.1:5353")),
			flow(conntrack.TCP, "10.0.0.2:1000", "10.96.0.10:53", "10.96.0.10:53"),
			flow(conntrack.SCTP, "10.0.0.1:1000", "10.96.0.10:53", "10.1.0.1:5353"),
			flow(conntrack.UDP, "[fd00::1]:1000", "[fd96::10]:53", "[fd01::1]:5353"),
			flow(conntrack.TCP, "[fd00::1]:1000", "[fd96::10]:53", "[fd01::1]:5353"))
		for _, c := range cases {
			t.Run(c.filter.String(), func(t *testing.T) {
				slices.Sort(c.want)
				if d := cmp.Diff(c.want, lines(list(t, ct, c.filter))); d != "" {
					t.Errorf("entries (-want +got):\n%s", d)
				}
			})
		}
	})
}

// All fields of an entry are read back.
func TestEntry(t *testing.T) {
	masqueraded := flow(conntrack.UDP, "10.0.0.2:7", "10.96.0.1:53", "10.1.0.1:5353")
	masqueraded.ReplyDst = netip.MustParseAddrPort("192.0.2.1:4000")
	cases := []struct {
		name   string
		entry  conntrack.Entry
		status conntrack.Status
	}{
		{"plain", flow(conntrack.UDP, "10.0.0.1:7", "10.96.0.1:53", "10.96.0.1:53"), 0},
		{"translated", flow(conntrack.UDP, "10.0.0.1:8", "10.96.0.1:53", "10.1.0.1:5353"), conntrack.DstNAT},
		{"masqueraded", masqueraded, conntrack.DstNAT | conntrack.SrcNAT},
		{"zone", zoned(9, flow(conntrack.UDP, "10.0.0.1:7", "10.96.0.1:53", "10.1.0.9:5353")), conntrack.DstNAT},
		{"opening", in(conntrack.SynSent, flow(conntrack.TCP, "10.0.0.1:7", "10.96.0.1:53", "10.96.0.1:53")), 0},
		{
			"opening over SCTP", in(conntrack.CookieWait, flow(conntrack.SCTP, "10.0.0.1:7", "10.96.0.1:53", "10.96.0.1:53")), 0,
		},
		{"ipv6", flow(conntrack.UDP, "[fd00::1]:7", "[fd96::1]:53", "[fd01::1]:5353"), conntrack.DstNAT},
	}
	both(t, func(t *testing.T, ct table) {
		for _, c := range cases {
			create(t, ct, c.entry)
			got := list(t, ct, conntrack.Filter{
				Family: c.entry.Family(), Protocol: c.entry.Protocol,
				OrigDst: c.entry.OrigDst, ReplySrc: c.entry.ReplySrc,
			})
			i := slices.IndexFunc(got, func(e conntrack.Entry) bool {
				return e.OrigSrc == c.entry.OrigSrc && e.Zone == c.entry.Zone
			})
			if i < 0 {
				t.Fatalf("%s: not listed: %v", c.name, got)
			}
			if got[i].ID == 0 {
				t.Errorf("%s: no ID", c.name)
			}
			if s := got[i].Status & (conntrack.DstNAT | conntrack.SrcNAT); s != c.status {
				t.Errorf("%s: status %x, want %x", c.name, s, c.status)
			}
			got[i].ID, got[i].Status, got[i].Remaining = 0, 0, 0
			if got[i] != c.entry {
				t.Errorf("%s: got %+v, want %+v", c.name, got[i], c.entry)
			}
		}
	})
}

// Get returns the current state of one entry, but not the state of a newer entry that replaced it.
func TestGet(t *testing.T) {
	one := in(3, answered(flow(conntrack.TCP, "10.0.0.1:7", "10.96.0.1:53", "10.1.0.1:53")))
	all := conntrack.Filter{Family: conntrack.IPv4}
	both(t, func(t *testing.T, ct table) {
		create(t, ct, one, zoned(4, one))
		listed := list(t, ct, all)
		for _, e := range listed {
			got, exists, err := ct.Get(t.Context(), e)
			if got.Remaining = e.Remaining; err != nil || !exists || got != e {
				t.Errorf("got %+v, %t, %v, want %+v", got, exists, err, e)
			}
		}
		if err := ct.Delete(t.Context(), listed[0]); err != nil {
			t.Fatal(err)
		}
		if got, exists, err := ct.Get(t.Context(), listed[0]); exists || err != nil {
			t.Errorf("got %+v, %t, %v after the entry was deleted", got, exists, err)
		}
		if _, exists, err := ct.Get(t.Context(), listed[1]); !exists || err != nil {
			t.Errorf("the entry of the other zone: %t, %v", exists, err)
		}
		other := listed[1]
		other.ID++
		if got, exists, err := ct.Get(t.Context(), other); exists || err != nil {
			t.Errorf("got %+v, %t, %v for an earlier entry with the same addresses", got, exists, err)
		}
	})
}

// Delete deletes exactly the given entry.
func TestDelete(t *testing.T) {
	udp4 := conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.UDP}
	one := flow(conntrack.UDP, "10.0.0.1:7", "10.96.0.1:53", "10.1.0.1:53")
	both(t, func(t *testing.T, ct table) {
		create(t, ct, zoned(3, one),
			flow(conntrack.TCP, "10.0.0.1:7", "10.96.0.1:53", "10.1.0.1:53"),
			flow(conntrack.UDP, "10.0.0.1:8", "10.96.0.1:53", "10.1.0.1:53"))
		create(t, ct, one)

		var listed conntrack.Entry
		for _, e := range list(t, ct, udp4) {
			if e.OrigSrc == one.OrigSrc && e.Zone == 0 {
				listed = e
			}
		}
		newer := listed
		newer.ID ^= 0x5a5a5a5a
		for _, e := range []conntrack.Entry{newer, zoned(4, listed)} {
			if err := ct.Delete(t.Context(), e); err != nil {
				t.Errorf("delete a missing entry: %v", err)
			}
		}
		if got := list(t, ct, udp4); len(got) != 3 {
			t.Fatalf("the wrong entry was deleted, left: %v", lines(got))
		}
		for range 2 { // the second deletion of the same entry is not an error
			if err := ct.Delete(t.Context(), listed); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{
			"17 10.0.0.1:7 > 10.96.0.1:53 via 10.1.0.1:53 zone 3",
			"17 10.0.0.1:8 > 10.96.0.1:53 via 10.1.0.1:53",
		}
		if d := cmp.Diff(want, lines(list(t, ct, udp4))); d != "" {
			t.Errorf("left (-want +got):\n%s", d)
		}
		if tcp := list(t, ct, conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.TCP}); len(tcp) != 1 {
			t.Errorf("TCP entries: %v", tcp)
		}
	})
}

// Entries may be deleted during a listing, however many there are. A listing ends at the first error of the callback.
func TestEachWhileDeleting(t *testing.T) {
	const count = 3000
	udp4 := conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.UDP}
	both(t, func(t *testing.T, ct table) {
		for i := range count {
			src := fmt.Sprintf("10.0.%d.%d:7", i/250, i%250+1)
			create(t, ct, flow(conntrack.UDP, src, "10.96.0.1:53", "10.1.0.1:53"))
		}
		enough := errors.New("enough")
		seen := 0
		err := ct.Each(t.Context(), udp4, func(conntrack.Entry) error {
			seen++
			return enough
		})
		if !errors.Is(err, enough) || seen != 1 {
			t.Errorf("stopped with %v after %d", err, seen)
		}
		err = ct.Each(t.Context(), udp4, func(e conntrack.Entry) error {
			return ct.Delete(t.Context(), e)
		})
		if err != nil {
			t.Fatal(err)
		}
		if left := list(t, ct, udp4); len(left) != 0 {
			t.Errorf("%d entries left", len(left))
		}
	})
}

func TestErrors(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	nothing := func(conntrack.Entry) error { return nil }
	both(t, func(t *testing.T, ct table) {
		udp4 := conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.UDP}
		if err := ct.Each(cancelled, udp4, nothing); !errors.Is(err, context.Canceled) {
			t.Errorf("listing with a cancelled context: %v", err)
		}
		e := flow(conntrack.UDP, "10.0.0.1:7", "10.96.0.1:53", "10.96.0.1:53")
		if err := ct.Delete(cancelled, e); !errors.Is(err, context.Canceled) {
			t.Errorf("deletion with a cancelled context: %v", err)
		}
		create(t, ct, e)
		if err := ct.Create(e); err == nil {
			t.Error("the same entry was created twice")
		}
	})
}

// BenchmarkEach measures a listing among 100,000 entries, with and without a filter.
func BenchmarkEach(b *testing.B) {
	const count = 100_000
	ct := conntracktest.Open(b)
	for i := range count {
		src := fmt.Sprintf("10.%d.%d.%d:7", i/60000, i/250%240, i%250+1)
		create(b, ct, flow(conntrack.UDP, src, "10.96.0.1:53", fmt.Sprintf("10.200.0.%d:53", i%200+1)))
	}
	udp4 := conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.UDP}
	frontend, backend := udp4, udp4
	frontend.OrigDst = netip.MustParseAddrPort("10.96.0.2:53")
	backend.ReplySrc = netip.MustParseAddrPort("10.200.0.7:53")
	for _, c := range []struct {
		name   string
		filter conntrack.Filter
		want   int
	}{{"front", frontend, 0}, {"backend", backend, count / 200}, {"all", udp4, count}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			start := time.Now()
			for b.Loop() {
				n := 0
				if err := ct.Each(b.Context(), c.filter, func(conntrack.Entry) error { n++; return nil }); err != nil {
					b.Fatal(err)
				}
				if n != c.want {
					b.Fatalf("%d entries, want %d", n, c.want)
				}
			}
			b.ReportMetric(float64(time.Since(start).Milliseconds())/float64(b.N), "ms/listing")
		})
	}
}
