//go:build linux

package conformance

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/netfilter"
	"github.com/sluice-proxy/sluice/test/lab"
)

// world is the lab of a scenario, in which its variants run one after another. Pods and their servers stay.
type world struct {
	test    testing.TB // of the scenario, with which the lab ends
	options lab.Options

	lab     *lab.Lab             // see enter
	clean   bool                 // the next variant can use the lab
	hosts   map[string]*lab.Host // pods by address
	remote  map[string]bool      // names of pods on node B
	serving map[server]bool
}

// server is a listening socket on a host, which has a name.
type server struct {
	host     string
	protocol lab.Protocol
	port     uint16
}

func newWorld(t testing.TB, o lab.Options) *world { return &world{test: t, options: o} }

// enter returns the lab for a variant. It builds one unless the variant before has left it clean.
func (w *world) enter(t testing.TB) *lab.Lab {
	t.Helper()
	if !w.clean {
		w.lab = lab.New(owner{t, w.test}, w.options)
		w.hosts, w.remote, w.serving = map[string]*lab.Host{}, map[string]bool{}, map[server]bool{}
	}
	w.clean = false
	return w.lab.For(t)
}

// owner reports to the test of a variant, and keeps its resources until the test of the scenario ends.
type owner struct {
	testing.TB
	scenario testing.TB
}

// Cleanup implements lab.T.
func (o owner) Cleanup(f func()) { o.scenario.Cleanup(f) }

// owner returns the owner of pods and servers that a variant adds.
func (e *env) owner() owner { return owner{e.t, e.world.test} }

// alters notes that a step leaves something behind, so that the next variant needs a lab of its own.
func (e *env) alters(what string) { e.altered = what }

// leave stops the proxy, removes everything of the plane, verifies that nothing of it remains on node A, and forgets
// all connections. The next variant then uses the lab, unless a step has altered it.
func (e *env) leave() error {
	if e.altered != "" {
		e.t.Logf("the next variant has a lab of its own: %s", e.altered)
		return nil
	}
	e.closeFlows()
	e.proxy.stop()
	ctx, host := context.Background(), e.lab.NodeA
	if err := e.proxy.plane.remove(host); err != nil {
		return err
	}
	quiet := plane.Setup{NetNS: host.NetNSFD(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if _, err := netfilter.Cleanup(ctx, quiet); err != nil {
		return err
	}
	err := e.traits().checkRemoved(host)
	if left := e.proxy.plane.Left; left != nil && err == nil {
		err = left(host)
	}
	if err != nil {
		return err
	}
	after, err := stateOf(host)
	if err == nil && !slices.Equal(after, e.before) {
		err = fmt.Errorf("node A had %q before the start, and has %q after everything was removed", e.before, after)
	}
	if err == nil {
		err = host.FlushConntrack()
	}
	e.world.clean = err == nil
	return err
}

// stateOf returns the addresses of a host, and the parameters that parts of the proxy change.
func stateOf(h *lab.Host) ([]string, error) {
	addrs, err := address.New(address.Options{NetNS: h.NetNSFD()}).List(context.Background())
	if err != nil {
		return nil, err
	}
	var state []string
	for _, a := range addrs {
		if !a.IsLinkLocalUnicast() { // interfaces of pods have such
			state = append(state, a.String())
		}
	}
	value, err := sysctl.New(sysctl.Options{NetNS: h.NetNSFD()}).Get(routeLocalnet)
	return append(state, routeLocalnet+"="+value), err
}
