package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

// The model test (E.4): whatever happens to the cluster, and whatever goes
// wrong on the way, the kernel ends up as if it had been told everything at once.

// A failure names its seed: -args -seed N -seeds 1 repeats that one.
var (
	firstSeed = flag.Uint64("seed", 0, "first seed of the model test")
	seeds     = flag.Uint64("seeds", 40, "how many worlds the model test lives through; a tenth of that on the kernel")
)

const turns = 60

func TestModelOnTheFake(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+*seeds; seed++ {
		fake := nft.NewFake()
		m := newModel(seed, fake)
		m.audit = newAudit(fake)
		if err := m.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestModelOnTheKernel(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+(*seeds+9)/10; seed++ {
		conn, netns := realKernel(t)
		if err := newModel(seed, conn).run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if out, err := runNft(t, netns, "", "list", "ruleset"); err != nil {
			t.Fatalf("seed %d: nft list ruleset: %v\n%.2000s", seed, err, out)
		}
	}
}

var errInjected = errors.New("injected")

// weak is a kernel with little room that fails now and then.
type weak struct {
	Kernel
	room   int
	failAt int // which commit from now on; 0: none
	late   bool
	after  func() // called after each commit that was carried out; may be nil
}

func (k *weak) Room() int { return k.room }

// Commit fails before the transaction is carried out, or, when late, after:
// the answer got lost.
func (k *weak) Commit(ctx context.Context, tx *nft.Tx) error {
	k.failAt--
	if k.failAt == 0 && !k.late {
		return errInjected
	}
	if err := k.Kernel.Commit(ctx, tx); err != nil {
		return err
	}
	if k.after != nil {
		k.after()
	}
	if k.failAt == 0 {
		return errInjected
	}
	return nil
}

// model is a world, and the three parts that carry it into a kernel.
type model struct {
	*planetest.World
	kernel   *weak
	opt      route.Options
	compiler *route.Compiler
	plane    *Plane
	fresh    bool // the plane's belief holds
	audit    *audit
}

func newModel(seed uint64, kernel Kernel) *model {
	w := planetest.NewWorld(rand.New(rand.NewPCG(seed, 0)))
	m := &model{World: w, kernel: &weak{Kernel: kernel}, opt: w.Options()}
	m.restart()
	return m
}

func (m *model) restart() {
	m.Store = m.World.Fresh()
	m.compiler = route.NewCompiler(m.opt)
	m.plane = m.newPlane(m.kernel)
	m.fresh = false
}

func (m *model) newPlane(k Kernel) *Plane {
	return New(k, Options{Families: m.opt.Families, Mark: testMark})
}

// run lives through many turns, in each of which something happens.
func (m *model) run() error {
	for turn := range turns {
		for range 1 + m.IntN(4) {
			m.Change()
		}
		switch m.IntN(12) {
		case 0:
			if m.Chance(3) {
				m.opt = m.Options() // another configuration finds the same kernel
			}
			m.restart()
		case 1, 2:
			if err := m.meddle(); err != nil {
				return fmt.Errorf("turn %d: %w", turn, err)
			}
		}
		if err := m.sync(); err != nil {
			return fmt.Errorf("turn %d: %w", turn, err)
		}
		if err := m.check(); err != nil {
			return fmt.Errorf("turn %d: %w", turn, err)
		}
	}
	return nil
}

// sync does what the loop does: try until it works.
func (m *model) sync() error {
	m.kernel.room = planetest.Pick(m.Rand, 1, 800, 3000, 24000, 24000, 50000, 1<<20)
	m.kernel.failAt = m.IntN(12)
	m.kernel.late = m.Chance(2)
	m.watch()
	for try := range 100 {
		change, _ := m.compiler.Compile(m.Store.Take())
		if !m.fresh {
			if err := m.plane.Refresh(context.Background()); err != nil {
				return err
			}
		}
		plan := m.plane.Plan(change)
		err := plan.Apply(context.Background())
		if err == nil {
			m.fresh = true
			return nil
		}
		if !errors.Is(err, errInjected) {
			return fmt.Errorf("try %d: %w\n%s", try, err, plan)
		}
		m.fresh = false
		if m.Chance(2) {
			m.kernel.failAt = 1 + m.IntN(12)
		}
		if m.Chance(3) {
			m.Change()
			m.watch() // what is to come is no longer what it was
		}
	}
	return errors.New("does not come to an end")
}

// watch begins to audit every transaction from here on, unless there is so
// little room that not even steps that are tied fit in.
func (m *model) watch() {
	m.kernel.after = nil
	if m.audit != nil {
		m.audit.begin(m.plane.families)
	}
	if m.audit != nil && m.kernel.room >= 24000 {
		m.kernel.after = m.audit.note
	}
}

// check compares the kernel with one that was told everything at once, and
// wants nothing to be left to do.
func (m *model) check() error {
	ctx := context.Background()
	if m.audit != nil {
		if err := m.audit.end(); err != nil {
			return err
		}
	}
	other := m.newPlane(m.kernel)
	if err := other.Refresh(ctx); err != nil {
		return err
	}
	if plan := other.Plan(route.Change{Table: m.compiler.Table()}); plan.Steps() != 0 {
		return fmt.Errorf("something is left to do:\n%s", plan)
	}
	scratch := nft.NewFake()
	p := m.newPlane(scratch)
	if err := p.Refresh(ctx); err != nil {
		return err
	}
	change, _ := route.NewCompiler(m.opt).Compile(m.World.Fresh().Take())
	if err := p.Plan(change).Apply(ctx); err != nil {
		return err
	}
	for _, t := range p.families {
		got, err := abstract(m.kernel, t.table)
		if err != nil {
			return err
		}
		want, err := abstract(scratch, t.table)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s is\n%s\nbut from scratch\n%s", t.table, got, want)
		}
	}
	return nil
}

// abstract prints a table, with the rows of each front in the order of their
// backends: which slot a backend has is the only thing history decides.
func abstract(k Kernel, t nft.Table) (string, error) {
	state, err := k.Read(context.Background(), t)
	if err != nil {
		return "", err
	}
	l := newLayout()
	for i := range l.spaces {
		for _, set := range []nft.Set{l.spaces[i].backends, l.spaces[i].outsideBackends} {
			elements := state.Sets[set.Name].Elements
			rows := map[string][]nft.Element{}
			for _, e := range elements {
				front := e.Key[:len(e.Key)-4]
				rows[front] = append(rows[front], e)
			}
			for front, list := range rows {
				if err := renumber(list); err != nil {
					return "", fmt.Errorf("%s %s %x: %w", t, set.Name, front, err)
				}
				for _, e := range list {
					elements[e.Key] = e
				}
			}
		}
	}
	return state.String(), nil
}

// renumber gives the backends the slots they would have if sorted. The slots
// have no holes.
func renumber(rows []nft.Element) error {
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

// meddle does what another program might do to our tables. What the kernel
// refuses does not happen.
func (m *model) meddle() error {
	m.fresh = false // the watch would tell
	t := planetest.Pick(m.Rand, m.plane.families...).table
	state, err := m.kernel.Read(context.Background(), t)
	if err != nil {
		return err
	}
	tx := &nft.Tx{}
	tx.AddTable(t)
	tx.Add(t, nft.Set{Name: "no-such-set", Key: []nft.Type{nft.Addr}}, nft.Element{Key: "abcd"})
	if state != nil {
		tx = m.meddling(t, state)
	}
	_ = m.kernel.Kernel.Commit(context.Background(), tx)
	if m.Chance(20) {
		return m.kernel.DeleteTables(context.Background(), t)
	}
	return nil
}

func (m *model) meddling(t nft.Table, state *nft.State) *nft.Tx {
	tx := &nft.Tx{}
	l := newLayout()
	set := *planetest.Pick(m.Rand, l.sets()...)
	elements := slices.SortedFunc(maps.Values(state.Sets[set.Name].Elements), func(a, b nft.Element) int { return strings.Compare(a.Key+a.End, b.Key+b.End) })
	chain := planetest.Pick(m.Rand, slices.Sorted(maps.Keys(state.Chains))...)
	foreign := nft.Set{Name: "foreign-map", Key: []nft.Type{nft.Addr}, Data: []nft.Type{nft.Verdict}}
	switch m.IntN(6) {
	case 0: // some elements vanish
		for _, e := range elements {
			if m.Chance(2) {
				tx.Delete(t, set, e)
			}
		}
	case 1: // an element says something else
		if len(elements) > 0 {
			e := planetest.Pick(m.Rand, elements...)
			tx.Delete(t, set, e)
			e.Comment = "foreign"
			if len(e.Data) > 4 {
				e.Data = string(slices.Repeat([]byte{7}, len(e.Data)-4)) + "\x00\x07\x00\x00"
			}
			tx.Add(t, set, e)
		}
	case 2: // a row with a hole before it, a row and a front of nothing
		key := nft.Key{}.Addr(netipOf(t, m.IntN(9))).Proto(6).Port(80)
		tx.Add(t, l.spaces[byAddress].backends, row(string(key), m.IntN(30), backendOf(t)))
		tx.Add(t, l.spaces[byAddress].fronts, nft.Element{Key: string(key), Data: way(0x10002).data()})
	case 3: // a chain that others lead to is emptied
		if c := (nft.Chain{Name: chain}); state.Chains[chain].SameHook(c) {
			tx.SetChain(t, c)
		}
	case 4: // chains of others, that lead to each other and to ours
		tx.AddSet(t, foreign)
		tx.SetChain(t, nft.Chain{Name: "foreign-b"})
		tx.SetChain(t, nft.Chain{Name: "foreign-a", Rules: []nft.Rule{nft.NewRule(nft.Jump("foreign-b")), nft.NewRule(nft.Goto("services"))}})
		tx.SetChain(t, nft.Chain{Name: "zz", Rules: []nft.Rule{nft.NewRule(nft.Jump("foreign-a"))}})
		tx.Add(t, foreign, nft.Element{Key: string(nft.Key{}.Addr(netipOf(t, 1))), Goto: "foreign-a"})
	case 5: // sets of others
		tx.AddSet(t, nft.Set{Name: "clients-foreign", Key: []nft.Type{nft.Addr}, Dynamic: true, Size: 10})
	}
	return tx
}
