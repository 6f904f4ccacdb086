package iptables

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// Watch tells of what other programs change in the tables nat, filter and mangle
// of both families, until the context ends; it returns nil then. An edit counts
// when it is about a chain that is ours, or about a rule of any chain that leads
// to one, or takes a whole table away, or ends every packet's way in a chain of the
// kernel's. What Restore does is not told. Subscribed
// is called when it notices everything from then on.
//
// The nft variant tells at once. Legacy tables tell nobody, and are looked at.
func (t *Tools) Watch(ctx context.Context, ours func(chain string) bool, subscribed func(), tell func(Edit)) error {
	if t.variant == NFT {
		return t.hear(ctx, ours, subscribed, tell)
	}
	return t.look(ctx, ours, subscribed, tell)
}

// watched reports whether Watch is about a table of nf_tables.
func watched(t nft.Table) bool {
	return (t.Family == nft.IP4 || t.Family == nft.IP6) && (t.Name == "nat" || t.Name == "filter" || t.Name == "mangle")
}

// own is what tells our own doing from that of others.
type own struct {
	mu        sync.Mutex
	running   map[int]bool // programs of ours, by process
	past      [64]int      // such that have ended
	next      int
	listeners map[*nft.Listener]func() // called when one may have missed an edit
	looks     map[*look]bool
}

// started keeps the listeners from hearing what a program of ours does. Its
// netlink port is the number of its process (net/netlink/af_netlink.c,
// netlink_autobind), unless another socket in the namespace has that. The filter
// is in place before the program has its input, and goes when it has ended.
func (o *own) started(pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running == nil {
		o.running = map[int]bool{}
	}
	o.running[pid] = true
	o.past[o.next%len(o.past)] = pid
	o.next++
	o.filter()
}

// ended ends what started began. If another socket has the port that was the
// program's, its owner may have had it all along, in a container with process
// numbers of its own: the listeners heard nothing of that.
func (o *own) ended(pid int) {
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

// filter tells the listeners. One that does not take it hears our own writes, and
// tells of them: the tables are compared for nothing.
func (o *own) filter() {
	ports := make([]uint32, 0, len(o.running))
	for pid := range o.running {
		ports = append(ports, uint32(pid))
	}
	for l := range o.listeners {
		_ = l.Ignore(ports...)
	}
}

// listen keeps a listener from hearing our programs, and calls missed when it may
// not have heard another one for that reason.
func (o *own) listen(l *nft.Listener, missed func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listeners == nil {
		o.listeners = map[*nft.Listener]func(){}
	}
	o.listeners[l] = missed
	o.filter()
}

func (o *own) leave(l *nft.Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.listeners, l)
}

// was reports whether a process was one of ours.
func (o *own) was(pid uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return pid != 0 && slices.Contains(o.past[:], int(pid))
}

// looking calls fn for each watch of legacy tables.
func (o *own) looking(fn func(*look)) {
	o.mu.Lock()
	looks := slices.Collect(maps.Keys(o.looks))
	o.mu.Unlock()
	for _, l := range looks {
		fn(l)
	}
}
