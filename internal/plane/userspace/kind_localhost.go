package userspace

import (
	"context"
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/metrics/vec"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// WithLocalhost returns a kind with sockets for NodePorts on ::1 where the configuration names it, and rules for
// everything else. Rules cannot serve ::1: the kernel sends no packet from it to another host, and has no parameter
// for that as it has for 127.0.0.0/8. kube-proxy has such sockets for both families (KEP-6032), for TCP only.
func WithLocalhost(rules plane.Kind) plane.Kind {
	wanted := func(s plane.Setup) bool {
		return s.Config.NodePorts.ServesLoopback6() && slices.Contains(s.Families, route.IPv6)
	}
	k := rules
	k.Preview = func(s plane.Setup) plane.Plane {
		if !wanted(s) {
			return rules.Preview(s)
		}
		return New(noListener, Options{Rules: rules.Preview(s)})
	}
	k.Open = func(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
		on, err := rules.Open(ctx, s)
		if err != nil || !wanted(s) {
			closeAll(s.Inherited.Sockets) // the configuration named ::1 before
			return on, err
		}
		return openLocalhost(s, on)
	}
	return k
}

// openLocalhost opens the plane on top of another one, from which it keeps everything that concerns all Services.
func openLocalhost(s plane.Setup, on *plane.Opened) (*plane.Opened, error) {
	run, err := forward(s, Options{Rules: on.Plane, Absent: func(service cluster.Name, reason error) {
		if s.Report != nil {
			s.Report([]route.Problem{{
				Object: "Service " + service.String(),
				Reason: "not served at ::1, but everywhere else; Sluice retries with later changes: " + reason.Error(),
			}})
		}
	}})
	if err != nil {
		return nil, errors.Join(err, on.Close())
	}
	opened := *on
	opened.Plane, opened.Sockets, opened.HandOver = run.plane, run.plane.Sockets, run.handOver
	opened.Parts = append(opened.Parts, run.part(), plane.Part{Metrics: localhostMetrics(s.Families, run.plane.sockets)})
	opened.Reader = run.plane.readerOn(on)
	return &opened, nil
}

// localhostMetrics returns the metrics that kube-proxy has with the feature gate KubeProxyNFTablesLocalhostNodePorts,
// under which it rejects UDP and SCTP.
func localhostMetrics(families []route.Family, s *sockets) []prometheus.Collector {
	const prefix = "kubeproxy_nftables_localhost_nodeport_"
	rejected := vec.Desc{
		Name: prefix + "rejected_packets_total", Help: "Always 0: nothing is rejected on loopback addresses.",
		Labels: []string{vec.FamilyLabel, "protocol"},
		Series: vec.Each(text.Strings(families), []string{"TCP", "UDP", "SCTP"}),
	}
	opened := func(ip route.Family, value func() float64) func() float64 {
		if ip == route.IPv6 {
			return value
		}
		return func() float64 { return 0 } // rules serve 127.0.0.1
	}
	all := []prometheus.Collector{rejected.Counter()}
	for _, ip := range families {
		label := prometheus.Labels{vec.FamilyLabel: ip.String()}
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "listeners", Help: "Sockets that listen at NodePorts on a loopback address.", ConstLabels: label,
		}, opened(ip, s.count)), prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: prefix + "listener_creation_failures_total", ConstLabels: label,
			Help: "Sockets at NodePorts on a loopback address that could not be opened.",
		}, opened(ip, func() float64 { return float64(s.failures.Load()) })))
	}
	return all
}
