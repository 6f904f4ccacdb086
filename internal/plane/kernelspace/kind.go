package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

const mode = "kernelspace"

// Host describes this host: an address.Watcher.
type Host interface {
	Primary() ([]netip.Addr, error)
	HardwareAddr(netip.Addr) (string, error)
}

// Kind returns the plane that balances with an HNS: kube-proxy's mode on Windows.
func Kind(h HNS, host Host) plane.Kind {
	return plane.Kind{
		Mode: mode, Persistent: true,
		Owned: "the load balancers of HNS in the configured network, and its remote endpoints",
		Facts: usualFacts(),
		Probe: func(ctx context.Context, _ int) (plane.Support, error) { return support(ctx, h) },
		Open: func(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
			return open(ctx, h, optionsOf(s, host), s)
		},
		Preview: func(s plane.Setup) plane.Plane { return newPreview(optionsOf(s, nil)) },
		Remove: func(ctx context.Context, s plane.Setup) ([]string, error) {
			removed, err := New(h, optionsOf(s, host)).Remove(ctx)
			if s.Config.HNS.Network == "" && errors.Is(err, hns.ErrNoService) {
				return nil, nil // this host runs another mode
			}
			return removed, err
		},
		Cleanup: func(ctx context.Context, s plane.Setup) ([]string, error) {
			return remains(ctx, h, s.Config.HNS.Network), nil
		},
	}
}

// support probes HNS. It changes nothing.
func support(ctx context.Context, h HNS) (plane.Support, error) {
	has, err := h.Features(ctx)
	if err == nil && has.V2 {
		_, err = h.LoadBalancers(ctx)
	}
	switch {
	case errors.Is(err, hns.ErrDenied):
		return plane.Support{}, fmt.Errorf("%w: %w: run as an administrator or as LocalSystem", probe.ErrPrivilege, err)
	case err != nil:
		return plane.Support{}, fmt.Errorf("%w: %w: install the Windows feature Containers, and start the service hns",
			probe.ErrFeature, err)
	case !has.V2:
		return plane.Support{}, fmt.Errorf("%w: this version of HNS has no API version 2: use Windows Server 2019 or newer",
			probe.ErrFeature)
	}
	s := plane.Support{IPv4: true, IPv6: has.DualStack}
	if !has.DualStack {
		s.Notes = plane.IPv6Notes("this version of HNS has no dual stack: use Windows Server 2022 or newer")
	}
	for _, missing := range []struct {
		has  bool
		note string
	}{
		{has.DSR, "HNS has no direct server return: externalTrafficPolicy Local hides the addresses of clients, " +
			"and preserve-destination has no effect"},
		{has.RemoteSubnet, "HNS has no remote subnets: overlay networks are not served"},
		{has.SessionAffinity, "HNS has no session affinity: Services with it are served without"},
		{has.Modify, "HNS cannot change load balancers in place: a changed one is deleted and created again, " +
			"and connections in between fail"},
	} {
		if !missing.has {
			s.Notes = append(s.Notes, missing.note)
		}
	}
	return s, nil
}

// optionsOf returns the options of a configuration. Without a host the plane is for a preview.
func optionsOf(s plane.Setup, host Host) Options {
	c := s.Config
	o := Options{
		Network: c.HNS.Network, SourceVIP: c.HNS.SourceVIP, DSR: c.HNS.DSR, Poll: max(c.PollPeriod(), pollPeriod),
		Report: s.Report, IPv6: slices.Contains(s.Families, route.IPv6),
	}
	if c.HNS.ForwardHealthCheck {
		o.RootEndpoint, o.HealthPort = c.HNS.RootEndpoint, c.Healthz.Port()
	}
	if host != nil {
		o.Node = func() (netip.Addr, string, error) { return node(c.BindAddress, host) }
	}
	return o
}

// node returns the IPv4 address of this node and the MAC address of its interface.
func node(bind netip.Addr, host Host) (netip.Addr, string, error) {
	list := []netip.Addr{bind}
	if !bind.IsValid() || bind.IsUnspecified() {
		var err error
		if list, err = host.Primary(); err != nil {
			return netip.Addr{}, "", err
		}
	}
	for _, a := range list {
		if a.Is4() {
			mac, err := host.HardwareAddr(a)
			return a, mac, err
		}
	}
	return netip.Addr{}, "", errors.New("this node has no IPv4 address: set --bind-address")
}

// open opens the plane. It does not wait for a network that does not exist yet.
func open(ctx context.Context, h HNS, opt Options, s plane.Setup) (*plane.Opened, error) {
	if opt.Network == "" {
		return nil, errNoNetwork
	}
	has, err := h.Features(ctx)
	if err != nil {
		return nil, err
	}
	n, err := h.Network(ctx, opt.Network)
	if err != nil && !errors.Is(err, hns.ErrNoNetwork) {
		return nil, err
	}
	if err := opt.check(n, has); err != nil {
		return nil, fmt.Errorf("%w: %w", probe.ErrFeature, err)
	}
	var metrics []prometheus.Collector
	opt.failures, metrics = newFailures()
	p := New(h, opt)
	p.seen.Store(&state{features: has, network: n})
	facts := p.facts()
	if waits := p.setWaiting(err); waits != "" {
		s.Log.Warn("Services are not served yet", "reason", waits)
	}
	return &plane.Opened{
		Plane: p, Load: Load(), Waiting: p.Waiting, PreserveDestination: has.DSR, Facts: &facts,
		Parts: []plane.Part{{Metrics: metrics}},
		Reader: func(context.Context) (plane.Plane, func(), error) {
			reading := opt
			reading.failures, reading.Report = nil, nil
			return New(h, reading), func() {}, nil
		},
		WatchTrouble: func() string { return "HNS does not say who changes its objects" },
	}, nil
}

// newPreview returns a plane for a recent HNS with nothing in it.
func newPreview(opt Options) *Plane {
	p := New(nil, opt)
	p.writer.state = &state{features: recent(), network: hns.Network{Name: opt.Network, Type: hns.L2Bridge}}
	p.writer.state.setEndpoints(nil)
	p.writer.state.setBalancers(nil, nil)
	return p
}

// The errors of a configuration that HNS does not support.
var (
	errNoNetwork = errors.New("mode kernelspace needs the name of an HNS network: " +
		"set --network-name, winkernel.networkName or the environment variable KUBE_NETWORK, or use --proxy-mode userspace")
	errNoDSR = errors.New("--enable-dsr (winkernel.enableDSR): this version of HNS has no direct server return: " +
		"remove the setting, or use a Windows with HNS 9.3, 10.2 or newer")
	errNoSourceVIP = errors.New("it is an overlay network, which needs --source-vip (winkernel.sourceVip): " +
		"a free address in the pod range of this node")
	errNoRemoteSubnet = errors.New("it is an overlay network, and this version of HNS has no remote subnets: " +
		"use Windows Server 2019 or newer")
)

// check returns why the options do not fit a network.
func (o *Options) check(n hns.Network, has hns.Features) error {
	var err error
	switch {
	case o.DSR && !has.DSR:
		return errNoDSR
	case !n.Type.Is(hns.Overlay):
	case !has.RemoteSubnet:
		err = errNoRemoteSubnet
	case !o.SourceVIP.IsValid():
		err = errNoSourceVIP
	}
	if err != nil {
		return fmt.Errorf("HNS network %q: %w", n.Name, err)
	}
	return nil
}

// failures counts writes of load balancers that failed, by ledger.Op, under the names of kube-proxy.
type failures []*prometheus.CounterVec

// newFailures returns counters, and the same as collectors.
func newFailures() (f failures, all []prometheus.Collector) {
	for _, op := range []string{"create", "update", "delete"} {
		counter := prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_winkernel_lb_" + op + "_failures_total",
			Help: "Failed attempts to " + op + " a load balancer of HNS, by IP family, kind of address and error.",
		}, []string{"ip_family", "lb_type", "error"})
		f, all = append(f, counter), append(all, counter)
	}
	return f, all
}

// count counts a failed step of a load balancer.
func (f failures) count(s *step, err error) {
	if f == nil || !s.Key.class.balancer() {
		return
	}
	op := min(int(s.Op), len(f)-1) // no load balancer is emptied
	f[op].WithLabelValues(s.Key.family.String(), s.Key.class.String(), reasonOf(err)).Inc()
}

// reasonOf returns the label of an error in metrics. A missing endpoint or load balancer has no label of its own.
func reasonOf(err error) string {
	for _, r := range []struct {
		is   error
		name string
	}{
		{hns.ErrNoNetwork, "network_not_found"},
		{hns.ErrPortExists, "port_already_exists"},
		{hns.ErrNotImplemented, "not_implemented"},
		{hns.ErrInvalidIP, "invalid_ip"},
	} {
		if errors.Is(err, r.is) {
			return r.name
		}
	}
	return "other"
}
