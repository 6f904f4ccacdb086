package ebpf

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/follow/exempt"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// exemptions returns the part that keeps the exempt cgroups, after a first search: programs that are attached later find them.
// If the configuration exempts none, the part is empty.
func exemptions(s plane.Setup, o bpf.Options, conn *bpf.Conn) (plane.Part, error) {
	if !o.Exempting {
		return plane.Part{}, nil
	}
	f := exempt.New(exempt.Options{
		Root: o.Cgroup, Patterns: s.Config.EBPF.ExemptCgroups, Pods: s.Config.EBPF.ExemptPods != "", Exemptions: conn,
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
	part := plane.Part{Run: f.Run, Metrics: []prometheus.Collector{count}}
	if s.Config.EBPF.ExemptPods != "" {
		part.SetExemptPods = f.SetPods
	}
	return part, nil
}
