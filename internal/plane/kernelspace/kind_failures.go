package kernelspace

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

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
