package nft

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-proxy/sluice/test/seeds"
)

// kernels returns the real kernel and the fake.
func kernels(t testing.TB) map[string]kernel {
	t.Helper()
	conn, _ := realKernel(t)
	return map[string]kernel{"kernel": conn, "fake": NewFake()}
}

// The fake accepts and refuses the same random transactions as the kernel, and has the same state afterwards.
func TestFakeIsLikeTheKernel(t *testing.T) {
	ctx := context.Background()
	const rounds = 120
	refused, all := 0, 0
	for seed := range seeds.Of(t, 5) {
		all += rounds
		r := rand.New(rand.NewPCG(seed, 1))
		both := kernels(t)
		for round := range rounds {
			tx := randomTx(r)
			before := read(t, both["kernel"], ip4)
			errReal, errFake := both["kernel"].Commit(ctx, tx), both["fake"].Commit(ctx, tx)
			if (errReal == nil) != (errFake == nil) {
				t.Fatalf("round %d: kernel: %v; fake: %v\n%s\non\n%s", round, errReal, errFake, tx, before)
			}
			if errReal != nil {
				refused++
			}
			for _, table := range tables {
				got, want := read(t, both["fake"], table).String(), read(t, both["kernel"], table).String()
				if got != want {
					t.Fatalf("round %d: after\n%sthe fake has\n%s\nthe kernel\n%s", round, tx, got, want)
				}
			}
		}
	}
	t.Logf("%d of %d transactions refused", refused, all)
	if refused < all/5 || refused > all*4/5 {
		t.Errorf("%d of %d transactions refused, want a mixture", refused, all)
	}
}

// randomTx returns a small transaction that is mostly valid.
func randomTx(r *rand.Rand) *Tx {
	tx := &Tx{}
	table := tables[r.IntN(4)/3]
	f := table.Family
	if r.IntN(40) == 0 {
		tx.DeleteTable(table)
	}
	if r.IntN(2) == 0 {
		tx.AddTable(table)
	}
	chain := func() string { return fmt.Sprintf("c%d", r.IntN(4)) }
	for range 1 + r.IntN(2) {
		set := everySet()[r.IntN(8)]
		switch r.IntN(12) {
		case 0, 1:
			tx.AddSet(table, set)
		case 2, 3:
			tx.SetChain(table, Chain{Name: chain(), Rules: randomRules(r, f, chain)})
		case 4:
			tx.FlushChain(table, chain())
		case 5:
			tx.DeleteChain(table, chain())
		case 6:
			tx.DeleteSet(table, set.Name)
		case 7, 8, 9:
			tx.Add(table, set, randomElement(r, f, set, chain))
		default:
			tx.Delete(table, set, randomElement(r, f, set, chain))
		}
	}
	return tx
}

func randomRules(r *rand.Rand, f Family, _ func() string) []Rule {
	var rules []Rule
	for range r.IntN(3) {
		rules = append(rules, []Rule{
			NewRule(Drop()),
			NewRule(In("some", Source(f))),
			NewRule(In("some", Source(f)), Goto("c3")),
			NewRule(Not(In("nets", Source(f))), ClearPriority()),
			NewRule(SetPriority("fronts", Destination(f), L4Proto(), DestinationPort())),
			NewRule(Jump("c2")),
		}[r.IntN(6)])
	}
	return rules
}

func randomElement(r *rand.Rand, f Family, s Set, chain func() string) Element {
	frontend := func() Key { return Key{}.Addr(addr(f, r.IntN(3))).Proto(6).Port(80) }
	switch s.Name {
	case "fronts":
		return Element{
			Key: string(frontend()), Data: string(Key{}.ClassID(uint32(r.IntN(2)))), Comment: []string{"", "c"}[r.IntN(2)],
		}
	case "backends":
		return Element{
			Key: string(frontend().Index(uint32(r.IntN(2)))), Data: string(Key{}.Addr(addr(f, r.IntN(2))).Port(80)),
		}
	case "ways":
		return Element{Key: string(Key{}.ClassID(uint32(r.IntN(3)))), Goto: chain()}
	case "direct":
		return Element{Key: string(frontend()), Goto: chain()}
	case "some":
		return Element{Key: string(Key{}.Addr(addr(f, r.IntN(4))))}
	case "pairs":
		return Element{Key: string(Key{}.Addr(addr(f, r.IntN(3))).Addr(addr(f, 1)))}
	case "nets": // without overlaps: the fake always detects them, the kernel does not
		i := r.IntN(8)
		return Element{Key: string(Key{}.Addr(addr(f, 16*i))), End: string(Key{}.Addr(addr(f, 16*i+16)))}
	}
	i := r.IntN(8)
	key := Key{}.Addr(addr(f, 1)).Proto(6).Port(80)
	return Element{
		Key: string(append(Key{}, key...).Addr(addr(f, 16*i))),
		End: string(append(Key{}, key...).Addr(addr(f, 16*i+16*(1+r.IntN(2))-1))),
	}
}

// The fake refuses to delete objects in use, and reports the reason.
func TestFakeReportsReasons(t *testing.T) {
	ctx := context.Background()
	f := NewFake()
	commit(t, f, allOf(IP4, ip4))
	for want, build := range map[string]func(tx *Tx){
		"delete ip t other: still in use by chain any":           func(tx *Tx) { tx.DeleteChain(ip4, "other") },
		"delete ip t some: still in use by chain any":            func(tx *Tx) { tx.DeleteSet(ip4, "some") },
		"delete ip t nothing: no such object":                    func(tx *Tx) { tx.DeleteSet(ip4, "nothing") },
		"delete element ip t some { 10.0.0.1 }: no such element": func(tx *Tx) { tx.Delete(ip4, some, first) },
		"add element ip t ways { 0:1 : goto x }: no such chain: x": func(tx *Tx) {
			tx.Add(ip4, ways, Element{Key: string(Key{}.ClassID(1)), Goto: "x"})
		},
		"add chain ip t prerouting: exists with another hook": func(tx *Tx) {
			tx.SetChain(ip4, Chain{Name: "prerouting", Hook: &Hook{Type: "nat", Point: Output, Priority: -100}})
		},
		"add set ip t some: exists with another definition": func(tx *Tx) {
			tx.AddSet(ip4, Set{Name: "some", Key: pairs.Key})
		},
		"add element ip t nets { 10.0.0.0/28 }: overlaps 10.0.0.8/29": func(tx *Tx) {
			tx.Add(ip4, nets, Element{Key: string(Key{}.Addr(addr(IP4, 8))), End: string(Key{}.Addr(addr(IP4, 16)))})
			tx.Add(ip4, nets, Element{Key: string(Key{}.Addr(addr(IP4, 0))), End: string(Key{}.Addr(addr(IP4, 16)))})
		},
	} {
		tx := &Tx{}
		build(tx)
		if err := f.Commit(ctx, tx); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}
