package fair

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"testing/quick"
)

// owned is a flow of a test.
type owned struct {
	Seat
	name string
}

func (o *owned) Evict(any) {}

// table is shares with named flows.
type table struct {
	*Shares
	t     *testing.T
	flows map[string]*owned
}

func newTable(t *testing.T, limit int) *table {
	t.Helper()
	return &table{Shares: New(Options{Limit: int64(limit), Idle: 100}), t: t, flows: map[string]*owned{}}
}

// connect opens flow n of a client. It returns the name of the flow that ended for it, "refused" if none could, and
// "" if none had to.
func (b *table) connect(client byte, n int, now int64) string {
	b.t.Helper()
	return b.begin(fmt.Sprintf("%d/%d", client, n), netip.AddrFrom4([4]byte{10, 0, 0, client}), now)
}

// begin opens a flow with a name, like connect.
func (b *table) begin(name string, client netip.Addr, now int64) string {
	b.t.Helper()
	o := &owned{name: name}
	o.Owner = o
	evicted, ok := b.Take(client, &o.Seat, now)
	if !ok {
		return "refused"
	}
	b.flows[o.name] = o
	b.check()
	if evicted == nil {
		return ""
	}
	displaced := evicted.Owner.(*owned).name
	delete(b.flows, displaced)
	return displaced
}

// check verifies the sums.
func (b *table) check() {
	b.t.Helper()
	sum, most := 0, 0
	for _, c := range b.clients {
		sum += c.count
		most = max(most, c.count)
		inside := 0
		for _, a := range c.clients {
			inside += a.count
		}
		if c.count == 0 || len(c.clients) > 0 && inside != c.count {
			b.t.Errorf("a client with %d flows, %d of them of its addresses", c.count, inside)
		}
	}
	if total, limit := int(b.open), int(b.opt.Limit); sum != total || most != b.most || total > limit {
		b.t.Errorf("%d flows of at most %d for a client, counted %d and %d, limit %d", sum, most, total, b.most, limit)
	}
}

// A client with all flows loses those that it has not used for longest, until the others have their share.
func TestHogLosesFlows(t *testing.T) {
	b := newTable(t, 4)
	for i := range 4 {
		if got := b.connect(1, i, int64(i)); got != "" {
			t.Fatalf("flow %d: %s", i, got)
		}
	}
	b.flows["1/0"].Used.Store(10) // 1/1 is the oldest then
	if got := b.connect(2, 0, 11); got != "1/1" {
		t.Errorf("displaced %q, want 1/1", got)
	}
	if got := b.connect(2, 1, 12); got != "1/2" {
		t.Errorf("displaced %q, want 1/2", got)
	}
	// Both have two flows that are in use.
	for _, client := range []byte{1, 2} {
		if got := b.connect(client, 9, 13); got != "refused" {
			t.Errorf("client %d displaced %q, want it refused", client, got)
		}
	}
	// A third client has none, so it gets one of the two of client 1, which reached its number first.
	if got := b.connect(3, 0, 14); got != "1/3" {
		t.Errorf("displaced %q, want 1/3", got)
	}
	// It gets a second one only if one of those with two has an idle one.
	if got := b.connect(3, 1, 15); got != "refused" {
		t.Errorf("displaced %q, want it refused", got)
	}
	b.flows["2/0"].Used.Store(190)
	if got := b.connect(3, 1, 200); got != "2/1" {
		t.Errorf("displaced %q, want 2/1", got)
	}
}

// A resolver on one address asks in a new flow each time, and each is used once more, by the answer. An old flow ends
// for each new one.
func TestShortFlowsOfOneClient(t *testing.T) {
	const limit = 2500
	b := newTable(t, limit)
	b.opt.Idle = 600 // so 1,900 of them are always idle
	for n := range 4 * limit {
		now := int64(n)
		if got := b.connect(1, n, now); got == "refused" {
			t.Fatalf("flow %d is refused", n)
		}
		b.flows[fmt.Sprintf("1/%d", n)].Used.Store(now + 1)
	}
}

// Many clients with one flow each: an idle one ends for a new client, one in use does not.
func TestFloodOfClients(t *testing.T) {
	b := newTable(t, 10)
	for i := range 10 {
		b.connect(byte(i), 0, 0)
	}
	b.flows["0/0"].Used.Store(150)
	for i := range 9 {
		if got := b.connect(byte(100+i), 0, 160); got == "0/0" || got == "refused" || got == "" {
			t.Errorf("displaced %q, want an idle flow", got)
		}
	}
	if got := b.connect(200, 0, 161); got != "refused" {
		t.Errorf("displaced %q, want it refused: all flows are in use", got)
	}
}

// Released flows make room, and a flow can be released twice.
func TestRelease(t *testing.T) {
	b := newTable(t, 2)
	b.connect(1, 0, 0)
	b.connect(1, 1, 0)
	b.Release(&b.flows["1/0"].Seat)
	b.Release(&b.flows["1/0"].Seat)
	b.check()
	if got := b.connect(2, 0, 0); got != "" {
		t.Errorf("displaced %q, want free room", got)
	}
	if newTable(t, 0).connect(1, 0, 0) != "refused" {
		t.Error("a limit of 0 admits a flow")
	}
}

// A network of IPv6 is one client, with however many addresses; inside of it, its addresses are.
func TestNetworksShare(t *testing.T) {
	b := newTable(t, 4)
	address := netip.MustParseAddr
	for i := range 4 {
		b.begin(fmt.Sprint("attacker/", i), address(fmt.Sprintf("2001:db8::%d", i+1)), int64(i))
	}
	for i := range 2 {
		got, want := b.begin(fmt.Sprint("other/", i), address("2001:db8:0:1::1"), 10), fmt.Sprint("attacker/", i)
		if got != want {
			t.Errorf("displaced %q, want %s", got, want)
		}
	}
	if got := b.begin("attacker", address("2001:db8::99"), 11); got != "refused" {
		t.Errorf("displaced %q, want it refused", got)
	}
	b = newTable(t, 4)
	for i := range 4 {
		b.begin(fmt.Sprint("hog/", i), address("fd00::1"), int64(i))
	}
	for i := range 2 {
		if got, want := b.begin(fmt.Sprint("neighbor/", i), address("fd00::2"), 10), fmt.Sprint("hog/", i); got != want {
			t.Errorf("displaced %q, want %s", got, want)
		}
	}
	for _, o := range b.flows {
		b.Release(&o.Seat)
	}
	if len(b.clients) != 0 {
		t.Errorf("%d clients without flows", len(b.clients))
	}
}

// Whatever happens, the sums are right and the limit holds; a client that asks for one flow while
// another has more than one gets it.
func TestSharesAlways(t *testing.T) {
	one := func(steps []uint16) bool {
		b := newTable(t, 16)
		for i, step := range steps {
			client := byte(step % 7)
			if step%5 == 0 {
				for _, o := range b.flows {
					b.Release(&o.Seat)
					delete(b.flows, o.name)
					break
				}
				b.check()
				continue
			}
			hog := b.most > 1
			none := b.clients[netip.AddrFrom4([4]byte{10, 0, 0, client})] == nil
			if got := b.connect(client, i, int64(i)); got == "refused" && hog && none {
				t.Logf("client %d was refused although one has %d flows", client, b.most)
				return false
			}
		}
		return true
	}
	if err := quick.Check(one, &quick.Config{MaxCount: 2000}); err != nil {
		t.Error(err)
	}
}

// With Always a new flow ends another one even if all are in use: the oldest of its client, if that has as many as
// any other.
func TestAlways(t *testing.T) {
	b := newTable(t, 3)
	b.opt = Options{Limit: 3, Idle: math.MaxInt64, Always: true}
	for client := byte(1); client <= 3; client++ {
		b.connect(client, 0, int64(client))
	}
	if got := b.connect(2, 1, 10); got != "2/0" {
		t.Errorf("displaced %q, want the flow of the same client", got)
	}
	if got := b.connect(4, 0, 11); got != "1/0" {
		t.Errorf("displaced %q, want one of another client", got)
	}
}

// BenchmarkTake measures a new flow while the table is full.
func BenchmarkTake(b *testing.B) {
	s := New(Options{Limit: 20000})
	flows := make([]owned, b.N)
	for i := range b.N {
		flows[i].Owner = &flows[i]
		s.Take(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), &flows[i].Seat, int64(i))
	}
}
