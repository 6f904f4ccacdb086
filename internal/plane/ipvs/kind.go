package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/netfilter"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Kind returns what the rest of the program knows about this plane.
func Kind() plane.Kind {
	return plane.Kind{
		Mode: "ipvs", Facts: facts(), Persistent: true, ListLocal: true,
		Owned:          "the virtual servers of Services, the interface " + Device + ", the ipsets and chains KUBE-*",
		KubeProxyRules: []string{"ipvs", "iptables-legacy", "iptables-nft"},

		Probe:   support,
		Open:    open,
		Preview: func(s plane.Setup) plane.Plane { return New(Kernel{}, options(s)) },
		Prepare: prepare, Cleanup: netfilter.Cleanup,
	}
}

func support(ctx context.Context, netns int) (plane.Support, error) {
	s, err := probe.IPVS(ctx, probe.Options{NetNS: netns})
	return plane.Support{IPv4: s.IPv4, IPv6: s.IPv6, Notes: plane.IPv6Notes(s.NoIPv6)}, err
}

func options(s plane.Setup) Options {
	return Options{
		Families: s.Families, Mark: s.Config.MasqueradeMark, KeepInvalid: s.Config.Conntrack.TCPBeLiberal,
		Exclude: s.Config.IPVS.ExcludeCIDRs,
	}
}

func open(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
	tools, err := iptables.Open(ctx, iptables.Options{NetNS: s.NetNS, Poll: s.Config.PollPeriod()})
	if err != nil {
		return nil, err
	}
	o, scheduler := options(s), cmp.Or(s.Config.Scheduler, defaultScheduler)
	err = ipvs.New(s.NetNS).Check(ctx, scheduler)
	if errors.Is(err, ipvs.ErrScheduler) {
		return nil, fmt.Errorf("%w: the kernel does not have the scheduler %q (ipvs.scheduler): load it with: "+
			"modprobe ip_vs_%s, or choose another one; most kernels have rr, wrr, lc, wlc, sh and dh",
			probe.ErrFeature, scheduler, scheduler)
	}
	if err != nil {
		return nil, err
	}
	if err := prepare(ctx, s); err != nil {
		return nil, err
	}
	parts, err := netfilter.Parts(s, nil)
	if err != nil {
		return nil, err
	}
	p := New(KernelOf(s.NetNS, tools), o)
	count := newCounter(ipvs.New(s.NetNS), func() *marks { return p.marks })
	parts = append(parts, plane.Part{Follower: count, Metrics: []prometheus.Collector{count}})
	return &plane.Opened{
		Plane: p, Load: Load(), Parts: parts, Due: p.Due, Balance: p.Balance, Traffic: count.Traffic,
		Tracking:       plane.Translated,
		WatchTrouble:   p.watchTrouble,
		KubeProxyRules: []string{"ipvs", fmt.Sprintf("iptables-%s", tools.Variant())},
		How:            fmt.Sprintf("to IPVS and ipsets, and by iptables-%s, as %s", tools.Variant(), tools.Reason()),
		Reader: func(context.Context) (plane.Plane, func(), error) {
			return New(KernelOf(s.NetNS, tools), o), func() {}, nil
		},
	}, nil
}

// KernelOf returns access to the kernel in the network namespace of a file descriptor.
func KernelOf(netns int, tools *iptables.Tools) Kernel {
	return Kernel{Servers: ipvs.New(netns), Sets: ipset.New(netns), Links: rtnl.New(netns), Chains: tools}
}

// prepare makes the settings of the host that virtual servers need, and those that the configuration asks for.
func prepare(ctx context.Context, s plane.Setup) error {
	table, c := ipvs.New(s.NetNS), s.Config.IPVS
	if err := table.Load(ctx); err != nil {
		return err
	}
	parameters := sysctl.New(sysctl.Options{NetNS: s.NetNS})
	release, err := parameters.Get("kernel.osrelease")
	if err != nil {
		return err
	}
	list := ipvs.Parameters(release)
	if c.StrictARP {
		list = append(list, "net/ipv4/conf/all/arp_ignore=1", "net/ipv4/conf/all/arp_announce=2")
	}
	for _, p := range list {
		key, value, _ := strings.Cut(p, "=")
		if err := parameters.Set(key, value); err != nil {
			return err
		}
	}
	timeouts := ipvs.Timeouts{TCP: c.TCPTimeout, TCPFin: c.TCPFinWait, UDP: c.UDPTimeout}
	if err := table.SetTimeouts(ctx, timeouts); err != nil {
		return err
	}
	return netfilter.Prepare(ctx, s)
}

// facts returns how this plane behaves where planes differ. Addresses of Services are local,
// so that they answer to an ICMP echo.
func facts() plane.Facts {
	filter := []string{"filter KUBE-IPVS-FILTER"}
	return plane.Facts{
		Name: "ipvs",
		OtherPort: plane.Behaviour{
			Verdict: plane.Refuse,
			Why:     "other ports of a clusterIP are refused, so that no program of this node is reached through it",
			Path:    filter,
		},
		Ping: plane.Behaviour{
			Verdict: plane.Untouched, Why: "a clusterIP is an address of " + Device + ": this node answers to an ICMP echo",
		},
		Unallocated: plane.Behaviour{
			Verdict: plane.Untouched,
			Why:     "no programmed Service has this address of a ServiceCIDR; packets to it follow the routes of this node",
		},
		Ranges: plane.RangesFirst, OwnVIPs: true, Weights: true, Unweighted: []string{"dh"},
		AnyScheduler: true, SchedulerName: schedulerOf, Shares: shares,
		Ends:     plane.Ends{ClusterIPs: plane.Everywhere, External: plane.Everywhere},
		Loopback: "another program forwards it: IPVS does not forward from loopback addresses",
		Path:     Path,
	}
}

// Load bounds the contents of one write.
func Load() plane.Load { return plane.Load{Cost: cost, Piece: roomDefault} }

// cost estimates the number of entries of a port.
func cost(p *route.Port) int {
	n, backends := 0, max(len(p.Cluster), len(p.Local))
	for i := range p.Frontends {
		n += 4 + backends + len(p.Frontends[i].Allow)
	}
	return n
}
