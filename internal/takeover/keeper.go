package takeover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/kernel/ipset"
	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/kernel/link"
	"github.com/sluice-proxy/sluice/internal/kernel/socket"
)

const (
	defaultSoon   = 3 * time.Second
	defaultRarely = time.Minute
	defaultGrace  = 2 * time.Minute // a kube-proxy listens within a minute of its start

	// passing is far longer than a packet takes through this node.
	passing = 10 * time.Millisecond

	remembered = 8 // entries of what was removed
)

// What removes rules of iptables-legacy that Sluice lacks the programs or the right
// to remove. The first leaves the mode of Sluice as it is.
const (
	remedyRunning = "Sluice removes them when it runs with the programs of iptables and CAP_NET_RAW: " +
		"kubectl -n kube-system patch daemonset sluice --patch-file deploy/kubernetes/components/iptables/daemonset.yaml; " +
		"as a unit of systemd: install iptables, and deploy/systemd/iptables.conf as a drop-in"
	remedyCleanup = "kubectl apply -k deploy/kubernetes/cleanup-iptables, or install iptables on the node and run sluice --cleanup there as root"
)

// Keeper takes over after the first complete sync, and watches that no other
// kube-proxy is started.
type Keeper struct {
	rules        *rules
	watch        *watch
	own          *own
	ready        <-chan struct{}
	log          *slog.Logger
	soon, rarely time.Duration
	grace        time.Duration     // for a process that may be a kube-proxy to show it
	ignoring     bool              // a kube-proxy that runs is not waited for
	record       func(note string) // makes an Event of the Node about a process
	recordLeft   func(note string) // makes an Event of the Node about rules that stay

	doubt doubt
	clean bool          // nothing was left at the last look, and nobody made more
	wait  time.Duration // before the next look, while there is something to remove
	said  string        // the error last logged

	mu    sync.Mutex
	state State
}

// New returns a Keeper. ready is closed when Sluice's own rules are in force.
func New(o Options, ready <-chan struct{}) *Keeper {
	k := &Keeper{
		rules: newRules(o), watch: newWatch(o), own: &own{pending: o.Others, log: o.Log}, ready: ready, log: o.Log,
		soon: o.Soon, rarely: o.Rarely, grace: cmp.Or(o.Grace, defaultGrace), ignoring: o.IgnoreKubeProxy, record: o.Record, recordLeft: o.RecordLeft,
		state: State{Leftovers: map[Mechanism]int{}, Removed: map[Mechanism]int{}},
	}
	if k.soon == 0 {
		k.soon = defaultSoon
	}
	if k.rarely == 0 {
		k.rarely = defaultRarely
	}
	if k.record == nil {
		k.record = func(string) {}
	}
	if k.recordLeft == nil {
		k.recordLeft = func(string) {}
	}
	k.rules.remedy = remedyRunning
	return k
}

func newRules(o Options) *rules {
	return &rules{
		chains:  iptables.NewKernel(iptables.Options{NetNS: o.NetNS, Log: o.Log}),
		tables:  tables{netns: o.NetNS},
		servers: ipvs.New(ipvs.Options{NetNS: o.NetNS}),
		sets:    ipset.New(ipset.Options{NetNS: o.NetNS}),
		links:   link.New(link.Options{NetNS: o.NetNS}),
		host:    address.New(address.Options{NetNS: o.NetNS}),
		sockets: socket.New(socket.Options{NetNS: o.NetNS}),
		ours:    o.Ours, nodePorts: o.NodePorts,
		pause: func() { time.Sleep(passing) },
	}
}

// Run takes over and keeps watch until the context ends.
func (k *Keeper) Run(ctx context.Context) error {
	select {
	case <-k.ready:
	case <-ctx.Done():
		return nil
	}
	for {
		select {
		case <-time.After(k.turn(ctx)):
		case <-ctx.Done():
			return nil
		}
	}
}

// turn removes what Sluice itself left before, looks after kube-proxy, and says
// when to do so again.
func (k *Keeper) turn(ctx context.Context) time.Duration {
	again := k.own.remove(ctx, k.soon, k.rarely)
	k.set(func(s *State) { s.Others = k.own.lines() })
	next := k.look(ctx)
	if again > 0 {
		return min(again, next)
	}
	return next
}

// State is how far the take-over is, at any time and for any goroutine.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.clone()
}

func (k *Keeper) set(change func(*State)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.state)
}

// look looks once, does what is to be done, and says when to look again.
func (k *Keeper) look(ctx context.Context) time.Duration {
	rival, err := k.watch.look(ctx)
	rival = k.weigh(ctx, rival)
	if ctx.Err() != nil {
		return 0
	}
	before := k.State().Rival
	if rival != nil {
		if before == nil || before.PID != rival.PID || before.Certain != rival.Certain {
			k.meet(ctx, rival)
		}
		if rival.Mode != "" { // just started, or about to stop, it does not say
			k.know(rival)
		}
		k.clean, k.wait = false, 0
		return k.soon
	}
	if before != nil {
		k.part(ctx, before)
	}
	if k.clean {
		k.report(err)
		return k.rarely
	}
	return k.remove(ctx, err)
}

// meet tells of a kube-proxy that runs. Its rules stay: it would put them back.
func (k *Keeper) meet(ctx context.Context, rival *Rival) {
	if !k.rules.shared(rival.Mode) {
		text := "A kube-proxy runs beside this proxy; its rules stay until it is stopped"
		if !rival.Certain {
			text = "A process called kube-proxy runs beside this proxy; kube-proxy's rules stay until it is clear what it is"
		}
		k.log.Warn(text, "pid", rival.PID, "mode", rival.Mode, "program", rival.Program, "noticed", rival.How)
	}
	found, err := k.rules.find(ctx)
	k.report(err)
	k.set(func(s *State) { s.Looked, s.Rival, s.Same, s.Leftovers = true, rival, false, counts(found.entries()) })
	if lines := k.State().Lines(); len(lines) > 0 {
		k.record(lines[0]) // the first is about the rival
	}
}

// know takes note of what a kube-proxy that runs says of itself. One that writes
// what Sluice writes is worse than one that merely does the same work.
func (k *Keeper) know(rival *Rival) {
	same := k.rules.shared(rival.Mode)
	if same && !k.State().Same {
		k.log.Warn("A kube-proxy runs beside this proxy and writes the same chains, each against the other: stop it",
			"pid", rival.PID, "mode", rival.Mode, "program", rival.Program, "noticed", rival.How)
	}
	k.set(func(s *State) { s.Rival, s.Same = rival, same })
}

// part tells of a kube-proxy that runs no more.
func (k *Keeper) part(ctx context.Context, from *Rival) {
	text := "kube-proxy has stopped, removing its rules"
	if k.State().Same {
		text = "kube-proxy has stopped, this proxy alone writes the chains that both wrote"
	}
	k.log.LogAttrs(ctx, slog.LevelInfo, text, slog.Int("pid", from.PID), slog.String("mode", from.Mode))
	k.set(func(s *State) { s.Rival, s.Same = nil, false })
}

// remove removes what is left, and looks again afterwards: if there is something
// still, or again because somebody puts it back, each time later.
func (k *Keeper) remove(ctx context.Context, err error) time.Duration {
	found, e := k.rules.find(ctx)
	err = errors.Join(err, e)
	entries := found.entries()
	var account Account
	if len(entries) > 0 {
		account, e = k.rules.remove(ctx, found)
		err = errors.Join(err, e)
	}
	if ctx.Err() != nil {
		return 0
	}
	k.enter(entries, account)
	k.report(err)
	if k.clean = err == nil && len(entries) == 0; k.clean {
		k.wait = 0
		return k.rarely
	}
	k.wait = min(max(k.soon, 2*k.wait), k.rarely)
	return k.wait
}

// enter keeps account of what was found and removed, and logs what is new.
func (k *Keeper) enter(found []Entry, a Account) {
	for _, e := range a.Removed {
		k.log.Info("Removed what "+e.whose()+" left", "mechanism", string(e.Mechanism), "removed", e.What)
	}
	for _, rule := range a.Lost {
		k.log.Warn("Removed a rule of others, which led to one of kube-proxy's chains", "rule", rule)
	}
	if last := k.State().Last; len(a.Left) > 0 && (len(a.Removed) > 0 || len(last.Left) == 0) {
		for _, e := range a.Left {
			k.leave(e)
		}
	}
	removed := counts(a.Removed)
	k.set(func(s *State) {
		s.Looked, s.Leftovers = true, counts(found)
		for m, n := range removed {
			s.Removed[m] += n
			if s.Leftovers[m] -= n; s.Leftovers[m] <= 0 {
				delete(s.Leftovers, m)
			}
		}
		s.Last.Left, s.Last.Lost = a.Left, a.Lost
		s.Last.Removed = append(s.Last.Removed, a.Removed...)
		s.Last.Removed = s.Last.Removed[max(0, len(s.Last.Removed)-remembered):]
	})
}

// leave reports what is not removed. If a person has to do something, it makes an
// Event.
func (k *Keeper) leave(e Entry) {
	if e.Remedy == "" {
		k.log.Info("Left alone", "mechanism", string(e.Mechanism), "left", e.What)
		return
	}
	k.log.Warn("Cannot remove what "+e.whose()+" left", "mechanism", string(e.Mechanism), "left", e.What, "remedy", e.Remedy)
	k.recordLeft(fmt.Sprintf("%s left rules that Sluice cannot remove: %s: %s", strings.TrimSuffix(e.whose(), ","), e, e.Remedy))
}

// report logs an error when it is new, and when it is over.
func (k *Keeper) report(err error) {
	k.set(func(s *State) { s.Err = err })
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == k.said:
	case err != nil:
		k.log.Warn("Cannot take over from kube-proxy, retrying", "error", err)
	default:
		k.log.Info("Can take over from kube-proxy again")
	}
	k.said = text
}
