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
// transaction that does not fit is divided further. A transaction is valid until the
// next one is made.
func (w *writer) transactions(steps []*step, room int) iter.Seq2[ledger.Phase, *nft.Tx] {
	return func(yield func(ledger.Phase, *nft.Tx) bool) {
		tx, bytes, first := w.tx, 0, ledger.Phase(0)
		tx.Reset()
		flush := func() bool {
			done := tx.Size() > 0 && !yield(first, tx)
			tx.Reset()
			bytes = 0
			return !done
		}
		for _, end := range w.ends(steps, room) {
			for len(steps) > 0 && steps[0].Phase < end {
				n := size(*steps[0])
				if bytes > 0 && bytes+n > room && !flush() {
					return
				}
				if bytes == 0 {
					first = steps[0].Phase
				}
				w.render.into(tx, *steps[0])
				bytes += n
				steps = steps[1:]
			}
			if !flush() {
				return
			}
		}
	}
}

// ends returns the phases with which a new transaction begins. Ranges come in one before
// the chains that use them: packets see the chains of a transaction at once, and its
// ranges only when the kernel has been through all of it (nf_tables_api.c,
// nf_tables_commit). Until then no client is allowed. Tables that are new are made in one
// transaction otherwise, as no packet is in the middle of them. Sets and chains are
// deleted in transactions of their own: kernels before 6.2 see only in the next one that
// nothing leads there any more.
func (w *writer) ends(steps []*step, room int) []ledger.Phase {
	ends := []ledger.Phase{refusalsGone, targetsGone, setsGone, chainsGone, afterLastPhase}
	tables, bytes := 0, 0
	for _, s := range steps {
		bytes += size(*s)
		if s.Key.of == tableObject && s.Op == ledger.Add {
			tables++
		}
	}
	if tables == w.families && bytes <= room {
		ends = ends[len(ends)-1:]
	}
	if slices.ContainsFunc(steps, func(s *step) bool { return s.Phase == rangesAdded }) {
		ends = append([]ledger.Phase{chainsAdded}, ends...)
	}
	return ends
}
