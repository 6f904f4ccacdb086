package ebpf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// The phases of a write. After each of them a program finds a backend at every slot below the count of a frontend.
const (
	_      ledger.Phase = iota
	fill                // slots and members, to which frontends refer
	lead                // frontends and addresses of NodePorts
	attach              // programs
	leave               // remove entries of phase lead
	empty               // remove entries of phase fill
)

func handling(k key) ledger.Handling {
	switch k.Table {
	case bpf.Frontends, bpf.NodeAddrs:
		return ledger.Handling{Add: lead, Change: lead, Remove: leave}
	case bpf.Programs:
		return ledger.Handling{Add: attach, Change: attach, Remove: leave}
	default:
		return ledger.Handling{Add: fill, Change: fill, Remove: empty, Target: true}
	}
}

func order(a, b key) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), strings.Compare(a.Data, b.Data))
}

// writer writes steps into the maps.
type writer struct {
	kernel Kernel
	room   int
}

// Write implements ledger.Writer. It may carry out steps of a phase again: an addition or change has the same result
// each time, and a removal needs no room.
func (w writer) Write(ctx context.Context, steps []*step) error {
	list := make([]bpf.Step, len(steps))
	for i, s := range steps {
		list[i] = bpf.Step{Entry: bpf.Entry{Key: s.Key, Value: s.New}, Remove: s.Op == ledger.Remove}
	}
	err := w.kernel.Write(ctx, list)
	if full, is := errors.AsType[*bpf.NoRoom](err); is {
		return &ledger.Refusal{Phase: steps[full.Step].Phase, Err: err}
	}
	return err
}

// Print implements ledger.Writer.
func (w writer) Print(steps []*step) string {
	var b strings.Builder
	for _, s := range steps {
		verb := [...]string{ledger.Add: "add", ledger.Change: "change", ledger.Remove: "delete"}[s.Op]
		fmt.Fprintf(&b, "%s %s\n", verb, bpf.Entry{Key: s.Key, Value: s.New})
	}
	return b.String()
}

// Room implements ledger.Writer.
func (w writer) Room() int { return w.room }

// Size implements ledger.Writer.
func (w writer) Size(step) int { return 1 }
