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

// kubernetesTable has the families of every component of Kubernetes.
func (m *Metrics) kubernetesTable() []family {
	return []family{{
		name: "kubernetes_build_info", into: &m.kubernetes,
		labels: []string{
			"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date",
			"go_version", "compiler", "platform",
		},
		help: "Always 1; the labels say which version of Kubernetes this stands in for, and what runs.",
	}, {
		name: "kubernetes_feature_enabled", labels: []string{"name", "stage"}, into: &m.gates,
		help: "1 for each feature gate that is on, 0 for those that are off.",
	}, {
		name: "registered_metrics_total", labels: []string{"stability_level", "deprecated_version"}, into: &m.registered,
		help: "Families there are, besides those of the runtime.",
	}, {
		name: "hidden_metrics_total", into: &m.hidden,
		help: "Always 0: no family is hidden.",
	}, {
		name: "disabled_metrics_total", into: &m.disabled,
		help: "Always 0: no family can be disabled.",
	}}
}

// constants sets the families that do not change.
func (m *Metrics) constants(registered int) {
	o := m.opt
	m.build.WithLabelValues(o.Version, runtime.Version()).Set(1)
	m.mode.WithLabelValues(o.Mode, o.Reason).Set(1)
	version := fmt.Sprintf("v%s.%s.0+sluice-%s", kubernetesMajor, kubernetesMinor, o.Version)
	m.kubernetes.WithLabelValues(kubernetesMajor, kubernetesMinor, version, "", "", "",
		runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH).Set(1)
	for _, g := range o.Gates {
		m.gates.WithLabelValues(g.Name, g.Stage).Set(float64(truth(g.Enabled)))
	}
	m.registered.WithLabelValues("ALPHA", "").Add(float64(registered))
	m.reloaded.WithLabelValues().Set(seconds(o.Started))
	m.started.WithLabelValues().Set(seconds(o.Started))
}

// sliTable has the families of /metrics/slis.
func (m *Metrics) sliTable() []family {
	return []family{{
		name: "kubernetes_healthcheck", labels: []string{"name", "type"}, into: &m.healthcheck,
		help: "1 if the health check last went well, else 0.",
	}, {
		name: "kubernetes_healthchecks_total", labels: []string{"name", "type", "status"}, into: &m.healthchecks,
		help: "Health checks, by how they went.",
	}, {
		name: "process_start_time_seconds", into: &m.started,
		help: "When the process started.",
	}}
}

// Checked records the outcome of one health check of an endpoint; nil: it passed.
// kube-proxy has one, "ping" of "healthz", asked for on the metrics port.
func (m *Metrics) Checked(name, endpoint string, err error) {
	status := "success"
	if err != nil {
		status = "error"
	}
	m.healthcheck.WithLabelValues(name, endpoint).Set(float64(truth(err == nil)))
	m.healthchecks.WithLabelValues(name, endpoint, status).Inc()
}

// SLIs serves /metrics/slis. DELETE forgets all checks.
func (m *Metrics) SLIs() http.Handler {
	show := serve(m.slis)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			show.ServeHTTP(w, r)
			return
		}
		m.healthcheck.Reset()
		m.healthchecks.Reset()
		fmt.Fprintln(w, "metrics reset")
	})
}
