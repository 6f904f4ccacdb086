package kernelspace

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// failures counts writes of load balancers that failed, under the names of kube-proxy.
type failures map[string]*prometheus.CounterVec

func newFailures() failures {
	all := failures{}
	for _, op := range []string{"create", "update", "delete"} {
		all[op] = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_winkernel_lb_" + op + "_failures_total",
			Help: "Load balancers of HNS of which the " + op + " failed, by IP family, kind of address and error.",
		}, []string{"ip_family", "lb_type", "error"})
	}
	return all
}

// count counts a failed step of a load balancer.
func (f failures) count(s *step, err error) {
	if f == nil || !s.Key.class.balancer() {
		return
	}
	op := [...]string{"create", "update", "delete", "delete"}[s.Op]
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

// Describe implements prometheus.Collector.
func (f failures) Describe(out chan<- *prometheus.Desc) {
	for _, c := range f {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (f failures) Collect(out chan<- prometheus.Metric) {
	for _, c := range f {
		c.Collect(out)
	}
}
