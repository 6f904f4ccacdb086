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
	kernel Writer
	render *renderer
	tx     *nft.Tx // its memory serves all transactions
}

// Room implements ledger.Writer. Transactions that are smaller than possible take less memory, and are not slower.
func (w *writer) Room() int { return w.kernel.Room() / 4 }

// Size implements ledger.Writer. It estimates how many bytes a step takes in a transaction.
func (w *writer) Size(s step) int {
	const object = 1024 // a table, a set, a chain or a rule
	switch {
	case s.Key.of.ranged():
		n := 0
		for _, e := range append(decode(s.Old), decode(s.New)...) {
			n += e.Bytes()
		}
		return n
	case s.Key.of >= firstElement:
		n := nft.Element{}.Bytes() + len(s.Key.name)
		if s.Op == ledger.Change {
			n *= 2
		}
		return n + len(s.Old.data) + len(s.Old.comment) + len(s.New.data) + len(s.New.comment)
	case s.Op == ledger.Add || s.Op == ledger.Change:
		return object * (2 + strings.Count(s.New.data, "\n"))
	}
	return object
}

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
	if tx.Size() > 10 {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.ReplaceAll(strings.TrimSpace(tx.String()), "\n", "; "))
}

// transactions divides steps into transactions, each with its first phase; one is valid until the
// next. An entry and what leads to it never change in the same one, as a packet may make one look-up
// before it takes effect and the next one after. Ranges come in one before the chains that use them:
// packets see the ranges of a transaction last (nf_tables_api.c, nf_tables_commit).
func (w *writer) transactions(steps []*step, room int) iter.Seq2[ledger.Phase, *nft.Tx] {
	return func(yield func(ledger.Phase, *nft.Tx) bool) {
		bytes, first, last := 0, ledger.Phase(0), ledger.Phase(0)
		w.tx.Reset()
		for _, s := range steps {
			n := w.Size(*s)
			begins := slices.ContainsFunc(apart(), func(from ledger.Phase) bool { return last < from && from <= s.Phase })
			if bytes > 0 && (begins || bytes+n > room) {
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

// apart returns the phases with which a new transaction begins. Sets and chains are deleted in one of their
// own: kernels before 6.2 see only in the next one that nothing leads there any more.
func apart() []ledger.Phase {
	return []ledger.Phase{chainsAdded, refusalsGone, targetsGone, setsGone, chainsGone}
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
	case k.of < firstElement && s.Op == ledger.Empty:
		tx.FlushChain(table, k.name)
	case k.of < firstElement && s.Op == ledger.Remove:
		tx.DeleteChain(table, k.name)
	case k.of < firstElement:
		tx.SetChain(table, w.render.rendered(k))
	case k.of.ranged():
		had, want := decode(s.Old), decode(s.New)
		for _, e := range without(had, want) {
			tx.Delete(table, l[k.of], e)
		}
		for _, e := range without(want, had) {
			tx.Add(table, l[k.of], e)
		}
	default:
		if s.Op != ledger.Add {
			tx.Delete(table, l[k.of], element(l[k.of], k, s.Old))
		}
		if s.Op != ledger.Remove {
			tx.Add(table, l[k.of], element(l[k.of], k, s.New))
		}
	}
}

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
