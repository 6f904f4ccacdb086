package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

var errRefused = errors.New("refused by the test")

// refusing returns a function for Fake.Refuse that refuses commands with one of these texts.
func refusing(texts ...string) func(string) error {
	return func(command string) error {
		if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(command, text) }) {
			return errRefused
		}
		return nil
	}
}

// apply reads the kernel, compares everything and writes the difference.
func apply(t *testing.T, p *Plane, table *route.Table) error {
	t.Helper()
	if err := p.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	return p.Plan(route.Change{Table: table}).Apply(context.Background())
}

// wantRefused verifies that an error refuses these Services only, and contains the command.
func wantRefused(t *testing.T, err error, command string, names ...cluster.Name) {
	t.Helper()
	refused, is := errors.AsType[plane.Refused](err)
	slices.SortFunc(names, cluster.Name.Compare)
	if !is || !slices.Equal(refused.Names(), names) {
		t.Fatalf("error %v, want that %v are refused", err, names)
	}
	for name, err := range refused {
		if !strings.Contains(err.Error(), command) {
			t.Errorf("%s is refused because of %q, want %q in it", name, err, command)
		}
	}
}

// frontendsOf returns the Services that have a frontend, from the comments of the elements.
func frontendsOf(t *testing.T, kernel Kernel) map[string]bool {
	t.Helper()
	state, err := kernel.Read(context.Background(), bothTables[0], nil)
	if err != nil || state == nil {
		t.Fatalf("%v, %v", state, err)
	}
	names := map[string]bool{}
	for _, e := range state.Sets["fronts"].Elements.All() {
		name, _, _ := strings.Cut(e.Comment, ":")
		names[name] = true
	}
	return names
}

// A Service with an element that the kernel refuses does not keep others from being
// written, whatever the size of transactions is.
func TestARefusedServiceDoesNotBlockOthers(t *testing.T) {
	for _, room := range []int{1, 3000, 1 << 20} {
		t.Run(fmt.Sprint("room ", room), func(t *testing.T) {
			fake := nft.NewFake()
			fake.Space = room
			table, bad := manyServices(40), numberedService(7).Name
			text := fmt.Sprintf("comment %q", bad.String()+":http")
			fake.Refuse = refusing(text)
			p := newPlane(fake, route.IPv4)
			for range 2 { // and again at the next comparison
				wantRefused(t, apply(t, p, table), text, bad)
				there := frontendsOf(t, fake)
				for name := range table.Services {
					if there[name.String()] == (name == bad) {
						t.Errorf("%s has a frontend: %v", name, there[name.String()])
					}
				}
			}
			old, now := numberedService(8, 0, 1, 2), numberedService(8, 0, 1, 2, 3)
			table.Services[now.Name] = now
			change := route.Change{Table: table, Touched: []route.Touch{{Name: now.Name, Old: old, New: now}}}
			if err := p.Plan(change).Apply(t.Context()); err != nil {
				t.Errorf("a change of another Service: %v", err)
			}
			fake.Refuse = nil
			if err := apply(t, p, table); err != nil {
				t.Fatal(err)
			}
			checkSettled(t, fake, table, route.IPv4)
		})
	}
}

// While its new elements are refused, a Service keeps its rows and the chain of its frontend.
func TestARefusedServiceStaysAsItWas(t *testing.T) {
	fake := nft.NewFake()
	table, bad := manyServices(20), numberedService(7).Name
	p := load(t, fake, route.Change{Table: table}, route.IPv4)
	now := numberedService(7, 0, 1, 2, 3, 4)
	change := route.Change{Table: table, Touched: []route.Touch{{Name: bad, Old: table.Services[bad], New: now}}}
	table.Services[bad] = now
	const text = "10.64.0.7 . 8080"
	fake.Refuse = refusing(text)
	if err := p.Plan(change).Apply(t.Context()); !errors.Is(err, errRefused) || errors.As(err, new(plane.Refused)) {
		t.Fatalf("error %v, want one that refuses no Service before everything is compared", err)
	}
	gone := numberedService(9).Name
	delete(table.Services, gone)
	wantRefused(t, apply(t, p, table), text, bad)
	for k, bad := range newAudit(fake, &planetest.Faults{Room: 1 << 20}).frontends() {
		if bad != nil {
			t.Errorf("frontend %x: %v", k.name, bad)
		}
	}
	if there := frontendsOf(t, fake); there[gone.String()] || !there[bad.String()] {
		t.Errorf("frontends of the deleted Service: %v, of the refused one: %v", there[gone.String()], there[bad.String()])
	}
	fake.Refuse = nil
	if err := apply(t, p, table); err != nil {
		t.Fatal(err)
	}
	checkSettled(t, fake, table, route.IPv4)
}

// Errors of objects of the whole node are not refusals of a Service, and neither are errors
// that are not a reply of the kernel.
func TestOtherErrorsAreNotRefusals(t *testing.T) {
	for name, fail := range map[string]func(*nft.Fake){
		"a fixed chain": func(f *nft.Fake) { f.Refuse = refusing("add rule ip sluice services") },
		"a set":         func(f *nft.Fake) { f.Refuse = refusing("add map ip sluice fronts") },
		"a table":       func(f *nft.Fake) { f.Refuse = refusing("add table ip sluice") },
		"the socket":    func(f *nft.Fake) { f.Fail = func(*nft.Tx) error { return errRefused } },
	} {
		t.Run(name, func(t *testing.T) {
			fake, table := nft.NewFake(), manyServices(5)
			fail(fake)
			p := newPlane(fake, route.IPv4)
			if err := apply(t, p, table); !errors.Is(err, errRefused) || errors.As(err, new(plane.Refused)) {
				t.Fatalf("error %v, want one that is not a refusal", err)
			}
			fake.Refuse, fake.Fail = nil, nil
			if err := apply(t, p, table); err != nil {
				t.Fatal(err)
			}
			checkSettled(t, fake, table, route.IPv4)
		})
	}
}

// If another program deletes the tables between two transactions, the next one refers to
// missing objects. This is not the fault of a Service.
func TestAFlushDuringAWriteIsNotARefusal(t *testing.T) {
	table := manyServices(6)
	affinity(table.Services[numberedService(3).Name])
	for _, room := range []int{1, 1000, 1 << 20} {
		for at := 1; ; at++ {
			fake := nft.NewFake()
			fake.Space = room
			commits := 0
			fake.Fail = func(*nft.Tx) error {
				if commits++; commits == at {
					return fake.DeleteTables(t.Context(), bothTables...)
				}
				return nil
			}
			p := newPlane(fake, route.IPv4)
			err := apply(t, p, table)
			if errors.As(err, new(plane.Refused)) {
				t.Fatalf("room %d, flush before transaction %d: %v", room, at, err)
			}
			if err != nil {
				if err := apply(t, p, table); err != nil {
					t.Fatalf("room %d, flush before transaction %d, the next write: %v", room, at, err)
				}
			}
			if commits < at {
				break
			}
			if at > 1 && err == nil {
				t.Errorf("room %d, flush before transaction %d: no error", room, at)
			}
			checkSettled(t, fake, table, route.IPv4)
		}
	}
}

// refusable are texts of commands for one Service.
var refusable = []string{
	"10.180.0.3 . 8080", "fd00:10:180:1::4 . 8081", `comment "ns/s1`, `comment "ns/s4:web`, "203.0.113.2 . ",
	"tcp . 30001",
}

// After random changes and refusals, the kernel holds all Services that it does not refuse,
// every frontend works, and once nothing is refused any more, there are no leftovers.
func TestModelOfRefusals(t *testing.T) {
	refusals, clusters := 0, 0
	for seed := range seeds.Of(t, 40) {
		clusters++
		w := planetest.NewWorld(rand.New(rand.NewPCG(seed, 2)))
		opt := w.Options()
		compiler, fake := route.NewCompiler(opt), nft.NewFake()
		p := newPlane(fake, opt.Families...)
		p.perPart = partsOf(seed)
		for round := range 25 {
			for range 1 + w.IntN(8) {
				w.Change()
			}
			fake.Space = planetest.Pick(w.Rand, 1, 3000, 24000, 1<<20)
			fake.Refuse = refusing(planetest.Pick(w.Rand, refusable...), planetest.Pick(w.Rand, refusable...))
			change, _ := compiler.Compile(w.Store.Take())
			err := apply(t, p, change.Table)
			refused, is := errors.AsType[plane.Refused](err)
			if is {
				err = nil
			}
			if err == nil {
				err = complete(t, p, change.Table, refused)
			}
			if err == nil && w.Chance(4) {
				fake.Refuse = nil
				if err = apply(t, p, change.Table); err == nil {
					checkSettled(t, fake, change.Table, opt.Families...)
				}
			}
			if err != nil {
				t.Fatalf("round %d: %v, refused: %v", round, err, refused)
			}
			refusals += len(refused)
		}
	}
	if refusals < clusters && clusters > 1 { // one seed may have none
		t.Errorf("%d refusals, want at least %d", refusals, clusters)
	}
}

// complete verifies that every Service that is not refused is in the kernel, that every
// refused one is also refused alone, and that every frontend works.
func complete(t *testing.T, p *Plane, table *route.Table, refused plane.Refused) error {
	t.Helper()
	fake, families := p.kernel.(*nft.Fake), p.opt.Families
	rest := &route.Table{Host: table.Host, Services: maps.Clone(table.Services)}
	for _, name := range refused.Names() {
		alone := nft.NewFake()
		alone.Refuse = fake.Refuse
		one := map[cluster.Name]*route.Service{name: table.Services[name]}
		if err := apply(t, newPlane(alone, families...), &route.Table{Host: table.Host, Services: one}); err == nil {
			return fmt.Errorf("%s is refused, but is accepted alone", name)
		}
		delete(rest.Services, name)
	}
	scratch := nft.NewFake()
	load(t, scratch, route.Change{Table: rest}, families...)
	for k, bad := range newAudit(fake, &planetest.Faults{Room: 1 << 20}).frontends() {
		if bad != nil {
			return fmt.Errorf("frontend %x: %w", k.name, bad)
		}
	}
	for _, ip := range families {
		table := tableFor(ip)
		for _, set := range newLayout().sets() {
			if strings.HasSuffix(set.Name, "backends") || strings.HasSuffix(set.Name, "affinity") {
				continue // slots and ids depend on history
			}
			for k, want := range scratch.Tables[table].Sets[set.Name].Elements.All() {
				if got, there := fake.Tables[table].Sets[set.Name].Elements.Get(k); !there || got != want {
					return fmt.Errorf("%s %s: %x is %v, want %v", table, set.Name, k, got, want)
				}
			}
		}
	}
	return nil
}

// A real kernel refuses elements beyond the size that another program gave a map. Some
// Services fit; the others are reported.
func TestTheKernelRefusesElements(t *testing.T) {
	conn, netns := realKernel(t)
	const size, services = 12, 20
	full := fmt.Sprintf("add table ip sluice\n"+
		"add map ip sluice fronts { type ipv4_addr . inet_proto . inet_service : classid; size %d; }\n", size)
	if out, err := runNft(t, netns, full, "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	table := manyServices(services)
	p := newPlane(conn, route.IPv4)
	for range 2 {
		err := apply(t, p, table)
		refused, is := errors.AsType[plane.Refused](err)
		if !is || len(refused) != services-size {
			t.Fatalf("error %v, want that %d Services are refused", err, services-size)
		}
		for name, err := range refused {
			if !strings.Contains(err.Error(), "too many open files in system") ||
				!strings.Contains(err.Error(), "add element ip sluice fronts") {
				t.Errorf("%s: %q does not contain the command and the reason", name, err)
			}
		}
		if there := frontendsOf(t, conn); len(there) != size {
			t.Errorf("%d Services have frontends, want %d", len(there), size)
		}
	}
	for i := range services - size {
		delete(table.Services, numberedService(i).Name)
	}
	if err := apply(t, p, table); err != nil {
		t.Fatal(err)
	}
	checkSettled(t, conn, table, route.IPv4)
}

// emptied is a kernel in which another program deletes the tables after they are read.
type emptied struct{ Kernel }

func (k emptied) Room() int { return 20_000 }

func (k emptied) Commit(ctx context.Context, tx *nft.Tx) error {
	if err := k.DeleteTables(ctx, bothTables...); err != nil {
		return err
	}
	return k.Kernel.Commit(ctx, tx)
}

// If another program deletes tables between a read and a write, the write returns an error
// that refuses no Service, and everything is compared again.
func TestTablesDeletedMeanwhileRefuseNoService(t *testing.T) {
	conn, _ := realKernel(t)
	table := manyServices(50)
	few := &route.Table{Host: table.Host, Services: map[cluster.Name]*route.Service{}}
	for i := range 5 {
		few.Services[numberedService(i).Name] = table.Services[numberedService(i).Name]
	}
	load(t, conn, route.Change{Table: few}, route.IPv4)
	err := apply(t, newPlane(emptied{conn}, route.IPv4), table)
	if err == nil || errors.As(err, new(plane.Refused)) {
		t.Fatalf("error %v, want one that refuses no Service", err)
	}
	load(t, conn, route.Change{Table: table}, route.IPv4)
	checkSettled(t, conn, table, route.IPv4)
}
