// Package conntracktest has a conntrack table in memory, and adds entries to that of the kernel.
package conntracktest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// Table is a conntrack table in memory that behaves like the kernel's: a zone has one entry
// for each protocol, source and destination, and Delete ignores an entry that a newer one
// has replaced. The zero value is empty and ready for use.
type Table struct {
	// Fail, if set, is called before each listing ("each"), reading ("get") and deletion ("delete"). If it
	// returns an error, the operation returns that error instead. Set it before use.
	Fail func(verb string) error

	// Listed, if set, is called at the end of each listing. Set it before use.
	Listed func(conntrack.Filter)

	mu      sync.Mutex
	entries []conntrack.Entry
	filters []conntrack.Filter
	lastID  uint32
}

// ErrExists is the error of Create if the table has an entry with the same addresses.
var ErrExists = errors.New("conntrack entry exists")

// Create adds an entry. It marks it as translated if its answers have another source
// than the original destination, as the kernel does.
func (f *Table) Create(e conntrack.Entry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.ContainsFunc(f.entries, func(o conntrack.Entry) bool { return same(e, o) }) {
		return ErrExists
	}
	if e.ReplySrc != e.OrigDst {
		e.Status |= conntrack.DstNAT
	}
	if e.ReplyDst != e.OrigSrc {
		e.Status |= conntrack.SrcNAT
	}
	f.lastID++
	e.ID = f.lastID
	f.entries = append(f.entries, e)
	return nil
}

// Each implements the contract of conntrack.Table.Each.
func (f *Table) Each(ctx context.Context, filter conntrack.Filter, fn func(conntrack.Entry) error) error {
	if err := f.fail(ctx, "each"); err != nil {
		return err
	}
	f.mu.Lock()
	f.filters = append(f.filters, filter)
	entries := slices.Clone(f.entries)
	f.mu.Unlock()
	for _, e := range entries {
		if !filter.Match(e) {
			continue
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	if f.Listed != nil {
		f.Listed(filter)
	}
	return nil
}

// Get implements the contract of conntrack.Table.Get.
func (f *Table) Get(ctx context.Context, e conntrack.Entry) (conntrack.Entry, bool, error) {
	if err := f.fail(ctx, "get"); err != nil {
		return conntrack.Entry{}, false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.entries {
		if same(e, o) && e.ID == o.ID {
			return o, true, nil
		}
	}
	return conntrack.Entry{}, false, nil
}

// Change replaces the state of an entry, which a listing returned.
func (f *Table) Change(e conntrack.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, o := range f.entries {
		if same(e, o) && e.ID == o.ID {
			f.entries[i] = e
		}
	}
}

// Delete implements the contract of conntrack.Table.Delete.
func (f *Table) Delete(ctx context.Context, e conntrack.Entry) error {
	if err := f.fail(ctx, "delete"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries = slices.DeleteFunc(f.entries, func(o conntrack.Entry) bool {
		return same(e, o) && (e.ID == 0 || e.ID == o.ID)
	})
	return nil
}

// Filters returns the filters of all listings since the last call.
func (f *Table) Filters() []conntrack.Filter {
	f.mu.Lock()
	defer f.mu.Unlock()
	filters := f.filters
	f.filters = nil
	return filters
}

// String returns the table, one sorted line per entry.
func (f *Table) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	lines := make([]string, 0, len(f.entries))
	for _, e := range f.entries {
		lines = append(lines, e.String()+"\n")
	}
	slices.SortFunc(lines, cmp.Compare)
	return strings.Join(lines, "")
}

func (f *Table) fail(ctx context.Context, verb string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.Fail == nil {
		return nil
	}
	return f.Fail(verb)
}

// same reports whether a table can have only one of two entries.
func same(a, b conntrack.Entry) bool {
	return a.Protocol == b.Protocol && a.Zone == b.Zone &&
		a.OrigSrc == b.OrigSrc && a.OrigDst == b.OrigDst
}
