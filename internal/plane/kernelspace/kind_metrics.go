package kernelspace

import (
	"github.com/prometheus/client_golang/prometheus"
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

func (f failures) count(x Failure) {
	f[x.Op].WithLabelValues(x.Family.String(), x.Kind, x.Reason).Inc()
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
