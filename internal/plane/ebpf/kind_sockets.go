package ebpf

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf/exempt"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf/sockets"
	"github.com/sluice-proxy/sluice/internal/route"
)

// withUDP sets ConnectedUDP if this process can destroy sockets: all whose network namespaces podFinder finds.
func withUDP(s plane.Setup, o bpf.Options) bpf.Options {
	if err := (sockdiag.Node{NetNS: s.NetNS}).Try(); err != nil {
		s.Log.Warn("Connected sockets of DNS are served packet by packet: the kernel does not destroy sockets; "+
			"it needs CONFIG_INET_DIAG_DESTROY and CONFIG_INET_UDP_DIAG", "error", err)
		return o
	}
	o.ConnectedUDP = true
	return o
}

// destroyer returns the part that destroys sockets whose backend is gone. It is empty if the kernel does not support
// that.
func destroyer(s plane.Setup, o bpf.Options, conn *bpf.Conn) plane.Part {
	if !o.ConnectedUDP {
		return plane.Part{}
	}
	destroyed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_ebpf_sockets_destroyed_total",
		Help: "Connected DNS sockets that were destroyed because their backend or Service was deleted.",
	})
	f := sockets.New(sockets.Options{
		Sockets: conn.Sockets, Destroy: sockdiag.Node{NetNS: s.NetNS}.Destroy, Pools: udpPools,
		Failed: func(err error) { s.Log.Error("Cannot destroy sockets of deleted backends, retrying", "error", err) },
		Report: func(r sockdiag.Result) {
			destroyed.Add(float64(r.Destroyed))
			if r.Unreached > 0 {
				s.Log.Debug("Cannot find the network namespaces of some sockets of deleted backends", "sockets", r.Unreached)
			}
		},
	})
	return plane.Part{Run: f.Run, Follower: f, Metrics: []prometheus.Collector{destroyed}}
}

// udpPools returns the port of each pool of a Service to whose backends programs connect UDP sockets.
func udpPools(svc *route.Service) map[bpf.Pool]*route.Port {
	all := map[bpf.Pool]*route.Port{}
	for _, p := range portsOf(svc) {
		for i := range p.pools {
			if p.Protocol == cluster.UDP {
				all[p.pools[i].id] = p.Port
			}
		}
	}
	return all
}

// exemptions returns the part that updates the set of exempt cgroups. It searches once before it returns, so that
// programs that are attached later find the cgroups. If the configuration exempts none, the part is empty.
//
// The cgroup of the process that connects counts, not that of its socket.
func exemptions(s plane.Setup, o bpf.Options, conn *bpf.Conn) (plane.Part, error) {
	if o.Exempting&bpf.ExemptAny == 0 {
		return plane.Part{}, nil
	}
	f := exempt.New(exempt.Options{
		Root: o.Cgroup, Patterns: s.Config.EBPF.ExemptCgroups, ID: bpf.CgroupID, Exempt: conn.Exempt,
		Failed: func(err error) {
			s.Log.Error("Connections of some exempt processes are balanced at their sockets, retrying", "error", err)
		},
	})
	if err := f.Search(); err != nil {
		return plane.Part{}, err
	}
	count := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_ebpf_exempt_cgroups",
		Help: "Cgroups whose processes are not balanced at their sockets, but packet by packet.",
	}, func() float64 { return float64(f.Count()) })
	return plane.Part{Run: f.Run, Metrics: []prometheus.Collector{count}}, nil
}

// exempting returns which processes the configuration exempts, with paths below a cgroup.
func exempting(c config.EBPF, cgroup string) (e bpf.Exempting) {
	if c.ExemptRoot {
		e |= bpf.ExemptRoot
	}
	if len(c.ExemptCgroups) > 0 && bpf.VerifyRoot(cgroup) != nil {
		return e | bpf.ExemptAny
	}
	for _, pattern := range c.ExemptCgroups {
		e |= bpf.ExemptLevel(1 + strings.Count(pattern, "/"))
	}
	return e
}
