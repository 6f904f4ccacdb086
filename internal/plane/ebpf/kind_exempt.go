package ebpf

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf/exempt"
)

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
