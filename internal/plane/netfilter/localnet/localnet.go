// Package localnet lets NodePorts be reached on 127.0.0.1 where the configuration asks for it. The kernel routes
// connections from there to other hosts only with net.ipv4.conf.all.route_localnet
// (Documentation/networking/ip-sysctl.rst), which also lets neighbours send packets to 127.0.0.0/8 (CVE-2020-8558).
//
// A Follower drops their packets with a guard: an nf_tables table of its own that drops packets with a source or
// destination in 127.0.0.0/8 unless they come from lo. The guard is added before the parameter becomes 1 and deleted
// after it is 0 again. It stays in the kernel when the process ends, however it ends, and it records whether Sluice set
// the parameter.
package localnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/work"
)

const (
	key     = "net/ipv4/conf/all/route_localnet"
	pattern = "net/ipv4/conf/*/route_localnet"
)

// Sysctl reads kernel parameters, and writes those that have another value.
type Sysctl interface {
	Match(pattern string) (map[string]string, error)
	Set(key, value string) error
}

// Kernel reads and writes nf_tables: nft.Conn, or nft.Fake.
type Kernel interface {
	Read(ctx context.Context, t nft.Table, expected []nft.ExpectedKeys) (*nft.State, error)
	Commit(ctx context.Context, tx *nft.Tx) error
	DeleteTables(ctx context.Context, tables ...nft.Table) error
	Watch(ctx context.Context, tables []nft.Table, subscribed func(), report func(nft.Edit)) error
}

// Options for New. Sysctl and Kernel are needed.
type Options struct {
	Sysctl Sysctl
	Kernel Kernel

	// Report gets failures, changes that other programs made to the guard, and a
	// parameter that another program set to 1, each once until it is over.
	Report func(error)
}

// Follower sets the parameter when NodePorts need it, and keeps the guard. Its methods
// may be called from several goroutines.
type Follower struct {
	opt        Options
	loop       *work.Loop
	guarded    chan struct{} // closed when the guard is or will be in the kernel
	setGuarded func()

	edits chan nft.Edit // of other programs; one that is not received yet stands for all later ones

	mu       sync.Mutex // held while the kernel is read and written
	need     need
	behind   bool      // the last attempt failed
	marked   bool      // Sluice set the parameter, even if the mark was removed since
	leftOn   bool      // the parameter stays 1 without need, which was reported
	restored time.Time // when a repair was reported last
}

// New returns a Follower. It does nothing yet.
func New(o Options) *Follower {
	f := &Follower{opt: o, guarded: make(chan struct{}), edits: make(chan nft.Edit, 1)}
	f.loop = work.New(f.restore, o.Report)
	f.setGuarded = sync.OnceFunc(func() { close(f.guarded) })
	return f
}

// Applied takes over the addresses that serve NodePorts.
func (f *Follower) Applied(c route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.OldHost == nil && f.need != unknown {
		return
	}
	f.need = notNeeded
	if c.Table.Host.NodePorts.Loopback4() {
		f.need = needed
	}
	if _, err := f.attempt(context.Background(), f.need); err != nil { // brief, and not to be interrupted
		f.loop.Wake() // Run tries again, and reports a failure
	}
}

// restore makes the guard at the start if the parameter is 1, whichever program set it. Later it repairs the guard
// after an edit, or tries again after a failure. After an edit it removes nothing: the edit may come from another
// Sluice that prepares this node for its own start.
func (f *Follower) restore(ctx context.Context) (time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.need
	if n == notNeeded && !f.behind {
		n = unknown
	}
	by := ""
	select {
	case e := <-f.edits:
		by = cmp.Or(e.By, "name unknown")
	default:
	}
	wrote, err := f.attempt(ctx, n)
	if by != "" && wrote && time.Since(f.restored) >= reportPeriod {
		f.restored = time.Now()
		f.opt.Report(fmt.Errorf("another program (%s) changed table %s, which keeps neighbours out of 127.0.0.0/8; "+
			"it was restored", by, Table()))
	}
	return 0, err
}

// attempt establishes the state for a need, and returns whether it wrote the guard. It reports once that the parameter
// stays 1 without need. The lock is held.
func (f *Follower) attempt(ctx context.Context, n need) (wrote bool, err error) {
	wrote, err = f.establish(ctx, n)
	left := errors.Is(err, errLeftOn)
	if left && !f.leftOn {
		f.opt.Report(err)
	}
	if left {
		err = nil
	}
	if n != unknown {
		f.leftOn = left
	}
	f.behind = err != nil
	return wrote, err
}

// establish reads the kernel and writes the difference to the state for a need. After each write, and after a failure
// of any, the guard exists whenever the parameter is 1. The error is errLeftOn if all writes succeeded and the
// parameter stays 1 without need. The lock is held.
func (f *Follower) establish(ctx context.Context, n need) (wrote bool, err error) {
	have, err := f.read(ctx, n)
	if err != nil {
		return false, err
	}
	if have.guard != absent || have.routed() || n == needed {
		f.setGuarded()
	}
	f.marked = have.marked
	want := have.desired(n)
	if wrote, err = f.addGuard(ctx, have, want); err != nil {
		return wrote, err
	}
	if err := f.set(have, want); err != nil {
		return wrote, err
	}
	if err := f.withdraw(ctx, have, want); err != nil {
		return wrote, err
	}
	if n == notNeeded && want.routed() {
		return wrote, errLeftOn
	}
	return wrote, nil
}

// addGuard adds or repairs the guard, before anything else is written, and the mark before the parameter is set.
func (f *Follower) addGuard(ctx context.Context, have, want state) (wrote bool, err error) {
	add := have.guard != intact && (have.routed() || want.guard == intact)
	if !add && (have.mark || !want.marked) {
		return false, nil
	}
	have.marked = have.marked || want.marked
	if err := f.opt.Kernel.Commit(ctx, addGuard(have)); err != nil {
		what := "net.ipv4.conf.all.route_localnet is 1 and neighbours may reach what listens on 127.0.0.1; set it to 0"
		if want.all && !have.all {
			what = "NodePorts on 127.0.0.1 do not work"
		}
		return false, fmt.Errorf("%s: %w", what, err)
	}
	f.marked = have.marked
	return true, nil
}

// set sets the parameter.
func (f *Follower) set(have, want state) error {
	value, what := "0", stillRouted()
	if want.all {
		value, what = "1", "NodePorts on 127.0.0.1 do not work"
	}
	if want.all == have.all {
		return nil
	}
	if err := f.opt.Sysctl.Set(key, value); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// withdraw deletes the guard or its mark, after everything else was written.
func (f *Follower) withdraw(ctx context.Context, have, want state) error {
	tx := &nft.Tx{}
	switch {
	case want.guard == absent && (have.guard != absent || have.routed()):
		if err := f.opt.Kernel.DeleteTables(ctx, Table()); err != nil {
			return fmt.Errorf("table %s stays, though nothing needs it any more: %w", Table(), err)
		}
	case have.marked && !want.marked && (have.mark || have.guard != intact): // the mark is in the kernel
		tx.DeleteChain(Table(), markChain().Name)
		if err := f.opt.Kernel.Commit(ctx, tx); err != nil {
			return fmt.Errorf("%s: %w", stillRouted(), err)
		}
	}
	f.marked = want.marked
	return nil
}

func stillRouted() string {
	return fmt.Sprintf("NodePorts on 127.0.0.1 are no longer served, but 127.0.0.0/8 is still routed; "+
		"table %s stays and keeps neighbours out", Table())
}

// read reads the parameter and the guard. A kernel without the parameter never routes 127.0.0.0/8.
func (f *Follower) read(ctx context.Context, n need) (s state, err error) {
	if err := s.readValues(f.opt.Sysctl); err != nil {
		return s, err
	}
	err = s.readGuard(ctx, f.opt.Kernel)
	s.marked = s.mark || f.marked
	if err == nil || !s.routed() && n != needed {
		return s, nil
	}
	what := "NodePorts on 127.0.0.1 do not work, as the guard of 127.0.0.0/8, table %s of nf_tables, cannot be read: " +
		"%w; use a kernel with CONFIG_NF_TABLES"
	if s.routed() {
		what = "net.ipv4.conf.all.route_localnet, or that of an interface, is 1, and neighbours may reach what listens " +
			"on 127.0.0.1, as the guard of 127.0.0.0/8, table %s of nf_tables, cannot be read: %w; " +
			"set it to 0, or use a kernel with CONFIG_NF_TABLES"
	}
	return s, fmt.Errorf(what, Table(), err)
}

// errLeftOn reports that the parameter stays 1 though no NodePort needs it.
var errLeftOn = errors.New("route_localnet (net.ipv4.conf) is 1 though NodePorts are not served on 127.0.0.1, and " +
	"Sluice did not set it: it stays, and table ip sluice-localnet stays and keeps neighbours out of 127.0.0.0/8; " +
	"if no program needs it, set it to 0")
