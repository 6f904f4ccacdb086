package takeover

import (
	"context"
	"fmt"
	"time"
)

// doubt is about a process that has kube-proxy's name and may change rules, but
// listens nowhere as a kube-proxy does. It is one if kube-proxy's rules change
// while it runs.
type doubt struct {
	pid   int
	since time.Time // when it was noticed, or rules last changed
	rules string    // kube-proxy's, at that time
	over  bool      // it is not a kube-proxy
}

// weigh returns the rival that is to be waited for: nil if it is not a kube-proxy,
// or is to be ignored.
func (k *Keeper) weigh(ctx context.Context, r *Rival) *Rival {
	switch {
	case r == nil:
		k.doubt = doubt{}
		k.ignore("")
		return nil
	case k.ignoring:
		k.ignore(fmt.Sprintf("%s runs beside Sluice (%s) and is ignored, as --ignore-kube-proxy says", r, r.How))
		return nil
	case r.Certain || k.proven(r):
		r.Certain = true
		k.doubt = doubt{}
		k.ignore("")
		return r
	}
	return k.doubts(ctx, r)
}

// proven reports whether a process has shown before that it is a kube-proxy. It
// may be about to start or stop now.
func (k *Keeper) proven(r *Rival) bool {
	before := k.State().Rival
	return before != nil && before.Certain && before.PID == r.PID
}

// doubts waits for a process to show what it is, for as long as kube-proxy's
// rules change at least once in the time that it is given.
func (k *Keeper) doubts(ctx context.Context, r *Rival) *Rival {
	if k.doubt.pid == r.PID && k.doubt.over {
		return nil
	}
	now := time.Now()
	if k.doubt.pid != r.PID {
		k.ignore("")
	}
	if k.doubt.pid != r.PID || now.Sub(k.doubt.since) >= k.grace {
		rules := k.fingerprint(ctx)
		if k.doubt.pid == r.PID && k.doubt.rules == rules {
			k.doubt.over = true
			k.dismiss(r)
			return nil
		}
		k.doubt = doubt{pid: r.PID, since: now, rules: rules}
	}
	k.set(func(s *State) { s.Doubtful = k.doubt.since.Add(k.grace) })
	return r
}

// fingerprint stands for kube-proxy's rules in the kernel. It changes when they
// do, but not with traffic.
func (k *Keeper) fingerprint(ctx context.Context) string {
	found, err := k.rules.find(ctx)
	v := found.vips
	return fmt.Sprintf("%#v %#v %v %q %d %v", found.tables, found.chains, v.Addrs, v.Sets, len(v.Idle)+len(v.Busy), err)
}

// dismiss tells that a process is not a kube-proxy.
func (k *Keeper) dismiss(r *Rival) {
	k.set(func(s *State) { s.Rival, s.Same = nil, false })
	k.ignore(fmt.Sprintf("a process called %s is not waited for: it listens on none of kube-proxy's ports, "+
		"and kube-proxy's rules did not change for %v", r, k.grace))
}

// ignore notes why a process is not waited for, and tells it once.
func (k *Keeper) ignore(why string) {
	if k.State().Ignored == why {
		return
	}
	k.set(func(s *State) { s.Ignored = why })
	if why != "" {
		k.log.Warn("Removing kube-proxy's rules although a process of its name runs", "reason", why)
		k.record(why)
	}
}
