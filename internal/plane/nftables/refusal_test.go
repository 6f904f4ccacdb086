package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

// withRoom is a kernel with so much room for one transaction.
type withRoom struct {
	Kernel
	room int
}

func (r withRoom) Room() int { return r.room }

// refusals looks at a fake kernel after each transaction of a plan: whatever
// address is refused, all frontends it had before the plan and loses, or has after it
// and gains, are there.
type refusals struct {
	*nft.Fake
	layout        layout
	before, after map[nft.Table]*nft.State

	last   map[nft.Table]*nft.State // after the last transaction
	writes int                      // transactions that changed frontends or what is refused
	shared bool                     // one of them did both, of the same address
	served int                      // transactions after which there were frontends and nothing was refused
	err    error
}

// begin notes what is there, and what will be.
func (r *refusals) begin(t *testing.T, to route.Change, families []route.Family) {
	t.Helper()
	next := nft.NewFake()
	load(t, next, to, families...)
	r.layout = newLayout()
	r.before, r.after, r.last = maps.Clone(r.Tables), next.Tables, maps.Clone(r.Tables)
	r.writes, r.shared, r.served = 0, false, 0
}

// Commit is that of the Fake, which makes a new state and leaves the last as it is.
func (r *refusals) Commit(ctx context.Context, tx *nft.Tx) error {
	if err := r.Fake.Commit(ctx, tx); err != nil {
		return err
	}
	changed := false
	for _, table := range bothTables {
		now, last := tableOf(r.Tables, table), tableOf(r.last, table)
		changed = changed || r.differ(now, last)
		if frontends := r.frontends(now); len(frontends) > 0 && len(r.refused(now)) == 0 {
			r.served++
		}
		for _, e := range r.refused(now) {
			r.err = cmp.Or(r.err, r.covers(table, e, now))
			r.shared = r.shared || (!slices.Contains(r.refused(last), e) && len(lacking(e, r.frontends(now), r.frontends(last))) > 0)
		}
	}
	if changed {
		r.writes++
	}
	r.last = maps.Clone(r.Tables)
	return nil
}

// covers wants the frontends to be there that come or go with a refusal.
func (r *refusals) covers(table nft.Table, e nft.Element, now *nft.State) error {
	before, after := tableOf(r.before, table), tableOf(r.after, table)
	had, has := slices.Contains(r.refused(before), e), slices.Contains(r.refused(after), e)
	want := after
	switch {
	case had && has:
		return nil
	case !had && !has:
		return fmt.Errorf("%s: %x is refused and should never be", table, e.Key)
	case had:
		want = before
	}
	if missing := lacking(e, r.frontends(want), r.frontends(now)); len(missing) > 0 {
		return fmt.Errorf("%s: %x is refused, but %d frontends there are missing", table, e.Key, len(missing))
	}
	return nil
}

func tableOf(tables map[nft.Table]*nft.State, t nft.Table) *nft.State {
	if s := tables[t]; s != nil {
		return s
	}
	return &nft.State{}
}

func (r *refusals) frontends(s *nft.State) map[string]nft.Element {
	return s.Sets[r.layout.spaces[byAddress].frontends.Name].Elements
}

// refused lists the addresses, and ranges of them, that are refused. An address
// is a range that ends with itself.
func (r *refusals) refused(s *nft.State) []nft.Element {
	var all []nft.Element
	for _, e := range s.Sets[r.layout.clusterIPs.Name].Elements {
		all = append(all, nft.Element{Key: e.Key, End: e.Key + "\x00"})
	}
	for _, e := range s.Sets[r.layout.serviceCIDRs.Name].Elements {
		all = append(all, nft.Element{Key: e.Key, End: e.End})
	}
	return all
}

func (r *refusals) differ(a, b *nft.State) bool {
	byKey := func(list []nft.Element) map[nft.Element]bool {
		m := map[nft.Element]bool{}
		for _, e := range list {
			m[e] = true
		}
		return m
	}
	return !maps.Equal(r.frontends(a), r.frontends(b)) || !maps.Equal(byKey(r.refused(a)), byKey(r.refused(b)))
}

// lacking lists the frontends in a range that are not there. No end is the end of
// all addresses.
func lacking(e nft.Element, want, have map[string]nft.Element) []string {
	var missing []string
	for key := range want {
		addr := key[:len(e.Key)]
		if _, ok := have[key]; !ok && addr >= e.Key && (e.End == "" || addr < e.End) {
			missing = append(missing, key)
		}
	}
	return missing
}

// However a change is cut, nothing is refused whose frontends are still to come or
// already gone; and where it is cut, the frontends do not share a transaction with
// the refusals they come with.
func TestRefusalsComeAfterFrontendsAndGoBeforeThem(t *testing.T) {
	cut := 0
	for seed := range uint64(5) {
		w := planetest.NewWorld(rand.New(rand.NewPCG(seed, 1)))
		opt := w.Options()
		compiler, families := route.NewCompiler(opt), opt.Families
		kernel := &refusals{Fake: nft.NewFake()}
		p := newPlane(kernel, families...)
		for turn := range 40 {
			for range 1 + w.IntN(12) {
				w.Change()
			}
			change, _ := compiler.Compile(w.Store.Take())
			if turn == 0 || w.Chance(5) {
				if err := p.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			kernel.Space = planetest.Pick(w.Rand, 2000, 5000, 24000, 1<<20)
			kernel.begin(t, route.Change{Table: change.Table}, families)
			plan := p.Plan(change)
			if err := plan.Apply(t.Context()); err != nil {
				t.Fatal(err)
			}
			if kernel.writes > 1 {
				cut++
			}
			if kernel.err != nil || kernel.writes > 1 && kernel.shared {
				t.Fatalf("seed %d, turn %d: %d writes, together: %t, %v\n%.3000s", seed, turn, kernel.writes, kernel.shared, kernel.err, plan)
			}
		}
	}
	if cut < 20 {
		t.Errorf("%d changes were cut, want more to look at", cut)
	}
}

// A first load that is too large for one transaction serves before it refuses.
func TestFirstLoadInPiecesServesBeforeItRefuses(t *testing.T) {
	kernel := &refusals{Fake: nft.NewFake()}
	kernel.Space = 20_000
	change := route.Change{Table: crowd(300)}
	kernel.begin(t, change, []route.Family{route.IPv4})
	load(t, kernel, change, route.IPv4)
	if kernel.err != nil || kernel.shared {
		t.Errorf("together: %t, %v", kernel.shared, kernel.err)
	}
	if kernel.served < 3 {
		t.Errorf("%d transactions with frontends before the first refusal, want several", kernel.served)
	}
	settled(t, kernel, change.Table, route.IPv4)
}

// The order costs nothing where there is room.
func TestRefusalsCostNoTransaction(t *testing.T) {
	table, fake := crowd(10), nft.NewFake()
	p := load(t, fake, route.Change{Table: table}, route.IPv4)
	one := member(10, 0, 1, 2)
	host := table.Host
	for _, c := range []struct {
		name   string
		change route.Change
		want   int
	}{
		{"a Service comes", route.Change{Touched: []route.Touch{{Name: one.Name, New: one}}}, 2},
		{"a Service goes", route.Change{Touched: []route.Touch{{Name: one.Name, Old: one}}}, 2},
		{"the ServiceCIDR is another", route.Change{OldHost: &host}, 1},
	} {
		c.change.Table = table
		if c.change.OldHost != nil {
			table.Host.ServiceCIDRs = planetest.Prefixes("172.16.0.0/11")
		}
		before := fake.Commits
		if err := p.Plan(c.change).Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := fake.Commits - before; n != c.want {
			t.Errorf("%s: %d transactions, want %d", c.name, n, c.want)
		}
	}
	settled(t, fake, table, route.IPv4)
}

// Connections that another proxy's rules serve meet no refusal while the tables
// are filled in pieces: first they are served there, then here. Refused or dropped,
// a program would send its first packet again.
func TestFirstLoadInPiecesRefusesNobody(t *testing.T) {
	const services = 4000
	conn, netns := realKernel(t)
	other := `add table ip other
add chain ip other first { type filter hook output priority -300; }
add rule ip other first tcp flags & (syn | ack) == syn counter
add chain ip other output { type nat hook output priority -90; }
add rule ip other output ip daddr 172.16.0.0/12 tcp dport 80 dnat to 10.0.0.1:8080
`
	if out, err := runNft(t, netns, other, "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	listen(t, netns)
	p := New(withRoom{conn, 100_000}, Options{Families: []route.Family{route.IPv4}, Mark: testMark})
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	plan := p.Plan(route.Change{Table: crowd(services)})
	loaded := make(chan error, 1)
	connected := 0
	kerneltest.Do(t, netns, func() error {
		go func() { loaded <- plan.Apply(t.Context()) }()
		for {
			select {
			case err := <-loaded:
				return err
			default:
			}
			if err := dial(connected * 7919 % services); err != nil {
				return errors.Join(fmt.Errorf("after %d connections: %w", connected, err), <-loaded)
			}
			connected++
		}
	})
	if connected < 50 {
		t.Errorf("%d connections during the load, want more to look at", connected)
	}
	out, err := runNft(t, netns, "", "list", "chain", "ip", "other", "first")
	if want := fmt.Sprintf("counter packets %d ", connected); err != nil || !strings.Contains(out, want) {
		t.Errorf("%v\n%s\nwant as many packets as connections, %d", err, out, connected)
	}
	settled(t, conn, crowd(services), route.IPv4)
}

// listen takes connections to all backends, and sends those to services on their way.
func listen(t *testing.T, netns int) {
	t.Helper()
	var l net.Listener
	kerneltest.Do(t, netns, func() error {
		for _, line := range []string{"route add local 10.0.0.0/8 dev lo", "route add 172.16.0.0/12 dev lo"} {
			if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", line, err, out)
			}
		}
		var err error
		l, err = net.Listen("tcp4", "0.0.0.0:8080")
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			_ = c.Close()
		}
	}()
}

// dial connects to the i-th service from this thread.
func dial(i int) error {
	to := member(i).Ports[0].Frontends[0]
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.Dial("tcp4", netip.AddrPortFrom(to.Addr, to.Port).String())
	if err != nil {
		return err
	}
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	return c.Close()
}
