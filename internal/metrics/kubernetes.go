package metrics

import (
	"fmt"
	"net/http"
	"runtime"
)

// The version of kube-proxy whose behaviour this is. Alerts on components whose
// version differs from the cluster's read it.
const (
	kubernetesMajor = "1"
	kubernetesMinor = "37"
)

// constants sets the families that do not change.
func (m *Metrics) constants(registered int) {
	o := m.opt
	m.gauge("sluice_build_info", o.Version, runtime.Version()).Set(1)
	m.gauge("sluice_mode_info", o.Mode, o.Reason).Set(1)
	version := fmt.Sprintf("v%s.%s.0+sluice-%s", kubernetesMajor, kubernetesMinor, o.Version)
	m.gauge("kubernetes_build_info", kubernetesMajor, kubernetesMinor, version, "", "", "",
		runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH).Set(1)
	for _, g := range o.Gates {
		m.gauge("kubernetes_feature_enabled", g.Name, g.Stage).Set(truth(g.Enabled))
	}
	m.counter("registered_metrics_total", "ALPHA", "").Add(float64(registered))
	m.gauge("sluice_config_last_reload_timestamp_seconds").Set(seconds(o.Started))
	m.gauge("process_start_time_seconds").Set(seconds(o.Started))
}

// Checked records the outcome of one health check of an endpoint. A nil error means that it passed. kube-proxy has
// one, "ping" of "healthz", asked for on the metrics port.
func (m *Metrics) Checked(name, endpoint string, err error) {
	status := "success"
	if err != nil {
		status = "error"
	}
	m.gauge("kubernetes_healthcheck", name, endpoint).Set(truth(err == nil))
	m.counter("kubernetes_healthchecks_total", name, endpoint, status).Inc()
}

// SLIs serves /metrics/slis. DELETE removes the outcomes of all checks.
func (m *Metrics) SLIs() http.Handler {
	show := serve(m.slis)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			show.ServeHTTP(w, r)
			return
		}
		for _, name := range []string{"kubernetes_healthcheck", "kubernetes_healthchecks_total"} {
			m.families[name].(interface{ Reset() }).Reset()
		}
		fmt.Fprintln(w, "metrics reset")
	})
}
