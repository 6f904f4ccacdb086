package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// The model test: after any sequence of changes and failures the kernel holds the same as if everything had been
// written at once. planetest.Model is the part that is the same for every plane.

func TestModelOnTheFake(t *testing.T) {
	for seed := range seeds.Of(t, 40) {
		fake := nft.NewFake()
		s := subject(fake, partsOf(seed))
		s.Audit = newAudit(fake, s.Faults)
		if err := planetest.NewModel(seed, s).Run(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestModelOnTheKernel(t *testing.T) {
	for seed := range seeds.Of(t, 4) {
		conn, netns := realKernel(t)
		if err := planetest.NewModel(seed, subject(conn, partsOf(seed))).Run(); err != nil {
			t.Fatal(err)
		}
		if out, err := runNft(t, netns, "", "list", "ruleset"); err != nil {
			t.Fatalf("nft list ruleset: %v\n%.2000s", err, out)
		}
	}
}

// faulty is a kernel whose reads and writes sometimes fail, and whose transactions are small.
type faulty struct {
	Kernel
	*planetest.Faults
}

func (k faulty) Room() int { return k.Faults.Room }

func (k faulty) Read(ctx context.Context, t nft.Table, expected []nft.ExpectedKeys) (*nft.State, error) {
	if err := k.Faults.Read(); err != nil {
		return nil, err
	}
	return k.Kernel.Read(ctx, t, expected)
}

func (k faulty) Commit(ctx context.Context, tx *nft.Tx) error {
	return k.Write(func() error { return k.Kernel.Commit(ctx, tx) })
}

// partsOf returns into how large parts a first load is divided: in half of the clusters it is written as a whole.
func partsOf(seed uint64) int { return []int{1, servicesPerPart, 3, servicesPerPart}[seed%4] }

// subject returns the plane and a kernel, for the model.
func subject(kernel Kernel, perPart int) planetest.Subject {
	faults := &planetest.Faults{Room: 1 << 20}
	return planetest.Subject{
		Faults: faults,
		Rooms:  []int{1, 800, 3000, 24000, 24000, 50000, 1 << 20},
		Plane: func(opt route.Options) plane.Plane {
			p := New(faulty{kernel, faults}, Options{Families: opt.Families, Mark: testMark})
			p.perPart = perPart
			return leveled{p}
		},
		State:   func(t *route.Table) (string, error) { return abstract(kernel, t) },
		Scratch: func() planetest.Subject { return subject(nft.NewFake(), servicesPerPart) },
		Edit:    func(w *planetest.World) error { return editor{w, kernel}.edit() },
	}
}

// leveled is a plane with new counts of connections before some changes. Two plans for the same change have the same.
type leveled struct{ *Plane }

func (l leveled) Plan(c route.Change) plane.Plan {
	random := rand.New(rand.NewPCG(uint64(len(c.Table.Services)), uint64(len(c.Touched))))
	l.opt.Live = func() *Live {
		if len(c.Touched) == 0 || random.IntN(3) == 0 {
			return nil
		}
		live := &Live{Services: c.Table.Services, Connections: map[plane.Target]int{}}
		for _, svc := range live.Services {
			for _, at := range targets(svc) {
				live.Connections[at] = int(at.Backend.Addr().As16()[15]) % 9 * len(c.Touched)
			}
		}
		return live
	}
	return l.Plane.Plan(c)
}

// abstract prints the tables of both families, without what depends on history.
func abstract(k Kernel, routes *route.Table) (string, error) {
	var all strings.Builder
	for _, t := range bothTables {
		text, err := abstractTable(k, t, leastIn(routes, t))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "%s:\n%s", t, text)
	}
	return all.String(), nil
}

// abstractTable prints a table, with the rows of each frontend sorted by backend: the slots
// of backends depend on history.
func abstractTable(k Kernel, t nft.Table, least map[string]bool) (string, error) {
	state, err := k.Read(context.Background(), t, nil)
	if err != nil || state == nil {
		return "", err
	}
	l := newLayout()
	for s := range spaces {
		affinity := l[affinityElement.in(s)].Name
		for _, set := range []nft.Set{l[backendElement.in(s)], l[outsideBackendElement.in(s)]} {
			elements := state.Sets[set.Name].Elements
			rows := map[string][]nft.Element{}
			for _, e := range elements.All() {
				frontend := e.Key[:len(e.Key)-4]
				rows[frontend] = append(rows[frontend], e)
			}
			for frontend, list := range rows {
				if least[frontend] {
					forgetShares(elements, list)
					continue
				}
				if _, sticky := state.Sets[affinity].Elements.Get(frontend); sticky {
					if err := forgetNumbers(elements, list); err != nil {
						return "", fmt.Errorf("%s %s %x: %w", t, set.Name, frontend, err)
					}
					continue
				}
				if err := inOrderOfBackends(list); err != nil {
					return "", fmt.Errorf("%s %s %x: %w", t, set.Name, frontend, err)
				}
				for _, e := range list {
					elements.Put(e)
				}
			}
		}
		if err := forgetIDs(state.Sets[affinity].Elements); err != nil {
			return "", fmt.Errorf("%s %s: %w", t, affinity, err)
		}
	}
	return state.String(), nil
}

// leastIn returns the keys of the frontends in a table that belong to ports with least connections.
func leastIn(routes *route.Table, t nft.Table) map[string]bool {
	all := map[string]bool{}
	for _, svc := range routes.Services {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			for n := range p.Frontends {
				if least(p) && tableFor(p.Family) == t {
					all[keyOf(p, &p.Frontends[n]).name] = true
				}
			}
		}
	}
	return all
}

// forgetShares leaves the first slot that each backend has, and writes how many slots there are into the last.
func forgetShares(elements nft.Elements, rows []nft.Element) {
	seen := map[string]bool{}
	for _, e := range rows {
		delete(elements, e.Key)
		seen[e.Data] = true
	}
	key := func(i int) string {
		return string(nft.Key(rows[0].Key[:len(rows[0].Key)-4]).Index(uint32(i)))
	}
	for i, data := range slices.Sorted(maps.Keys(seen)) {
		elements.Put(nft.Element{Key: key(i + 1), Data: data})
	}
	elements.Put(nft.Element{Key: key(len(rows)), Comment: "the last"})
}

// forgetIDs removes the ids of ports from the elements of a map.
func forgetIDs(elements nft.Elements) error {
	for _, e := range elements.All() {
		if !hasID(e) {
			return fmt.Errorf("%x is not an id", e.Data)
		}
		e.Data = ""
		elements.Put(e)
	}
	return nil
}

// slotsLeft is more than a backend has in a model.
const slotsLeft = 256

// forgetNumbers keeps one row for each backend of a frontend that remembers its clients, in the order of the backends.
// A backend has at most one number for each pool and each power of two numbers from which clients draw.
//
// After a failed write also the slots that it had without session affinity may be numbers.
func forgetNumbers(elements nft.Elements, rows []nft.Element) error {
	numbers := map[string]int{}
	for _, e := range rows {
		delete(elements, e.Key)
		if numbers[e.Data]++; numbers[e.Data] > 2*17+slotsLeft {
			return fmt.Errorf("backend %x has %d numbers", e.Data, numbers[e.Data])
		}
	}
	for i, data := range slices.Sorted(maps.Keys(numbers)) {
		key := string(nft.Key(rows[0].Key[:len(rows[0].Key)-4]).Index(uint32(i + 1)))
		elements.Put(nft.Element{Key: key, Data: data})
	}
	return nil
}

// inOrderOfBackends assigns slots to the backends in sorted order. It returns an error if a slot is free.
func inOrderOfBackends(rows []nft.Element) error {
	slices.SortFunc(rows, func(a, b nft.Element) int { return int(index(a)) - int(index(b)) })
	keys := make([]string, len(rows))
	for i, e := range rows {
		if int(index(e)) != i+1 {
			return fmt.Errorf("slot %d is missing", i)
		}
		keys[i] = e.Key
	}
	slices.SortFunc(rows, func(a, b nft.Element) int { return strings.Compare(a.Data, b.Data) })
	for i := range rows {
		rows[i].Key = keys[i]
	}
	return nil
}

func index(row nft.Element) uint32 {
	return binary.NativeEndian.Uint32([]byte(row.Key[len(row.Key)-4:]))
}

// editor is another program that edits our tables.
type editor struct {
	*planetest.World
	kernel Kernel
}

// edit makes edits that another program might make. It ignores errors of the kernel.
func (m editor) edit() error {
	t := planetest.Pick(m.Rand, bothTables...)
	state, err := m.kernel.Read(context.Background(), t, nil)
	if err != nil {
		return err
	}
	tx := &nft.Tx{}
	tx.AddTable(t)
	tx.Add(t, nft.Set{Name: "no-such-set", Key: []nft.Type{nft.Addr}}, nft.Element{Key: "abcd"})
	if state != nil {
		tx = m.edits(t, state)
	}
	_ = m.kernel.Commit(context.Background(), tx)
	if m.Chance(20) {
		return m.kernel.DeleteTables(context.Background(), t)
	}
	return nil
}

func (m editor) edits(t nft.Table, state *nft.State) *nft.Tx {
	tx := &nft.Tx{}
	l := newLayout()
	set := planetest.Pick(m.Rand, l.sets()...)
	var elements []nft.Element
	for _, id := range slices.Sorted(maps.Keys(state.Sets[set.Name].Elements)) {
		e, _ := state.Sets[set.Name].Elements.Get(id)
		elements = append(elements, e)
	}
	chain := planetest.Pick(m.Rand, slices.Sorted(maps.Keys(state.Chains))...)
	foreign := nft.Set{Name: "foreign-map", Key: []nft.Type{nft.Addr}, Data: []nft.Type{nft.Verdict}}
	switch m.IntN(6) {
	case 0: // delete some elements
		for _, e := range elements {
			if m.Chance(2) {
				tx.Delete(t, set, e)
			}
		}
	case 1: // change an element
		if len(elements) > 0 {
			e := planetest.Pick(m.Rand, elements...)
			tx.Delete(t, set, e)
			e.Comment = "foreign"
			if len(e.Data) > 4 {
				e.Data = string(slices.Repeat([]byte{7}, len(e.Data)-4)) + "\x00\x07\x00\x00"
			}
			tx.Add(t, set, e)
		}
	case 2: // add a row behind a free slot, and a frontend of no Service
		key := nft.Key{}.Addr(netipOf(t, m.IntN(9))).Proto(6).Port(80)
		row := nft.Element{Key: rowKey(string(key), 1+uint32(m.IntN(30))), Data: rowData(backendOf(t))}
		tx.Add(t, l[backendElement.in(byAddress)], row)
		tx.Add(t, l[frontendElement.in(byAddress)], nft.Element{Key: string(key), Data: action(0x10002).data()})
	case 3: // empty a chain to which others jump
		if c := (nft.Chain{Name: chain}); state.Chains[chain].SameHook(c) {
			tx.SetChain(t, c)
		}
	case 4: // add foreign chains that jump to each other and to ours
		tx.AddSet(t, foreign)
		tx.SetChain(t, nft.Chain{Name: "foreign-b"})
		tx.SetChain(t, nft.Chain{
			Name: "foreign-a", Rules: []nft.Rule{nft.NewRule(nft.Jump("foreign-b")), nft.NewRule(nft.Goto("services"))},
		})
		tx.SetChain(t, nft.Chain{Name: "zz", Rules: []nft.Rule{nft.NewRule(nft.Jump("foreign-a"))}})
		tx.Add(t, foreign, nft.Element{Key: string(nft.Key{}.Addr(netipOf(t, 1))), Goto: "foreign-a"})
	case 5: // add a foreign set
		tx.AddSet(t, nft.Set{Name: "clients-foreign", Key: []nft.Type{nft.Addr}, Dynamic: true, Size: 10})
	}
	return tx
}
