package takeover

import (
	"context"
	"errors"
	"slices"
	"time"
)

// packetTime is far longer than a packet takes through this node.
const packetTime = 10 * time.Millisecond

// Remedy is how a person has Sluice remove rules of iptables-legacy if it lacks the programs or the right. It does not
// change the mode of Sluice. remedyCleanup is the same for a clean-up.
const (
	Remedy = "Sluice removes them when it runs with the programs of iptables and CAP_NET_RAW: " +
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
	p.rules.remedy = Remedy
	return p
}

// takeOver looks for a kube-proxy, and removes its rules if none runs.
func (c *Controller) takeOver(ctx context.Context) (err error) {
	var kubeProxy *KubeProxy
	if !c.opt.IgnoreKubeProxy {
		kubeProxy, err = c.platform.detector.detect(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case kubeProxy != nil:
		c.clean = false
		c.beside(ctx, kubeProxy)
		return nil
	}
	c.stopped()
	if c.clean {
		return err
	}
	return errors.Join(err, c.remove(ctx))
}

// beside reports a kube-proxy that runs. Its rules stay, as it would write them again. One that writes the same chains
// as Sluice does more harm than one that writes others.
func (c *Controller) beside(ctx context.Context, kubeProxy *KubeProxy) {
	before := c.State()
	started := before.KubeProxy == nil || before.KubeProxy.PID != kubeProxy.PID
	same := c.platform.rules.shared(kubeProxy.Mode)
	if kubeProxy.Mode == "" && !started { // while it starts or stops it reports none
		kubeProxy.Mode, same = before.KubeProxy.Mode, before.Same
	}
	leftovers := before.Leftovers
	if started {
		found, _ := c.platform.rules.find(ctx) // only for the count; the removal reports errors
		leftovers = counts(found.entries())
	}
	c.update(func(s *State) { s.KubeProxy, s.Same, s.Leftovers = kubeProxy, same, leftovers })
	message := "A kube-proxy runs beside this proxy; its rules stay until it is stopped"
	if same {
		message = "A kube-proxy runs beside this proxy and each overwrites the chains of the other: stop it"
	}
	if started || same && !before.Same {
		c.opt.Log.Warn(message, "pid", kubeProxy.PID, "mode", kubeProxy.Mode, "program", kubeProxy.Program,
			"noticed", kubeProxy.Evidence)
	}
	if started {
		c.opt.Record(c.State().Lines()[0]) // the first is about the kube-proxy
	}
}

// stopped reports that a kube-proxy no longer runs.
func (c *Controller) stopped() {
	before := c.State()
	if before.KubeProxy == nil {
		return
	}
	message := "kube-proxy has stopped, removing its rules"
	if before.Same {
		message = "kube-proxy has stopped, this proxy alone writes the chains that both wrote"
	}
	c.opt.Log.Info(message, "pid", before.KubeProxy.PID, "mode", before.KubeProxy.Mode)
	c.update(func(s *State) { s.KubeProxy, s.Same = nil, false })
}

// remove removes kube-proxy's rules, and logs the changes.
func (c *Controller) remove(ctx context.Context) error {
	found, err := c.platform.rules.find(ctx)
	entries := found.entries()
	var a Account
	if len(entries) > 0 {
		var removeErr error
		a, removeErr = c.platform.rules.remove(ctx, found)
		err = errors.Join(err, removeErr)
	}
	c.clean = err == nil && len(entries) == 0
	left := c.State().Left
	c.update(func(s *State) { s.add(counts(entries), a) })
	for _, e := range a.Removed {
		c.opt.Log.Info("Removed leftovers of kube-proxy or of another mode",
			"mechanism", string(e.Mechanism), "removed", e.What)
	}
	if !slices.Equal(a.Left, left) {
		for _, what := range a.Left {
			c.opt.Log.Info("Not removed", "left", what)
		}
	}
	return err
}

// add adds the results of a search and a removal.
func (s *State) add(found map[Mechanism]int, a Account) {
	s.Leftovers, s.Left = found, a.Left
	for _, e := range a.Removed {
		s.gone("removed " + e.String())
		s.Removed[e.Mechanism] += e.Count
		if s.Leftovers[e.Mechanism] -= e.Count; s.Leftovers[e.Mechanism] <= 0 {
			delete(s.Leftovers, e.Mechanism)
		}
	}
}
