package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
)

func nameOf(i int) cluster.Name { return cluster.Name{Name: fmt.Sprint("svc-", i)} }

// serving is a Service with one frontend and so many rows.
func serving(i, rows int) []testEntry {
	return (&service{rows: rows, frontends: []int{i}}).entries(fmt.Sprint("svc-", i))
}

// loaded is a ledger and a kernel with n Services of two rows each.
func loaded(t *testing.T, n int) (*Ledger[name, string], *fake) {
	t.Helper()
	k := newFake()
	l := newLedger()
	p := l.Compare(k, k.list())
	for i := range n {
		p.Service(nameOf(i), nil, serving(i, 2))
	}
	p.End()
	apply(t, p)
	k.log, k.writes, k.wroteMax = nil, 0, 0
	return l, k
}

func apply(t *testing.T, p plane.Plan) {
	t.Helper()
	if err := p.Apply(context.Background()); err != nil {
		t.Fatalf("%v\n%s", err, p)
	}
}

func want(t *testing.T, got, want string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// An entry is added before the entries that lead to it and removed after them, and a
// shared one is there as long as one Service needs it.
func TestOrder(t *testing.T) {
	l, k := loaded(t, 2)
	p := l.Change(k)
	p.Service(nameOf(0), serving(0, 2), serving(0, 1))
	p.End()
	want(t, p.String(), `add pool 1 pool
change frontend 0 pool:1 row:svc-0-0
empty row svc-0-1 
remove row svc-0-1 
`)
	apply(t, p)
	p = l.Change(k)
	p.Service(nameOf(0), serving(0, 1), nil)
	p.Service(nameOf(1), serving(1, 2), nil)
	p.End()
	want(t, p.String(), `remove refusal 0 
remove frontend 0 
remove frontend 1 
empty row svc-0-0 
empty row svc-1-0 
empty row svc-1-1 
remove row svc-0-0 
remove row svc-1-0 
remove row svc-1-1 
remove pool 1 
remove pool 2 
`)
	apply(t, p)
	if len(k.entries) != 0 || len(l.uses) != 0 {
		t.Errorf("left in the kernel %v, in the ledger %v", k.entries, l.uses)
	}
}

// A frontend that moves to another Service changes in place.
func TestMove(t *testing.T) {
	l, k := loaded(t, 1)
	p := l.Change(k)
	p.Service(nameOf(0), serving(0, 2), nil)
	p.Service(nameOf(5), nil, (&service{rows: 1, frontends: []int{0}}).entries("svc-5"))
	p.End()
	apply(t, p)
	if text := strings.Join(k.log, ""); !strings.Contains(text, "change frontend 0 pool:1 row:svc-5-0\n") ||
		strings.Contains(text, "remove frontend") {
		t.Errorf("the frontend does not move in place:\n%s", text)
	}
}

// A plan that is not applied, or whose write fails, changes nothing in the ledger.
func TestPlanIsPure(t *testing.T) {
	l, k := loaded(t, 3)
	plan := func() *testPlan {
		p := l.Change(k)
		p.Service(nameOf(0), serving(0, 2), serving(0, 3))
		p.Service(nameOf(3), nil, serving(3, 3))
		p.End()
		return p
	}
	first := plan().String()
	k.failAt, k.before = 1, true
	if err := plan().Apply(context.Background()); !errors.Is(err, errInjected) {
		t.Fatalf("error %v", err)
	}
	want(t, plan().String(), first)
	apply(t, plan())
	if n := l.uses[name{pool, "3"}]; n != 2 {
		t.Errorf("%d Services need the pool, want 2", n)
	}
}

// A comparison with nothing to do writes nothing, and counts what it found.
func TestAdoption(t *testing.T) {
	_, k := loaded(t, 8)
	other := newLedger()
	p := other.Compare(k, k.list())
	for i := range 8 {
		p.Service(nameOf(i), nil, serving(i, 2))
	}
	p.End()
	if p.Steps() != 0 || p.Kept() != len(k.entries) || p.String() != "" {
		t.Errorf("%d steps, %d kept of %d\n%s", p.Steps(), p.Kept(), len(k.entries), p)
	}
	apply(t, p)
	if k.writes != 0 || other.uses[name{pool, "2"}] != 8 {
		t.Errorf("%d writes, counts %v", k.writes, other.uses)
	}
}

// A refused Service stays as it was, with the rows and the pool that its frontend leads
// to; what others leave behind goes, except targets.
func TestARefusedServiceStaysAsItWas(t *testing.T) {
	for _, room := range []int{1, 4, 1 << 20} {
		l, k := loaded(t, 6)
		k.room, k.bad = room, "bad"
		before := k.entries[name{frontend, "3"}]
		p := l.Compare(k, k.list())
		for i := range 5 { // svc-5 is deleted
			entries := serving(i, 2)
			if i == 3 {
				entries = (&service{rows: 1, frontends: []int{3}, bad: true}).entries("svc-3")
			}
			p.Service(nameOf(i), nil, entries)
		}
		p.End()
		refused, is := errors.AsType[plane.Refused](p.Apply(context.Background()))
		if !is || !slices.Equal(refused.Names(), []cluster.Name{nameOf(3)}) || !errors.Is(refused[nameOf(3)], errBad) {
			t.Fatalf("refused %v, want svc-3", refused)
		}
		if got := k.entries[name{frontend, "3"}]; got != before {
			t.Errorf("the frontend of svc-3 is %q, want %q", got, before)
		}
		if _, there := k.entries[name{frontend, "5"}]; there {
			t.Error("the frontend of a deleted Service is left")
		}
	}
}

// A plan of changes blames no Service: another program may be the cause.
func TestARefusedChangeIsAnError(t *testing.T) {
	l, k := loaded(t, 2)
	k.bad = "bad"
	p := l.Change(k)
	p.Service(nameOf(0), serving(0, 2), (&service{frontends: []int{0}, bad: true}).entries("svc-0"))
	p.End()
	err := p.Apply(context.Background())
	if !errors.Is(err, errBad) || errors.As(err, new(plane.Refused)) {
		t.Errorf("error %v", err)
	}
}

// What belongs to no Service is refused for all.
func TestARefusedHostIsAnError(t *testing.T) {
	k := newFake()
	k.bad = "bad"
	p := newLedger().Compare(k, k.list())
	p.Host(nil, []testEntry{{name{row, "host"}, "bad"}})
	p.Service(nameOf(0), nil, serving(0, 2))
	p.End()
	if err := p.Apply(context.Background()); !errors.Is(err, errBad) || errors.As(err, new(plane.Refused)) {
		t.Errorf("error %v", err)
	}
}

// Writes contain as much as there is room for. The rest of a Service is written at once, however large.
func TestRoom(t *testing.T) {
	k := newFake()
	k.room = 10
	p := newLedger().Compare(k, k.list())
	p.Service(nameOf(0), nil, serving(0, 35))
	for i := range 12 {
		p.Service(nameOf(1+i), nil, serving(1+i, 4))
	}
	p.End()
	apply(t, p)
	if k.wroteMax != 10 || k.writes < 9 || k.writes > 14 {
		t.Errorf("%d writes of up to %d steps, want about 10 of up to 10", k.writes, k.wroteMax)
	}
}

// Nothing more of a Service is written once a part of it is refused.
func TestARefusedServiceIsNotContinued(t *testing.T) {
	k := newFake()
	k.room, k.bad = 10, "bad"
	entries := serving(0, 35)
	entries[3].Value = "bad"
	p := newLedger().Compare(k, k.list())
	p.Service(nameOf(0), nil, entries)
	p.Service(nameOf(1), nil, serving(1, 2))
	p.End()
	err := p.Apply(context.Background())
	if !errors.As(err, new(plane.Refused)) || !strings.Contains(err.Error(), "svc-0") {
		t.Errorf("error %v", err)
	}
	if rows := strings.Count(strings.Join(k.log, ""), "add row svc-0-"); rows > 0 {
		t.Errorf("%d rows are written after one is refused", rows)
	}
	if _, there := k.entries[name{frontend, "1"}]; !there {
		t.Error("svc-1 is not written")
	}
}

// In as many writes as it takes, an address is refused only while it has a frontend.
func TestRefusalsAreThereAsLongAsFrontends(t *testing.T) {
	l, k := loaded(t, 12)
	k.room, k.strict = 1, true
	p := l.Change(k)
	for i := range 12 {
		p.Service(nameOf(i), serving(i, 2), nil)
		p.Service(nameOf(20+i), nil, serving(20+i, 1))
	}
	p.End()
	apply(t, p)
	if n := len(k.entries); n != 12*2+1+3 {
		t.Errorf("%d entries, want 12 frontends with a row each, a pool, 3 refusals:\n%v", n, k.entries)
	}
}

// A change costs what the Services in it cost, whatever the number of others.
func TestCostOfAChange(t *testing.T) {
	var costs []float64
	for _, n := range []int{10, 3000} {
		l, k := loaded(t, n)
		old, now := serving(7, 2), serving(7, 3)
		costs = append(costs, testing.AllocsPerRun(20, func() {
			p := l.Change(k)
			p.Service(nameOf(7), old, now)
			p.End()
			_ = p.Steps()
		}))
	}
	if costs[1] > costs[0] {
		t.Errorf("with more Services a plan takes %v allocations, want %v", costs[1], costs[0])
	}
}

// A Rewrite comes after all Services and before what they leave behind, without the refused ones.
func TestRewrite(t *testing.T) {
	l, k := loaded(t, 3)
	p := l.Change(k)
	p.Service(nameOf(0), serving(0, 2), nil)
	p.Service(nameOf(5), nil, serving(5, 1))
	p.End()
	p.Rewrite(Rewrite[name, string]{
		Replaces: func(key name) bool { return key == name{frontend, "0"} },
		Steps: func(refused plane.Refused) []testStep {
			added := name{frontend, fmt.Sprint("rewritten without ", len(refused))}
			return []testStep{{Op: Remove, Key: name{frontend, "0"}}, {Op: Add, Key: added}}
		},
	})
	if steps := p.Steps(); steps != 10 {
		t.Errorf("%d steps, want 10\n%s", steps, p)
	}
	apply(t, p)
	want(t, strings.Join(k.log, ""), `add pool 1 pool
add row svc-5-0 backend 0
add frontend 5 pool:1 row:svc-5-0
remove frontend 0 
add frontend rewritten without 0 
add refusal 1 refused
empty row svc-0-0 
empty row svc-0-1 
remove row svc-0-0 
remove row svc-0-1 
`)
}

// Plans of several parts of the kernel are one plan; what is refused in one does not
// keep the others from being written.
func TestPlans(t *testing.T) {
	var plans Plans
	var kernels []*fake
	for range 2 {
		k := newFake()
		k.bad = "bad"
		p := newLedger().Compare(k, k.list())
		p.Service(nameOf(0), nil, (&service{rows: 1, frontends: []int{0}, bad: true}).entries("svc-0"))
		p.Service(nameOf(1), nil, serving(1, 1))
		p.End()
		plans, kernels = append(plans, p), append(kernels, k)
	}
	steps, text := plans.Steps(), plans.String()
	if steps != 2*plans[0].Steps() || strings.Count(text, "add frontend 1") != 2 || plans.Kept() != 0 {
		t.Errorf("%d steps:\n%s", steps, text)
	}
	err := plans.Apply(context.Background())
	refused, is := errors.AsType[plane.Refused](err)
	if !is || len(refused) != 1 || strings.Count(err.Error(), errBad.Error()) != 2 {
		t.Errorf("error %v", err)
	}
	for _, k := range kernels {
		if _, there := k.entries[name{frontend, "1"}]; !there {
			t.Error("svc-1 is not written")
		}
	}
}

// A shared entry that the kernel refuses is refused for the Services that need it, and tried again for the next one.
func TestARefusedSharedEntry(t *testing.T) {
	for _, room := range []int{1, 4, 1 << 20} {
		k := newFake()
		k.room, k.badKey = room, name{pool, "3"}
		l := newLedger()
		rows := []int{2, 3, 2, 3, 1}
		p := l.Compare(k, k.list())
		for i, n := range rows {
			p.Service(nameOf(i), nil, serving(i, n))
		}
		p.Users(func(key name) []cluster.Name {
			var list []cluster.Name
			for i, n := range rows {
				if key == (name{pool, fmt.Sprint(n)}) {
					list = append(list, nameOf(i))
				}
			}
			return list
		})
		p.End()
		refused, is := errors.AsType[plane.Refused](p.Apply(context.Background()))
		if !is || !slices.Equal(refused.Names(), []cluster.Name{nameOf(1), nameOf(3)}) ||
			!errors.Is(refused[nameOf(3)], errBad) {
			t.Fatalf("room %d: refused %v, want svc-1 and svc-3", room, refused)
		}
		for i, n := range rows {
			if _, there := k.entries[name{frontend, fmt.Sprint(i)}]; there != (n != 3) {
				t.Errorf("room %d: the frontend of svc-%d is there: %v", room, i, there)
			}
		}
		p = l.Change(k)
		p.Service(nameOf(7), nil, serving(7, 3))
		p.End()
		if err := p.Apply(context.Background()); !errors.Is(err, errBad) {
			t.Errorf("room %d: error %v, want that the pool is tried for another Service", room, err)
		}
	}
}

// A shared entry that no Service needs belongs to the node: its refusal is an error.
func TestARefusedSharedEntryOfTheNode(t *testing.T) {
	k := newFake()
	k.badKey = name{pool, "3"}
	p := newLedger().Compare(k, k.list())
	p.Host(nil, []testEntry{{name{pool, "3"}, "pool"}})
	p.Users(func(name) []cluster.Name { return nil })
	p.End()
	if err := p.Apply(context.Background()); !errors.Is(err, errBad) || errors.As(err, new(plane.Refused)) {
		t.Errorf("error %v", err)
	}
}

// Shared entries that depend on the host change with it as long as a Service needs them.
func TestDepend(t *testing.T) {
	l, k := loaded(t, 2)
	p := l.Change(k)
	p.Service(nameOf(0), serving(0, 2), nil)
	p.Depend(func(key name) (old, now string, depends bool) {
		return "pool", "pool of the new host", key.of == pool
	})
	p.End()
	apply(t, p)
	if got := k.entries[name{pool, "2"}]; got != "pool of the new host" {
		t.Errorf("the pool is %q", got)
	}
}
