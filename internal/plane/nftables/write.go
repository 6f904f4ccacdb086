package nftables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// writer writes the entries of a plan. It implements ledger.Writer.
type writer struct {
	kernel   Writer
	families int
	render   *renderer
	tx       *nft.Tx // its memory serves all transactions
}

// Room implements ledger.Writer. It is a part of what the kernel accepts at once: smaller
// transactions take less memory here, and are not slower.
func (w *writer) Room() int { return w.kernel.Room() / 4 }

// Size implements ledger.Writer.
func (w *writer) Size(s step) int { return size(s) }

// Print implements ledger.Writer: nft commands, one per line.
func (w *writer) Print(steps []*step) string {
	var b strings.Builder
	for _, tx := range w.transactions(steps, math.MaxInt) {
		b.WriteString(tx.String())
	}
	return b.String()
}

// Write implements ledger.Writer.
func (w *writer) Write(ctx context.Context, steps []*step) error {
	for phase, tx := range w.transactions(steps, w.Room()) {
		err := w.kernel.Commit(ctx, tx)
		if _, refused := errors.AsType[*nft.RefusedError](err); refused {
			return &ledger.Refusal{Phase: phase, Err: describe(err, tx)}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// describe adds a small transaction to the reason why the kernel refuses it.
func describe(err error, tx *nft.Tx) error {
	const few = 10
	if tx.Size() > few {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.ReplaceAll(strings.TrimSpace(tx.String()), "\n", "; "))
}

// transactions divides steps into transactions, each with its first phase. An entry and
// what leads to it never change in the same one: a packet that makes several look-ups
// may make the first before a transaction takes effect and the next one after. A
// transaction that does not fit is divided further. Ranges always come in one before the chains
// that use them: packets see the chains of a transaction at once, and its ranges only when
// the kernel has been through all of it (nf_tables_api.c, nf_tables_commit). Until then no
// client is allowed. A transaction is valid until the next one is made.
func (w *writer) transactions(steps []*step, room int) iter.Seq2[ledger.Phase, *nft.Tx] {
	return func(yield func(ledger.Phase, *nft.Tx) bool) {
		ends, bytes, first, last := w.ends(steps, room), 0, ledger.Phase(0), ledger.Phase(0)
		w.tx.Reset()
		for _, s := range steps {
			apart := last == rangesAdded && last < s.Phase ||
				slices.ContainsFunc(ends, func(end ledger.Phase) bool { return last < end && end <= s.Phase })
			n := size(*s)
			if bytes > 0 && (apart || bytes+n > room) {
				if !yield(first, w.tx) {
					return
				}
				w.tx.Reset()
				bytes = 0
			}
			if bytes == 0 {
				first = s.Phase
			}
			w.into(*s)
			bytes, last = bytes+n, s.Phase
		}
		if bytes > 0 {
			yield(first, w.tx)
		}
	}
}

// ends returns the phases with which a new transaction begins. Tables that are new are made in
// one, as no packet is in the middle of them. Sets and chains are deleted in transactions of
// their own: kernels before 6.2 see only in the next one that nothing leads there any more.
func (w *writer) ends(steps []*step, room int) []ledger.Phase {
	tables, bytes := 0, 0
	for _, s := range steps {
		bytes += size(*s)
		if s.Key.of == tableObject && s.Op == ledger.Add {
			tables++
		}
	}
	if tables == w.families && bytes <= room {
		return nil
	}
	return []ledger.Phase{refusalsGone, targetsGone, setsGone, chainsGone}
}

// into adds a step to the transaction.
func (w *writer) into(s step) {
	tx, k, l, table := w.tx, s.Key, w.render.layout, tableFor(s.Key.ip)
	switch {
	case k.of == tableObject:
		if s.Op == ledger.Remove || s.Old.data == unfit {
			tx.DeleteTable(table)
		}
		if s.Op != ledger.Remove {
			tx.AddTable(table)
		}
	case k.of == setObject && s.Op == ledger.Remove:
		tx.DeleteSet(table, k.name)
	case k.of == setObject:
		tx.AddSet(table, l[slices.IndexFunc(l[:], func(set nft.Set) bool { return set.Name == k.name })])
	case k.of < firstElement:
		w.chainInto(s)
	case k.of.ranged():
		set, had, want := l[k.of], decode(s.Old), decode(s.New)
		for _, e := range without(had, want) {
			tx.Delete(table, set, e)
		}
		for _, e := range without(want, had) {
			tx.Add(table, set, e)
		}
	default:
		set := l[k.of]
		if s.Op != ledger.Add {
			tx.Delete(table, set, element(set, k, s.Old))
		}
		if s.Op != ledger.Remove {
			tx.Add(table, set, element(set, k, s.New))
		}
	}
}

func (w *writer) chainInto(s step) {
	tx, table := w.tx, tableFor(s.Key.ip)
	switch s.Op {
	case ledger.Add, ledger.Change:
		tx.SetChain(table, w.render.rendered(s.Key))
	case ledger.Empty:
		tx.FlushChain(table, s.Key.name)
	case ledger.Remove:
		tx.DeleteChain(table, s.Key.name)
	}
}

// without returns the elements of a list that are not in another.
func without(list, other []nft.Element) []nft.Element {
	in := make(map[nft.Element]bool, len(other))
	for _, e := range other {
		in[e] = true
	}
	var left []nft.Element
	for _, e := range list {
		if !in[e] {
			left = append(left, e)
		}
	}
	return left
}
