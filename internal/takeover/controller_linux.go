package takeover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// packetTime is far longer than a packet takes through this node.
const packetTime = 10 * time.Millisecond

// maxRemoved is how many entries of State.Last.Removed are kept.
const maxRemoved = 8

// What removes rules of iptables-legacy that Sluice lacks the programs or the right
// to remove. The first leaves the mode of Sluice as it is.
const (
	remedyRunning = "Sluice removes them when it runs with the programs of iptables and CAP_NET_RAW: " +
		"kubectl -n kube-system patch daemonset sluice --patch-file deploy/kubernetes/components/iptables/daemonset.yaml; " +
		"as a unit of systemd: install iptables, and deploy/systemd/iptables.conf as a drop-in"
	remedyCleanup = "to remove them: kubectl apply -k deploy/kubernetes/cleanup-iptables, or install iptables on the node and run sluice --cleanup there as root"
)

// Controller removes kube-proxy's rules once Sluice's own are in force and no
// kube-proxy runs. It continues to watch for one that is started.
type Controller struct {
	opt      Options
	ready    <-chan struct{}
	rules    *rules
	detector *detector
	others   otherModes
	failure  failure

	clean bool // the last search found nothing, and no kube-proxy ran since
	retry backoff

	mu    sync.Mutex
	state State
}

// New returns a Controller. ready is closed when Sluice's own rules are in force.
func New(o Options, ready <-chan struct{}) *Controller {
	o = o.withDefaults()
	c := &Controller{
		opt: o, ready: ready, rules: newRules(o), detector: newDetector(o),
		others:  newOtherModes(o),
		failure: failure{log: o.Log, began: "Cannot take over from kube-proxy, retrying", ended: "Can take over from kube-proxy again"},
		retry:   backoff{first: o.Soon, last: o.Rarely},
		state:   State{Leftovers: map[Mechanism]int{}, Removed: map[Mechanism]int{}},
	}
	c.rules.remedy = remedyRunning
	return c
}

// Run takes over, and watches for a kube-proxy until the context ends.
func (c *Controller) Run(ctx context.Context) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil
	}
	for {
		wait := c.others.remove(ctx)
		c.update(func(s *State) { s.Others = c.others.lines() })
		wait = min(wait, c.reconcile(ctx))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// State returns the progress of the take-over. It is safe for concurrent use.
func (c *Controller) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.clone()
}

func (c *Controller) update(change func(*State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.state)
}

// reconcile looks for a kube-proxy, and removes its rules if none runs. It returns the
// time until the next call.
func (c *Controller) reconcile(ctx context.Context) time.Duration {
	kubeProxy, err := c.detector.detect(ctx)
	if c.opt.IgnoreKubeProxy {
		c.ignore(kubeProxy)
		kubeProxy = nil
	}
	if ctx.Err() != nil {
		return 0
	}
	before := c.State().KubeProxy
	if kubeProxy != nil {
		if before == nil || before.PID != kubeProxy.PID {
			c.started(ctx, kubeProxy)
		}
		if kubeProxy.Mode != "" { // while it starts or stops it does not report one
			c.setMode(kubeProxy)
		}
		c.clean = false
		c.retry.reset()
		return c.opt.Soon
	}
	if before != nil {
		c.stopped(before)
	}
	if c.clean {
		c.report(err)
		return c.opt.Rarely
	}
	return c.remove(ctx, err)
}

// ignore stores and reports that a kube-proxy is not waited for; nil: none runs.
func (c *Controller) ignore(p *KubeProxy) {
	why := ""
	if p != nil {
		why = fmt.Sprintf("%s runs beside Sluice (%s) and is ignored, as --ignore-kube-proxy says", p, p.Evidence)
	}
	if c.State().Ignored == why {
		return
	}
	c.update(func(s *State) { s.Ignored = why })
	if why != "" {
		c.opt.Log.Warn("Removing kube-proxy's rules although it runs", "reason", why)
		c.opt.Record(why)
	}
}

// started reports a kube-proxy that runs. Its rules stay, as it would write them again.
func (c *Controller) started(ctx context.Context, kubeProxy *KubeProxy) {
	if !c.rules.shared(kubeProxy.Mode) {
		c.warn("A kube-proxy runs beside this proxy; its rules stay until it is stopped", kubeProxy)
	}
	found, err := c.rules.find(ctx)
	c.report(err)
	c.update(func(s *State) {
		s.Searched, s.KubeProxy, s.Same, s.Leftovers = true, kubeProxy, false, counts(found.entries())
	})
	if lines := c.State().Lines(); len(lines) > 0 {
		c.opt.Record(lines[0]) // the first is about the kube-proxy
	}
}

// setMode stores the mode that a kube-proxy reports. One that writes the same chains as
// Sluice does more harm than one that writes others.
func (c *Controller) setMode(kubeProxy *KubeProxy) {
	same := c.rules.shared(kubeProxy.Mode)
	if same && !c.State().Same {
		c.warn("A kube-proxy runs beside this proxy and writes the same chains, each against the other: stop it", kubeProxy)
	}
	c.update(func(s *State) { s.KubeProxy, s.Same = kubeProxy, same })
}

func (c *Controller) warn(text string, p *KubeProxy) {
	c.opt.Log.Warn(text, "pid", p.PID, "mode", p.Mode, "program", p.Program, "noticed", p.Evidence)
}

// stopped reports that a kube-proxy no longer runs.
func (c *Controller) stopped(p *KubeProxy) {
	text := "kube-proxy has stopped, removing its rules"
	if c.State().Same {
		text = "kube-proxy has stopped, this proxy alone writes the chains that both wrote"
	}
	c.opt.Log.Info(text, "pid", p.PID, "mode", p.Mode)
	c.update(func(s *State) { s.KubeProxy, s.Same = nil, false })
}

// remove removes kube-proxy's rules, and searches again later: with growing waits if it
// found any, as some may be left, or another program may restore them.
func (c *Controller) remove(ctx context.Context, err error) time.Duration {
	found, findErr := c.rules.find(ctx)
	err = errors.Join(err, findErr)
	entries := found.entries()
	var account Account
	if len(entries) > 0 {
		var removeErr error
		account, removeErr = c.rules.remove(ctx, found)
		err = errors.Join(err, removeErr)
	}
	if ctx.Err() != nil {
		return 0
	}
	if c.opt.Replaced != nil {
		c.opt.Replaced()
	}
	c.add(entries, account)
	c.report(err)
	if c.clean = err == nil && len(entries) == 0; c.clean {
		c.retry.reset()
		return c.opt.Rarely
	}
	return c.retry.next()
}

// add adds the results of a scan and a removal to the State, and logs the changes.
func (c *Controller) add(found []Entry, a Account) {
	for _, e := range a.Removed {
		c.opt.Log.Info("Removed what "+e.owner()+" left", "mechanism", string(e.Mechanism), "removed", e.What)
	}
	for _, rule := range a.Lost {
		c.opt.Log.Warn("Removed a rule of another program, which jumped to one of kube-proxy's chains", "rule", rule)
	}
	if last := c.State().Last; len(a.Removed) > 0 || len(last.Left) == 0 {
		for _, e := range a.Left {
			c.reportLeft(e)
		}
	}
	removed := counts(a.Removed)
	c.update(func(s *State) {
		s.Searched, s.Leftovers = true, counts(found)
		for m, n := range removed {
			s.Removed[m] += n
			if s.Leftovers[m] -= n; s.Leftovers[m] <= 0 {
				delete(s.Leftovers, m)
			}
		}
		s.Last.Left, s.Last.Lost = a.Left, a.Lost
		s.Last.Removed = append(s.Last.Removed, a.Removed...)
		s.Last.Removed = s.Last.Removed[max(0, len(s.Last.Removed)-maxRemoved):]
	})
}

// reportLeft reports what is not removed. It makes an Event if a person has to act.
func (c *Controller) reportLeft(e Entry) {
	if e.Remedy == "" {
		c.opt.Log.Info("Left alone", "mechanism", string(e.Mechanism), "left", e.What)
		return
	}
	c.opt.Log.Warn("Cannot remove what "+e.owner()+" left", "mechanism", string(e.Mechanism), "left", e.What, "why", e.Why, "remedy", e.Remedy)
	c.opt.RecordLeft(fmt.Sprintf("%s left rules that Sluice cannot remove: %s; %s", strings.TrimSuffix(e.owner(), ","), e, e.Remedy))
}

func (c *Controller) report(err error) {
	c.update(func(s *State) { s.Err = err })
	c.failure.report(err)
}
