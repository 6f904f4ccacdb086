package ipvs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// The tests of this file need a kernel with IPVS: test/uml runs them on one.
func kernel(t *testing.T) (*Table, int) {
	t.Helper()
	kerneltest.NeedIPVS(t)
	netns := kerneltest.Namespace(t)
	return New(netns), netns
}

func apply(t *testing.T, table *Table, changes ...Command) {
	t.Helper()
	if err := table.Apply(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
}

func servers(t *testing.T, table *Table) []Listed {
	t.Helper()
	got, err := table.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b Listed) int { return cmp.Compare(a.String(), b.String()) })
	return got
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := gocmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestServersAndDestinationsAreWrittenAndListed(t *testing.T) {
	table, netns := kernel(t)
	tcp4, tcp6 := server(unix.IPPROTO_TCP, "10.96.0.1:80"), server(unix.IPPROTO_TCP, "[fd00::1]:443")
	udp, sctp := server(unix.IPPROTO_UDP, "10.96.0.10:53"), server(unix.IPPROTO_SCTP, "10.96.0.10:53")
	mark4, mark6 := Server{Addr: netip.IPv4Unspecified(), Mark: 0xb5000007}, Server{Addr: netip.IPv6Unspecified(), Mark: 7}
	want := []Listed{
		{Server: mark4, Settings: Settings{Scheduler: "rr", Affinity: time.Minute}},
		{Server: mark6, Settings: Settings{Scheduler: "rr"}},
		{Server: sctp, Settings: Settings{Scheduler: "rr"}},
		{Server: tcp4, Settings: Settings{Scheduler: "mh", Ports: true}},
		{Server: tcp6, Settings: Settings{Scheduler: "wrr", Affinity: 3 * time.Hour}},
		{Server: udp, Settings: Settings{Scheduler: "lc"}},
	}
	for range 2 { // the second time everything exists
		for _, s := range want {
			apply(t, table, Command{Op: Set, Server: s.Server, Settings: s.Settings})
		}
	}
	same(t, "servers", want, servers(t, table))

	dest := func(text string, weight uint32) Destination {
		return Destination{At: netip.MustParseAddrPort(text), Weight: weight}
	}
	for _, d := range []Destination{dest("10.0.0.1:8080", 1), dest("10.0.0.2:8080", 7), dest("10.0.0.1:8080", 0)} {
		apply(t, table, Command{Op: SetDest, Server: tcp4, Dest: d})
	}
	apply(t, table, Command{Op: SetDest, Server: tcp6, Dest: dest("[fd00::2]:8443", 1)},
		Command{Op: SetDest, Server: mark4, Dest: dest("10.0.0.3:1", 1)})
	got, err := table.Destinations(t.Context(), tcp4, tcp6, mark4, mark6, server(unix.IPPROTO_TCP, "10.9.9.9:9"))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got[0], func(a, b Destination) int { return a.At.Compare(b.At) })
	same(t, "destinations", [][]Destination{
		{dest("10.0.0.1:8080", 0), dest("10.0.0.2:8080", 7)}, {dest("[fd00::2]:8443", 1)}, {dest("10.0.0.3:1", 1)}, {}, {},
	}, got)
	kerneltest.Do(t, netns, func() error { // what the kernel itself prints
		text, err := os.ReadFile("/proc/thread-self/net/ip_vs")
		for _, line := range []string{
			"TCP  0A600001:0050 mh", "-> 0A000002:1F90      Masq    7", "FWM  B5000007 rr persistent ",
			"TCP  [fd00:0000:0000:0000:0000:0000:0000:0001]:01BB wrr persistent ",
		} {
			if !strings.Contains(string(text), line) {
				t.Errorf("%q is not in\n%s", line, text)
			}
		}
		return err
	})

	for range 2 { // the second deletion has no effect
		apply(t, table, Command{Op: DeleteDest, Server: tcp4, Dest: dest("10.0.0.2:8080", 0)},
			Command{Op: Delete, Server: mark4}, Command{Op: Delete, Server: tcp6})
	}
	same(t, "servers", []Listed{want[1], want[2], want[3], want[5]}, servers(t, table))
	if got, err = table.Destinations(t.Context(), tcp4); err != nil || len(got[0]) != 1 {
		t.Errorf("destinations: %v, %v", got, err)
	}
}

// Many changes at once: the first time all is new, then every second destination exists, and at
// last one change is refused.
func TestManyChanges(t *testing.T) {
	table, _ := kernel(t)
	s := server(unix.IPPROTO_TCP, "10.96.0.1:80")
	const n = 300
	dests := func(step int, weight uint32) []Command {
		list := []Command{{Op: Set, Server: s, Settings: Settings{Scheduler: "rr"}}}
		for i := 0; i < n; i += step {
			at := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i+1))
			list = append(list, Command{Op: SetDest, Server: s, Dest: Destination{At: at, Weight: weight}})
		}
		return list
	}
	check := func(weight uint32) {
		t.Helper()
		got, err := table.Destinations(t.Context(), s)
		if err != nil || len(got[0]) != n {
			t.Fatalf("%d destinations, %v, want %d", len(got[0]), err, n)
		}
		for _, d := range got[0] {
			if d.Weight != weight {
				t.Errorf("%s has weight %d, want %d", d.At, d.Weight, weight)
			}
		}
	}
	apply(t, table, dests(2, 1)...)
	apply(t, table, dests(1, 3)...)
	check(3)
	refused := dests(1, 5)
	refused[200].Server.Port = 81
	err := table.Apply(t.Context(), refused)
	if want := "ipvs -a -t 10.96.0.1:81 -r 10.0.0.1:200 -m -w 5: "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s...", err, want)
	}
	apply(t, table, dests(1, 7)...)
	check(7)
}

// What exists is edited, and what does not is added, whatever was expected.
func TestExpectationsMayBeWrong(t *testing.T) {
	table, _ := kernel(t)
	at := server(unix.IPPROTO_TCP, "10.96.0.1:80")
	for _, exists := range []bool{true, false, true} { // the first time it does not exist, then it does
		for weight := range uint32(2) {
			dest := Destination{At: netip.MustParseAddrPort("10.0.0.1:8080"), Weight: weight}
			changes := []Command{
				{Op: Set, Server: at, Settings: Settings{Scheduler: "rr"}, Exists: exists},
				{Op: SetDest, Server: at, Dest: dest, Exists: exists},
			}
			apply(t, table, changes...)
			for _, c := range changes {
				apply(t, table, c)
			}
			if got, err := table.Destinations(t.Context(), at); err != nil || len(got[0]) != 1 || got[0][0] != dest {
				t.Errorf("exists %t: destinations %v, %v", exists, got, err)
			}
		}
	}
	gone := server(unix.IPPROTO_TCP, "10.96.0.2:80")
	err := table.Apply(t.Context(), []Command{
		{Op: SetDest, Server: gone, Dest: Destination{At: netip.MustParseAddrPort("10.0.0.1:8080")}, Exists: true},
	})
	if err == nil || !strings.Contains(err.Error(), "the virtual server does not exist") {
		t.Errorf("got %v", err)
	}
}

func TestEverySchedulerOfTheKernelIsAccepted(t *testing.T) {
	table, _ := kernel(t)
	s := server(unix.IPPROTO_TCP, "10.96.0.1:80")
	for _, name := range []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf"} {
		apply(t, table, Command{Op: Set, Server: s, Settings: Settings{Scheduler: name}})
		if got := servers(t, table); len(got) != 1 || got[0].Scheduler != name {
			t.Errorf("%s: %v", name, got)
		}
	}
	err := table.Apply(t.Context(), []Command{{Op: Set, Server: s, Settings: Settings{Scheduler: "best"}}})
	if !errors.Is(err, ErrScheduler) ||
		err.Error() != `ipvs -A -t 10.96.0.1:80 -s best: this kernel does not have the scheduler: "best"` {
		t.Errorf("an unknown scheduler: %v", err)
	}
	err = table.Apply(t.Context(), []Command{{
		Op: SetDest, Server: server(unix.IPPROTO_TCP, "10.96.0.2:80"),
		Dest: Destination{At: netip.MustParseAddrPort("10.0.0.1:1")},
	}})
	if !errors.Is(err, unix.ESRCH) {
		t.Errorf("a destination of no server: %v", err)
	}
}

// A connection counts while it is open, and for some time after it is closed.
func TestConnectionsAreCounted(t *testing.T) {
	table, netns := kernel(t)
	at, idle := server(unix.IPPROTO_TCP, "127.0.0.2:80"), server(unix.IPPROTO_TCP, "127.0.0.3:80")
	for _, s := range []Server{at, idle} {
		apply(t, table, Command{Op: Set, Server: s, Settings: Settings{Scheduler: "rr"}},
			Command{Op: SetDest, Server: s, Dest: Destination{At: netip.MustParseAddrPort("127.0.0.1:8080"), Weight: 1}})
	}
	var ends []io.Closer
	kerneltest.Do(t, netns, func() error {
		l, err := net.Listen("tcp", "127.0.0.1:8080")
		if err != nil {
			return err
		}
		c, err := net.Dial("tcp", "127.0.0.2:80")
		ends = append(ends, l, c)
		return err
	})
	for s, want := range map[Server]int{at: 1, idle: 0} {
		if n, err := table.Connections(t.Context(), s); err != nil || n != want {
			t.Errorf("%s has %d connections, %v; want %d", s, n, err, want)
		}
	}
	got, err := table.Destinations(t.Context(), at)
	if err != nil || len(got[0]) != 1 || got[0][0].Active != 1 {
		t.Errorf("destinations: %v, %v", got, err)
	}
	stats := map[Server]Stats{}
	for deadline := time.Now().Add(time.Minute); stats[at].Connections == 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
		listed, err := table.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range listed {
			stats[l.Server] = l.Stats
		}
	}
	// A handshake is two packets of 40 bytes or more from the client.
	if s := stats[at]; s.Connections != 1 || s.Received < 80 || s.Sent < 40 || stats[idle] != (Stats{}) {
		t.Errorf("counted: %+v", stats)
	}
	for _, e := range ends {
		_ = e.Close()
	}
}

// timeouts returns the timeouts in force.
func timeouts(t *testing.T, table *Table) (got Timeouts) {
	t.Helper()
	const cmdGetConfig = 13
	err := table.session(t.Context(), func(s *session) error {
		answers, err := s.execute(t.Context(), cmdGetConfig, 0, nil)
		for _, m := range answers {
			err = errors.Join(err, nl.Decode(m, binary.NativeEndian, func(ad *netlink.AttributeDecoder) {
				seconds := func() time.Duration { return time.Duration(ad.Uint32()) * time.Second }
				switch ad.Type() {
				case attrTCP:
					got.TCP = seconds()
				case attrTCPFin:
					got.TCPFin = seconds()
				case attrUDP:
					got.UDP = seconds()
				}
			}))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestTimeoutsAreSet(t *testing.T) {
	table, _ := kernel(t)
	if got := timeouts(t, table); got != (Timeouts{15 * time.Minute, 2 * time.Minute, 5 * time.Minute}) {
		t.Errorf("the kernel's own: %v", got)
	}
	if err := table.SetTimeouts(t.Context(), Timeouts{TCP: time.Hour, UDP: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if got := timeouts(t, table); got != (Timeouts{time.Hour, 2 * time.Minute, time.Minute}) {
		t.Errorf("got %v", got)
	}
}

func TestLoadFindsIPVS(t *testing.T) {
	table, _ := kernel(t)
	if err := table.Load(t.Context()); err != nil {
		t.Error(err)
	}
}
