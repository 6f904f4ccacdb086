package takeover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/process"
	"github.com/sluice-proxy/sluice/internal/text"
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
	if known := before.KubeProxy; known != nil && kubeProxy.PID == 0 { // a process that ends may still listen
		kubeProxy.PID, kubeProxy.Program, kubeProxy.Evidence = known.PID, known.Program, known.Evidence
	}
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

// name is the name of kube-proxy's program, which Sluice may have, too.
const name = "kube-proxy"

const (
	defaultAddress = "127.0.0.1:10249"
	healthPort     = 10256
	answerTimeout  = 500 * time.Millisecond
	maxConfig      = 1 << 20 // bytes of a configuration
)

// processes finds the process that has a socket; 0 if it is in another PID namespace, or may not be read.
type processes interface {
	WithSocket(inode uint64) (int, error)
	Describe(pid int) process.Process
}

// listenerLister lists the listeners in this network namespace.
type listenerLister interface {
	Listeners(ctx context.Context) ([]sockdiag.Listener, error)
}

// detector detects a kube-proxy that runs on this node: it listens at kube-proxy's ports, and has its name or
// answers as kube-proxy does. A process that cannot have CAP_NET_ADMIN changes no rules and is no kube-proxy.
type detector struct {
	processes processes
	listeners listenerLister
	client    *http.Client
	address   string // of kube-proxy's diagnostics
}

func newDetector(o Options) *detector {
	return &detector{
		processes: process.New(),
		listeners: sockdiag.Node{NetNS: o.NetNS},
		address:   cmp.Or(o.Address, defaultAddress),
		client: &http.Client{
			Timeout:   answerTimeout,
			Transport: &http.Transport{DisableKeepAlives: true, DialContext: o.Dial},
		},
	}
}

// detect returns the kube-proxy that runs; nil if there is none. With an error there may be one.
func (d *detector) detect(ctx context.Context) (*KubeProxy, error) {
	mode, answers := d.ask(ctx)
	all, err := d.listeners.Listeners(ctx)
	if err != nil && answers {
		return &KubeProxy{Mode: mode, Evidence: "it answers at " + d.address}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for listeners of kube-proxy: %w", err)
	}
	for _, l := range all {
		if l.UDP() || !slices.Contains(d.ports(), l.At.Port()) {
			continue
		}
		p := d.holder(l)
		switch {
		case !p.Admin:
		case slices.Contains(p.Names, name) && !p.Self:
			return &KubeProxy{p.PID, p.Program, mode, fmt.Sprintf("it listens on port %d", l.At.Port())}, nil
		case answers && d.serves(l.At):
			return &KubeProxy{p.PID, p.Program, mode, "it answers at " + d.address}, nil
		}
	}
	return nil, nil
}

// holder returns the process that has a listener. One that cannot be seen may change rules if it is root's.
func (d *detector) holder(l sockdiag.Listener) process.Process {
	pid, err := d.processes.WithSocket(l.Inode)
	if err != nil || pid == 0 {
		return process.Process{Admin: l.UID == 0}
	}
	return d.processes.Describe(pid)
}

// ports returns the ports on which a kube-proxy serves health and metrics.
func (d *detector) ports() []uint16 {
	ports := []uint16{healthPort}
	for _, text := range []string{d.address, defaultAddress} {
		if at, err := netip.ParseAddrPort(text); err == nil {
			ports = append(ports, at.Port())
		}
	}
	return ports
}

// serves reports whether a listener is at kube-proxy's address.
func (d *detector) serves(at netip.AddrPort) bool {
	want, err := netip.ParseAddrPort(d.address)
	return err == nil && at.Port() == want.Port() && (at.Addr() == want.Addr() || at.Addr().IsUnspecified())
}

// ask reports whether a kube-proxy serves its diagnostics, and its mode. Sluice does not count: see ServerHeader.
func (d *detector) ask(ctx context.Context) (mode string, answers bool) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.address+"/configz", http.NoBody)
	if err != nil {
		return "", false
	}
	answer, err := d.client.Do(request)
	if err != nil {
		return "", false
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK || strings.HasPrefix(answer.Header.Get("Server"), ServerHeader) {
		return "", false
	}
	var parts map[string]struct{ Mode string }
	err = json.NewDecoder(io.LimitReader(answer.Body, maxConfig)).Decode(&parts)
	config, is := parts["kubeproxy.config.k8s.io"]
	return text.Line(config.Mode), err == nil && is
}
