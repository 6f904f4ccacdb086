// Package takeover takes a node over from kube-proxy. It finds the rules that kube-proxy of any mode left in the
// kernel, detects a kube-proxy that still runs, and removes the rules once Sluice's own are in force and no kube-proxy
// would write them again. On systems other than Linux kube-proxy leaves no rules: only other modes of Sluice may.
package takeover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

// Mechanism is a way in which kube-proxy programs the kernel.
type Mechanism string

// The mechanisms, as the label of the metrics names them.
const (
	IPTablesLegacy Mechanism = "iptables-legacy"
	IPTablesNFT    Mechanism = "iptables-nft"
	IPVS           Mechanism = "ipvs"
	NFTables       Mechanism = "nftables"
)

// Mechanisms returns all mechanisms, sorted.
func Mechanisms() []Mechanism { return []Mechanism{IPTablesLegacy, IPTablesNFT, IPVS, NFTables} }

// Options for New and Cleanup.
type Options struct {
	NetNS int // file descriptor of the network namespace to serve; 0: the current one
	Log   *slog.Logger

	// Ours are the mechanisms in which Sluice's rules have kube-proxy's names: the plane itself removes other rules there.
	Ours []Mechanism

	// Others are the planes that Sluice may have used on this node before. Their rules are removed once Sluice's own are
	// in force, even if a kube-proxy runs. Cleanup ignores them.
	Others []Leftover

	// Address is where kube-proxy serves its diagnostics; empty: 127.0.0.1:10249.
	Address string
	// Dial connects to it. If nil, the connection is in the current network namespace.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// IgnoreKubeProxy removes kube-proxy's rules without looking for one that runs.
	IgnoreKubeProxy bool
	// Record makes an Event of the Node about a kube-proxy that runs; nil: none.
	Record func(note string)
	// RecordLeft makes an Event of the Node about rules that Sluice cannot remove; nil: none.
	RecordLeft func(note string)

	// Soon is the time between searches while there is a kube-proxy or its rules (3 seconds), Rarely else (a minute).
	Soon, Rarely time.Duration
}

// Leftover removes the rules that another plane of Sluice may have left.
type Leftover struct {
	Mode   string                                  // of the plane
	Remove func(context.Context) ([]string, error) // returns a few words for each thing that it removed
}

// ServerHeader is the Server header of Sluice's answers at kube-proxy's addresses, which else look like kube-proxy's.
const ServerHeader = "sluice"

// ServiceDevice is the interface with kube-proxy's addresses of Services, which are not addresses of the node.
const ServiceDevice = "kube-ipvs0"

// maxGone is how many removals State.Gone keeps.
const maxGone = 8

// Controller removes the rules of other modes of Sluice once its own rules are in force, and kube-proxy's rules when
// no kube-proxy runs. It continues to watch for a kube-proxy that starts.
type Controller struct {
	opt      Options
	ready    <-chan struct{}
	platform platform
	pending  []Leftover    // of Options.Others, not removed yet
	clean    bool          // the last search found nothing, and no kube-proxy ran since
	wait     time.Duration // before the next attempt, if the last one did not remove everything
	failure  string        // the error logged last

	mu    sync.Mutex
	state State
}

// New returns a Controller. ready is closed when Sluice's own rules are in force.
func New(o Options, ready <-chan struct{}) *Controller {
	o.Soon, o.Rarely = cmp.Or(o.Soon, 3*time.Second), cmp.Or(o.Rarely, time.Minute)
	if o.Record == nil {
		o.Record = func(string) {}
	}
	if o.RecordLeft == nil {
		o.RecordLeft = func(string) {}
	}
	return &Controller{
		opt: o, ready: ready, platform: newPlatform(o), pending: o.Others,
		state: State{Leftovers: map[Mechanism]int{}, Removed: map[Mechanism]int{}},
	}
}

// Run takes over, and watches for a kube-proxy until the context ends.
func (c *Controller) Run(ctx context.Context) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil
	}
	for {
		err := errors.Join(c.removeOthers(ctx), c.takeOver(ctx))
		if ctx.Err() != nil {
			return nil
		}
		c.report(err)
		select {
		case <-time.After(c.pause(err)):
		case <-ctx.Done():
			return nil
		}
	}
}

// pause returns the time until the next attempt, which grows while rules remain or another program restores them.
func (c *Controller) pause(err error) time.Duration {
	switch {
	case err == nil && c.clean:
		c.wait = 0
		return c.opt.Rarely
	case err == nil && c.State().KubeProxy != nil:
		c.wait = 0
		return c.opt.Soon
	}
	c.wait = min(max(c.opt.Soon, 2*c.wait), c.opt.Rarely)
	return c.wait
}

// removeOthers removes the rules of other planes of Sluice, each until that succeeded once.
func (c *Controller) removeOthers(ctx context.Context) (err error) {
	var pending []Leftover
	for _, l := range c.pending {
		gone, removeErr := l.Remove(ctx)
		if what := strings.Join(gone, ", "); what != "" { // even if others failed
			c.opt.Log.Info("Removed leftovers of Sluice in another mode", "mode", l.Mode, "removed", what)
			c.update(func(s *State) { s.gone(fmt.Sprintf("removed leftovers of Sluice in mode %s: %s", l.Mode, what)) })
		}
		if removeErr != nil {
			pending = append(pending, l)
			err = errors.Join(err, fmt.Errorf("remove leftovers of Sluice in mode %s: %w", l.Mode, removeErr))
		}
	}
	c.pending = pending
	return err
}

// gone adds a removal.
func (s *State) gone(line string) {
	s.Gone = append(s.Gone, line)
	s.Gone = s.Gone[max(0, len(s.Gone)-maxGone):]
}

// report stores the result of an attempt. It logs a new reason to fail, and when attempts succeed again.
func (c *Controller) report(err error) {
	c.update(func(s *State) { s.Searched, s.Err = true, err })
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == c.failure:
		return
	case err == nil:
		c.opt.Log.Info("Leftovers can be removed again")
	default:
		c.opt.Log.Warn("Cannot remove all leftovers, retrying", "error", text)
	}
	if errors.Is(err, errBeyondReach) {
		c.opt.RecordLeft("Sluice " + text)
	}
	c.failure = text
}

// State returns the progress of the take-over. It is safe for concurrent use.
func (c *Controller) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state
	s.Leftovers, s.Removed, s.Gone = maps.Clone(s.Leftovers), maps.Clone(s.Removed), slices.Clone(s.Gone)
	return s
}

func (c *Controller) update(change func(*State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.state)
}

// KubeProxy is a kube-proxy that runs on this node.
type KubeProxy struct {
	PID      int    // 0 if it is in another PID namespace, or may not be read
	Program  string // its executable; empty: not known
	Mode     string // as it reports; empty if it does not
	Evidence string // how it was detected
}

// String returns its name, process and mode.
func (r KubeProxy) String() string {
	s := "kube-proxy"
	switch {
	case r.PID != 0 && r.Program != "":
		s += fmt.Sprintf(" (pid %d, %s)", r.PID, text.Line(r.Program))
	case r.PID != 0:
		s += fmt.Sprintf(" (pid %d)", r.PID)
	}
	if r.Mode != "" {
		s += " in mode " + r.Mode
	}
	return s
}

// errBeyondReach means that legacy rules stay as Sluice lacks the programs of iptables or the right to use them.
var errBeyondReach = errors.New("cannot remove leftovers of iptables-legacy")

// State is the progress of the take-over.
type State struct {
	Searched  bool              // there was a search, after the first complete sync
	KubeProxy *KubeProxy        // runs beside Sluice; nil: none
	Same      bool              // it writes the same chains as Sluice
	Leftovers map[Mechanism]int // objects; mechanisms without any are left out
	Removed   map[Mechanism]int // objects, since the start
	Gone      []string          // the last removals, in sentences
	Left      []string          // what the last removal left, and why, in a few words each
	Err       error             // of the last attempt
}

// Beside returns which kube-proxy runs beside Sluice, and what to do; empty: none.
func (s State) Beside() string {
	switch {
	case s.KubeProxy == nil:
		return ""
	case s.Same:
		return s.KubeProxy.String() + " runs beside Sluice, and each overwrites the chains of the other: stop it"
	}
	return fmt.Sprintf("%s runs beside Sluice (%s): stop it, then Sluice removes its rules; "+
		"to remove them although it runs, start Sluice with --ignore-kube-proxy", s.KubeProxy, s.KubeProxy.Evidence)
}

// Lines returns the state in sentences; none if there was nothing to take over.
func (s State) Lines() []string {
	var out []string
	if beside := s.Beside(); beside != "" {
		out = append(out, beside)
	}
	if s.Err != nil {
		out = append(out, fmt.Sprintf("retrying: %v", s.Err))
	}
	return append(append(out, s.Gone...), leftLines(s.Left)...)
}

// Entry describes the rules of one mechanism.
type Entry struct {
	Mechanism Mechanism
	Count     int    // of objects: tables, chains, rules, virtual servers, sets, interfaces
	What      string // in words, without the mechanism
}

// String returns one line.
func (e Entry) String() string { return fmt.Sprintf("%s: %s", e.Mechanism, e.What) }

// Found is the result of Search.
type Found struct {
	KubeProxy *KubeProxy // runs on this node; nil: none
	Same      bool       // it writes the same chains as Sluice (Options.Ours)
	Rules     []Entry    // of kube-proxy, or of Sluice in mode iptables or ipvs
}

// Account lists the removed and the remaining objects.
type Account struct {
	Removed   []Entry
	Left      []string   // objects that are not kube-proxy's, or are still in use, with the reason
	KubeProxy *KubeProxy // runs, and uses rules that stay; nil: none
}

// Lines returns the account for people.
func (a Account) Lines() []string {
	var out []string
	for _, e := range a.Removed {
		out = append(out, "removed "+e.String())
	}
	out = append(out, leftLines(a.Left)...)
	if a.KubeProxy != nil {
		out = append(out, fmt.Sprintf("%s runs (%s): left the rules that it may use; to remove them stop it first, "+
			"or add --ignore-kube-proxy", a.KubeProxy, a.KubeProxy.Evidence))
	}
	return out
}

func leftLines(left []string) (lines []string) {
	for _, what := range left {
		lines = append(lines, "left "+what)
	}
	return lines
}

// counts adds up entries by mechanism.
func counts(entries []Entry) map[Mechanism]int {
	out := map[Mechanism]int{}
	for _, e := range entries {
		out[e.Mechanism] += e.Count
	}
	return out
}
