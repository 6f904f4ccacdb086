// Package localnet lets NodePorts be reached on 127.0.0.1 where the configuration
// asks for it. The kernel routes connections from there to other hosts only with
// net.ipv4.conf.all.route_localnet (Documentation/networking/ip-sysctl.rst), which
// also lets neighbours send packets to 127.0.0.0/8 (CVE-2020-8558).
//
// A Keeper drops their packets with a guard: an nf_tables table of its own that drops
// packets with a source or destination in 127.0.0.0/8 unless they come from lo.
// The guard comes before the parameter becomes 1 and goes after it is 0 again. It
// stays in the kernel when the process ends, however it ends, and it says whether
// Sluice set the parameter.
package localnet

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
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
	Read(ctx context.Context, t nft.Table) (*nft.State, error)
	Commit(ctx context.Context, tx *nft.Tx) error
	DeleteTables(ctx context.Context, tables ...nft.Table) error
	Watch(ctx context.Context, tables []nft.Table, subscribed func(), tell func(nft.Edit)) error
}

// Options for New. Sysctl and Kernel are needed.
type Options struct {
	Sysctl Sysctl
	Kernel Kernel

	// Report gets failures, changes that other programs made to the guard, and a
	// parameter that another program set to 1, each once until it is over. It may
	// be nil.
	Report func(error)
}

// Keeper keeps the guard and the parameter in step. It is a proxy.Follower. Its
// methods may be called from several goroutines.
type Keeper struct {
	opt    Options
	needed chan struct{} // closed when the guard is in the kernel for the first time
	need   func()

	mu       sync.Mutex // held while the kernel is read and written
	purpose  purpose
	marked   bool          // Sluice set the parameter, even if the mark was removed since
	reported string        // the last error
	restored time.Time     // when a repair was reported last
	retry    chan struct{} // has an item when the last attempt failed
}

// New returns a Keeper. It does nothing yet.
func New(o Options) *Keeper {
	if o.Report == nil {
		o.Report = func(error) {}
	}
	k := &Keeper{opt: o, needed: make(chan struct{}), retry: make(chan struct{}, 1)}
	k.need = sync.OnceFunc(func() { close(k.needed) })
	return k
}

// Applied follows the addresses that serve NodePorts. It implements proxy.Follower.
func (k *Keeper) Applied(c route.Change) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.OldHost == nil && k.purpose != unknown {
		return
	}
	k.purpose = unused
	if c.Table.Host.NodePorts.Loopback4() {
		k.purpose = serving
	}
	k.settle(context.Background(), k.purpose) // brief, and not to be left half done
}

// settle makes the kernel serve a purpose. It reports failures, schedules a retry by
// Run, and returns whether it wrote the guard. The lock is held.
func (k *Keeper) settle(ctx context.Context, p purpose) (wrote bool) {
	wrote, err := k.bring(ctx, p)
	if err != nil && !isLeftOn(err) {
		select {
		case k.retry <- struct{}{}:
		default:
		}
	}
	if err == nil {
		k.reported = ""
	} else if text := err.Error(); text != k.reported {
		k.reported = text
		k.opt.Report(err)
	}
	return wrote
}

// bring reads the kernel and carries out the actions for the purpose. The error is a
// *leftOnError if all succeeded and the parameter stays 1 without need. The lock is
// held.
func (k *Keeper) bring(ctx context.Context, p purpose) (wrote bool, err error) {
	f, err := k.find(ctx, p)
	if err != nil {
		return false, err
	}
	k.marked = f.marked
	if f.guard != absent || f.routed() || p == serving {
		k.need()
	}
	actions := decide(f, p)
	for _, a := range actions {
		if wrote && a == unmark {
			if f.table, _, err = read(ctx, k.opt.Kernel); err != nil {
				return wrote, err
			}
		}
		if err := k.do(ctx, f.table, a); err != nil {
			return wrote, fmt.Errorf("%s: %w", consequence(a), err)
		}
		wrote = wrote || a == guard || a == guardMarked
		k.note(a)
	}
	f.all = f.all && !slices.Contains(actions, switchOff)
	if p == unused && f.routed() {
		return wrote, &leftOnError{}
	}
	return wrote, nil
}

// note records whether Sluice set the parameter, after an action.
func (k *Keeper) note(a action) {
	switch a {
	case guardMarked:
		k.marked = true
	case unguard, unmark:
		k.marked = false
	case guard, switchOn, switchOff:
	}
}

// find reads the parameter and the guard. A kernel without the parameter never routes
// 127.0.0.0/8.
func (k *Keeper) find(ctx context.Context, p purpose) (f found, err error) {
	values, err := k.opt.Sysctl.Match(pattern)
	if err != nil {
		return f, err
	}
	for name, value := range values {
		switch device := path.Base(path.Dir(name)); {
		case value == "0", device == "lo": // packets on lo come from this host
		case device == "all":
			f.all = true
		default:
			f.others = true
		}
	}
	f.table, f.guard, err = read(ctx, k.opt.Kernel)
	f.marked = isMarked(f.table) || k.marked
	switch {
	case err == nil, !f.routed() && p != serving:
		return f, nil
	case f.routed():
		return f, fmt.Errorf("net.ipv4.conf.all.route_localnet, or that of an interface, is 1, and neighbours may reach what listens on 127.0.0.1, "+
			"as %w; set it to 0, or use a kernel with CONFIG_NF_TABLES", unguardable(err))
	}
	return f, fmt.Errorf("NodePorts on 127.0.0.1 do not work, as %w; use a kernel with CONFIG_NF_TABLES", unguardable(err))
}

func unguardable(err error) error {
	return fmt.Errorf("the guard of 127.0.0.0/8, table %s of nf_tables, cannot be read: %w", Table(), err)
}

func (k *Keeper) do(ctx context.Context, table *nft.State, a action) error {
	switch a {
	case switchOn:
		return k.opt.Sysctl.Set(key, "1")
	case switchOff:
		return k.opt.Sysctl.Set(key, "0")
	case unguard:
		return k.opt.Kernel.DeleteTables(ctx, Table())
	case guard:
		if k.marked { // the mark may be deleted, too
			a = guardMarked
		}
	case guardMarked, unmark:
	}
	return k.opt.Kernel.Commit(ctx, transaction(table, a))
}

// consequence describes the effect of a failed action.
func consequence(a action) string {
	switch a {
	case switchOn, guardMarked:
		return "NodePorts on 127.0.0.1 do not work"
	case switchOff, unmark:
		return fmt.Sprintf("NodePorts on 127.0.0.1 are no longer served, but 127.0.0.0/8 is still routed; table %s stays and keeps neighbours out", Table())
	case unguard:
		return fmt.Sprintf("table %s stays, though nothing needs it any more", Table())
	case guard:
	}
	return "net.ipv4.conf.all.route_localnet is 1 and neighbours may reach what listens on 127.0.0.1; set it to 0"
}

func isLeftOn(err error) bool {
	_, is := errors.AsType[*leftOnError](err)
	return is
}

// leftOnError reports that the parameter stays 1 though no NodePort needs it.
type leftOnError struct{}

// Error implements error.
func (*leftOnError) Error() string {
	return fmt.Sprintf("route_localnet (net.ipv4.conf) is 1 though NodePorts are not served on 127.0.0.1, and Sluice did not set it: it stays, "+
		"and table %s stays and keeps neighbours out of 127.0.0.0/8; if no program needs it, set it to 0", Table())
}
