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
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// inPieces is a kernel with a limit of the size of one transaction. After each transaction it waits.
type inPieces struct {
	Kernel
	room int
	wait func(ctx context.Context) error
}

func (k inPieces) Room() int { return k.room }

func (k inPieces) Commit(ctx context.Context, tx *nft.Tx) error {
	if err := k.Kernel.Commit(ctx, tx); err != nil {
		return err
	}
	return k.wait(ctx)
}

// refusals verifies a fake kernel after each transaction of a plan: while an address is
// refused, all its frontends that the plan deletes or adds exist.
type refusals struct {
	*nft.Fake
	layout        *layout
	before, after map[nft.Table]*nft.State

	last   map[nft.Table]*nft.State // after the previous transaction
	writes int                      // transactions that changed frontends or refused addresses
	shared bool                     // one of them changed both for the same address
	served int                      // transactions after which frontends existed and no address was refused
	err    error
}

// begin records the state before a plan and the state after it.
func (r *refusals) begin(t *testing.T, to route.Change, families []route.Family) {
	t.Helper()
	next := nft.NewFake()
	load(t, next, to, families...)
	r.layout = newLayout()
	r.before, r.after = r.Copy(), next.Tables
	r.last = r.before
	r.writes, r.shared, r.served = 0, false, 0
}

// Commit implements Kernel.
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
			r.shared = r.shared ||
				(!slices.Contains(r.refused(last), e) && len(lacking(e, r.frontends(now), r.frontends(last))) > 0)
		}
	}
	if changed {
		r.writes++
	}
	r.last = r.Copy()
	return nil
}

// covers verifies that the frontends exist that come or go with a refused address.
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
		return fmt.Errorf("%s: %x is refused, but %d of its frontends are missing", table, e.Key, len(missing))
	}
	return nil
}

func tableOf(tables map[nft.Table]*nft.State, t nft.Table) *nft.State {
	if s := tables[t]; s != nil {
		return s
	}
	return &nft.State{}
}

func (r *refusals) frontends(s *nft.State) nft.Elements {
	return s.Sets[r.layout[frontendElement.in(byAddress)].Name].Elements
}

// refused returns the refused addresses and ranges. An address is a range that contains only itself.
func (r *refusals) refused(s *nft.State) []nft.Element {
	var all []nft.Element
	for _, e := range s.Sets[r.layout[clusterIPElement].Name].Elements.All() {
		all = append(all, nft.Element{Key: e.Key, End: e.Key + "\x00"})
	}
	for _, e := range s.Sets[r.layout[serviceCIDRElement].Name].Elements.All() {
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

// lacking returns the frontends in a range that do not exist. An empty End means the end of the address space.
func lacking(e nft.Element, want, have nft.Elements) []string {
	var missing []string
	for key := range want {
		addr := key[:len(e.Key)]
		if _, ok := have[key]; !ok && addr >= e.Key && (e.End == "" || addr < e.End) {
			missing = append(missing, key)
		}
	}
	return missing
}

// If a change takes several transactions, an address is refused only while its frontends exist, and frontends are not
// written in the same transaction as the refusals that belong to them.
func TestRefusalsComeAfterFrontendsAndGoBeforeThem(t *testing.T) {
	divided, want := 0, 0
	for seed := range seeds.Of(t, 5) {
		want += 4
		w := planetest.NewWorld(rand.New(rand.NewPCG(seed, 1)))
		opt := w.Options()
		compiler, families := route.NewCompiler(opt), opt.Families
		kernel := &refusals{Fake: nft.NewFake()}
		p := newPlane(kernel, families...)
		for round := range 40 {
			for range 1 + w.IntN(12) {
				w.Change()
			}
			change, _ := compiler.Compile(w.Store.Take())
			if round == 0 || w.Chance(5) {
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
				divided++
			}
			if kernel.err != nil || kernel.writes > 1 && kernel.shared {
				t.Fatalf("round %d: %d writes, together: %t, %v\n%.3000s", round, kernel.writes, kernel.shared, kernel.err, plan)
			}
		}
	}
	if divided < want {
		t.Errorf("%d changes took several transactions, want at least %d", divided, want)
	}
}

// A first load in several transactions adds frontends before it refuses addresses, also if it is planned in parts.
func TestFirstLoadInPiecesServesBeforeItRefuses(t *testing.T) {
	for _, perPart := range []int{servicesPerPart, 100} {
		kernel := &refusals{Fake: nft.NewFake()}
		kernel.Space = 20_000
		change := route.Change{Table: manyServices(300)}
		kernel.begin(t, change, []route.Family{route.IPv4})
		p := newPlane(kernel, route.IPv4)
		p.perPart = perPart
		planetest.Load(t, p, change)
		if kernel.err != nil || kernel.shared {
			t.Errorf("parts of %d: together: %t, %v", perPart, kernel.shared, kernel.err)
		}
		if kernel.served < 3 {
			t.Errorf("parts of %d: %d transactions with frontends before the first refusal, want several", perPart,
				kernel.served)
		}
		checkSettled(t, kernel, change.Table, route.IPv4)
	}
}

// Without a limit of the size, the order takes no further transaction.
func TestRefusalsTakeNoFurtherTransaction(t *testing.T) {
	table, fake := manyServices(10), nft.NewFake()
	p := load(t, fake, route.Change{Table: table}, route.IPv4)
	one := numberedService(10, 0, 1, 2)
	host := table.Host
	for _, c := range []struct {
		name   string
		change route.Change
		want   int
	}{
		{"a Service is added", route.Change{Touched: []route.Touch{{Name: one.Name, New: one}}}, 2},
		{"a Service is deleted", route.Change{Touched: []route.Touch{{Name: one.Name, Old: one}}}, 2},
		{"the ServiceCIDR changes", route.Change{OldHost: &host}, 1},
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
	checkSettled(t, fake, table, route.IPv4)
}

// While the tables are filled in several transactions, connections that rules of another proxy serve are not refused:
// they are served first there, then here. After a refusal or drop the client would send its first packet again.
func TestFirstLoadInPiecesRefusesNoConnection(t *testing.T) {
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
	var connected atomic.Int64
	severalMore := func(ctx context.Context) error {
		for enough := connected.Load() + 10; connected.Load() < enough && ctx.Err() == nil; {
			time.Sleep(time.Millisecond)
		}
		return ctx.Err()
	}
	p := New(inPieces{conn, 100_000, severalMore}, Options{Families: []route.Family{route.IPv4}, Mark: testMark})
	p.perPart = services / 4
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	plan := p.Plan(route.Change{Table: manyServices(services)})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	loaded := make(chan error, 1)
	kerneltest.Do(t, netns, func() error {
		go func() { loaded <- plan.Apply(ctx) }()
		for {
			select {
			case err := <-loaded:
				return err
			default:
			}
			n := connected.Load()
			if err := dial(int(n) * 7919 % services); err != nil {
				end()
				return errors.Join(fmt.Errorf("after %d connections: %w", n, err), <-loaded)
			}
			connected.Add(1)
		}
	})
	if n := connected.Load(); n < 50 {
		t.Errorf("%d connections during the load, want at least 50", n)
	}
	out, err := runNft(t, netns, "", "list", "chain", "ip", "other", "first")
	if want := fmt.Sprintf("counter packets %d ", connected.Load()); err != nil || !strings.Contains(out, want) {
		t.Errorf("%v\n%s\nwant as many packets as connections, %d", err, out, connected.Load())
	}
	checkSettled(t, conn, manyServices(services), route.IPv4)
}

// listen accepts connections to all backends, and routes those to Services.
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
	kerneltest.Serve(t, l, func(c net.Conn) { _ = c.Close() })
}

// dial connects to the i-th service from this thread.
func dial(i int) error {
	to := numberedService(i).Ports[0].Frontends[0]
	d := net.Dialer{Timeout: 30 * time.Second}
	c, err := d.Dial("tcp4", netip.AddrPortFrom(to.Addr, to.Port).String())
	if err != nil {
		return err
	}
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	return c.Close()
}
