package iptables

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// Watch reports changes that other programs make to the tables nat, filter and mangle of both families, until the
// context ends; it returns nil then. It reports changes to chains of the proxy and to rules that jump to them, the
// deletion of a table, and new rules in a built-in chain that no packet gets past. Changes by Restore are not reported.
// Subscribed is called once all later changes are noticed. Only one Watch runs at a time.
//
// The kernel reports changes of nft tables at once. Legacy tables are polled: every change that another program
// makes to them is Unclear, and every Restore is followed by an Edit that is only Possible.
func (t *Tools) Watch(ctx context.Context, ours func(chain string) bool, subscribed func(), report func(Edit)) error {
	if t.variant == NFT {
		return t.watchNFT(ctx, ours, subscribed, report)
	}
	return t.watchLegacy(ctx, subscribed, report)
}

// watched reports whether Watch covers a table of nf_tables.
func watched(t nft.Table) bool {
	return (t.Family == nft.IP4 || t.Family == nft.IP6) && (t.Name == "nat" || t.Name == "filter" || t.Name == "mangle")
}

// ownPrograms are the running programs of this process. The listeners ignore their changes.
type ownPrograms struct {
	mu        sync.Mutex
	running   map[int]bool             // by process ID
	listeners map[*nft.Listener]func() // called when one may have missed an edit
}

// started makes the listeners ignore a program of this process. Its netlink port is its process ID
// (net/netlink/af_netlink.c, netlink_autobind). If another socket in the namespace has that port, the
// listeners report the changes of the program, and the tables are compared once more than necessary.
// It is called before the program gets its input. The returned function is called when it has ended.
func (o *ownPrograms) started(pid int) (ended func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running == nil {
		o.running = map[int]bool{}
	}
	o.running[pid] = true
	o.filter()
	return func() { o.ended(pid) }
}

// ended reverts started. If another socket has the program's port now, it may have had that all the time, in a
// container with process IDs of its own: the listeners have ignored its changes.
func (o *ownPrograms) ended(pid int) {
	taken := nft.PortTaken(uint32(pid))
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.running, pid)
	o.filter()
	for _, missed := range o.listeners {
		if taken {
			missed()
		}
	}
}

// filter sets the filter of the listeners. A listener that refuses it reports our own
// writes, and the tables are compared once more than necessary.
func (o *ownPrograms) filter() {
	ports := make([]uint32, 0, len(o.running))
	for pid := range o.running {
		ports = append(ports, uint32(pid))
	}
	for l := range o.listeners {
		_ = l.Ignore(ports...)
	}
}

// listen has a listener ignore our programs, and calls missed when it may have ignored another program for that reason.
func (o *ownPrograms) listen(l *nft.Listener, missed func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listeners == nil {
		o.listeners = map[*nft.Listener]func(){}
	}
	o.listeners[l] = missed
	o.filter()
}

func (o *ownPrograms) leave(l *nft.Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.listeners, l)
}

// lost is the What of an edit without details.
const lost = "notifications were lost"

// maxWhat is how many changes of an edit are named.
const maxWhat = 3

// found has descriptions of changes.
type found []string

func (f *found) add(what string) {
	if !slices.Contains(*f, what) && len(*f) <= maxWhat {
		*f = append(*f, what)
	}
}

func (f *found) String() string {
	text := strings.Join((*f)[:min(len(*f), maxWhat)], ", ")
	if len(*f) > maxWhat {
		text += " and more"
	}
	return text
}
