// Package metricstest prints metrics for tests to compare.
package metricstest

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
)

// Registry returns a registry with the collectors.
func Registry(all ...prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(all...)
	return r
}

// ours reports whether a family is not one of the runtime's.
func ours(name string) bool {
	return !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_")
}

// Gather returns the families, except the ones of the runtime.
func Gather(t testing.TB, from prometheus.Gatherer) []*dto.MetricFamily {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return !ours(f.GetName()) })
}

// Shape returns everything of the families but their values.
func Shape(families []*dto.MetricFamily) string {
	var out strings.Builder
	for _, f := range families {
		fmt.Fprintf(&out, "%s %s\n\t%s\n", f.GetName(), strings.ToLower(f.GetType().String()), f.GetHelp())
		var buckets []string
		for _, s := range f.GetMetric() {
			fmt.Fprintf(&out, "\t%s\n", labels(s))
			buckets = nil
			for _, b := range s.GetHistogram().GetBucket() {
				buckets = append(buckets, strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
			}
		}
		if buckets != nil {
			fmt.Fprintf(&out, "\tup to %s\n", strings.Join(buckets, " "))
		}
	}
	return out.String()
}

func labels(s *dto.Metric) string {
	var pairs []string
	for _, l := range s.GetLabel() {
		pairs = append(pairs, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	return "{" + strings.Join(pairs, ", ") + "}"
}

// Values returns the samples whose names begin with a prefix and that are not 0, of histograms their count and sum.
func Values(t testing.TB, from prometheus.Gatherer, prefix string) string {
	t.Helper()
	var out []string
	for _, f := range Gather(t, from) {
		rest, wanted := strings.CutPrefix(f.GetName(), prefix)
		for _, s := range f.GetMetric() {
			v := cmp.Or(s.GetCounter().GetValue(), s.GetGauge().GetValue())
			text := strconv.FormatFloat(v, 'f', -1, 64)
			if h := s.GetHistogram(); h != nil {
				v = float64(h.GetSampleCount())
				text = fmt.Sprintf("%d times, %.4g in all", h.GetSampleCount(), h.GetSampleSum())
			}
			if wanted && v != 0 {
				out = append(out, rest+labels(s)+" "+text)
			}
		}
	}
	return strings.Join(out, "\n")
}

// Lint returns the report of `promtool check metrics` about the metrics that a handler serves. It uses the library of
// promtool.
func Lint(t testing.TB, page http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	problems, err := promlint.New(w.Body).Lint()
	if err != nil {
		t.Fatal(err)
	}
	lines := make([]string, 0, len(problems))
	for _, p := range problems {
		lines = append(lines, p.Metric+" "+p.Text)
	}
	return strings.Join(lines, "\n")
}
