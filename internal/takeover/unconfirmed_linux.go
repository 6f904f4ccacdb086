package takeover

import (
	"context"
	"fmt"
	"time"
)

// unconfirmed is a process that has kube-proxy's name and may change rules, but listens
// on none of kube-proxy's ports. It is a kube-proxy if kube-proxy's rules change while
// it runs.
type unconfirmed struct {
	pid       int
	since     time.Time // when it was found, or rules last changed
	rules     string    // kube-proxy's rules at that time
	dismissed bool      // it is not a kube-proxy
}

// confirm returns the kube-proxy that the take-over has to wait for; nil if the process
// is not a kube-proxy, or is to be ignored.
func (c *Controller) confirm(ctx context.Context, p *KubeProxy) *KubeProxy {
	switch {
	case p == nil:
		c.unconfirmed = unconfirmed{}
		c.ignore("")
		return nil
	case c.opt.IgnoreKubeProxy:
		c.ignore(fmt.Sprintf("%s runs beside Sluice (%s) and is ignored, as --ignore-kube-proxy says", p, p.Evidence))
		return nil
	case p.Confirmed || c.confirmedBefore(p):
		p.Confirmed = true
		c.unconfirmed = unconfirmed{}
		c.ignore("")
		return p
	}
	return c.examine(ctx, p)
}

// confirmedBefore reports whether the process was a kube-proxy before. It may be about
// to stop.
func (c *Controller) confirmedBefore(p *KubeProxy) bool {
	before := c.State().KubeProxy
	return before != nil && before.Confirmed && before.PID == p.PID
}

// examine waits for a process as long as kube-proxy's rules change at least once in each
// grace period.
func (c *Controller) examine(ctx context.Context, p *KubeProxy) *KubeProxy {
	u, now := &c.unconfirmed, time.Now()
	known := u.pid == p.PID
	if known && u.dismissed {
		return nil
	}
	if !known {
		c.ignore("")
	}
	if !known || now.Sub(u.since) >= c.opt.Grace {
		rules := c.fingerprint(ctx)
		if known && u.rules == rules {
			u.dismissed = true
			c.dismiss(p)
			return nil
		}
		*u = unconfirmed{pid: p.PID, since: now, rules: rules}
	}
	c.update(func(s *State) { s.WaitUntil = u.since.Add(c.opt.Grace) })
	return p
}

// fingerprint returns a text that changes with kube-proxy's rules in the kernel, but not
// with traffic.
func (c *Controller) fingerprint(ctx context.Context) string {
	found, err := c.rules.find(ctx)
	v := found.vips
	return fmt.Sprintf("%#v %#v %v %q %d %v", found.tables, found.chains, v.Addrs, v.Sets, len(v.Idle)+len(v.Busy), err)
}

// dismiss reports that a process is not a kube-proxy.
func (c *Controller) dismiss(p *KubeProxy) {
	c.update(func(s *State) { s.KubeProxy, s.Same = nil, false })
	c.ignore(fmt.Sprintf("a process called %s is not waited for: it listens on none of kube-proxy's ports, "+
		"and kube-proxy's rules did not change for %v", p, c.opt.Grace))
}

// ignore stores why a process is not waited for, and reports a new reason.
func (c *Controller) ignore(why string) {
	if c.State().Ignored == why {
		return
	}
	c.update(func(s *State) { s.Ignored = why })
	if why != "" {
		c.opt.Log.Warn("Removing kube-proxy's rules although a process of its name runs", "reason", why)
		c.opt.Record(why)
	}
}
