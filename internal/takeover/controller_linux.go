package takeover

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// packetTime is far longer than a packet takes through this node.
const packetTime = 10 * time.Millisecond

// maxRemoved is how many entries of State.Last.Removed are kept.
const maxRemoved = 8

// How a person removes rules of iptables-legacy if Sluice lacks the programs or the right. The first does not change
// the mode of Sluice.
const (
	remedyRunning = "Sluice removes them when it runs with the programs of iptables and CAP_NET_RAW: " +
		"kubectl -n kube-system patch daemonset sluice --patch-file deploy/kubernetes/components/iptables/daemonset.yaml; " +
		"as a unit of systemd: install iptables, and deploy/systemd/iptables.conf as a drop-in"
	remedyCleanup = "to remove them: kubectl apply -k deploy/kubernetes/cleanup-iptables, " +
		"or install iptables on the node and run sluice --cleanup there as root"
)

// platform has the parts of the take-over that depend on the system.
type platform struct {
	rules    *rules
	detector *detector
}

func newPlatform(o Options) platform {
	p := platform{rules: newRules(o), detector: newDetector(o)}
	p.rules.remedy = remedyRunning
	return p
}

// reconcile looks for a kube-proxy, and removes its rules if none runs. It returns the
// time until the next call.
func (c *Controller) reconcile(ctx context.Context) time.Duration {
	kubeProxy, err := c.platform.detector.detect(ctx)
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

// ignore stores and reports that the take-over does not wait for a kube-proxy; nil if none runs.
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
	if !c.platform.rules.shared(kubeProxy.Mode) {
		c.warn("A kube-proxy runs beside this proxy; its rules stay until it is stopped", kubeProxy)
	}
	found, err := c.platform.rules.find(ctx)
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
	same := c.platform.rules.shared(kubeProxy.Mode)
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
	found, findErr := c.platform.rules.find(ctx)
	err = errors.Join(err, findErr)
	entries := found.entries()
	var account Account
	if len(entries) > 0 {
		var removeErr error
		account, removeErr = c.platform.rules.remove(ctx, found)
		err = errors.Join(err, removeErr)
	}
	if ctx.Err() != nil {
		return 0
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
		c.opt.Log.Info("Removed leftovers of "+e.owner(), "mechanism", string(e.Mechanism), "removed", e.What)
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

// reportLeft reports an entry that stays. It makes an Event if a person has to act.
func (c *Controller) reportLeft(e Entry) {
	if e.Remedy == "" {
		c.opt.Log.Info("Left alone", "mechanism", string(e.Mechanism), "left", e.What)
		return
	}
	c.opt.Log.Warn("Cannot remove leftovers of "+e.owner(),
		"mechanism", string(e.Mechanism), "left", e.What, "why", e.Why, "remedy", e.Remedy)
	c.opt.RecordLeft(fmt.Sprintf("Sluice cannot remove leftovers of %s: %s; %s", e.owner(), e, e.Remedy))
}

func (c *Controller) report(err error) {
	c.update(func(s *State) { s.Err = err })
	c.failure.report(err)
}
