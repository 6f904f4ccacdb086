package metrics

import (
	_ "embed"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/metrics/vec"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

//go:embed metrics.txt
var metricsText string

// The sections of metrics.txt that are not on /metrics of every data plane.
const (
	partialSection = "[partial syncs]"
	sliSection     = "[slis]"
)

// register makes the families of metrics.txt and returns how many are on /metrics.
func (m *Metrics) register() int {
	n, section := 0, ""
	read := readings{m, map[string]reading{}}
	for line := range strings.Lines(metricsText) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
			continue
		case line[0] == '[':
			section = line
			continue
		case section == partialSection && !m.opt.PartialSyncs:
			continue
		}
		in := m.registry
		if section == sliSection {
			in = m.slis
		} else {
			n++
		}
		d, kind := m.parse(line)
		if kind, ok := strings.CutPrefix(kind, "read "); ok {
			read.add(d, kind)
			continue
		}
		m.families[d.Name] = newCollector(d, kind)
		in.MustRegister(m.families[d.Name])
	}
	m.registry.MustRegister(&read)
	return n
}

// parse returns the family in a row of metrics.txt, and its type.
func (m *Metrics) parse(row string) (d vec.Desc, kind string) {
	columns := strings.Split(row, " | ")
	for i, c := range columns {
		columns[i] = strings.TrimSpace(c)
		if columns[i] == "-" {
			columns[i] = ""
		}
	}
	d = vec.Desc{Name: columns[0], Help: columns[4], Buckets: bucketsOf()[columns[3]], Series: seriesOf()[columns[0]]}
	if columns[2] != "" {
		d.Labels = strings.Split(columns[2], ",")
	}
	if columns[2] == vec.FamilyLabel {
		d = d.ByFamily(m.opt.Families)
	}
	return d, columns[1]
}

func newCollector(d vec.Desc, kind string) prometheus.Collector {
	switch kind {
	case "counter":
		return d.Counter()
	case "gauge":
		return d.Gauge()
	default:
		return d.Histogram()
	}
}

// seriesOf returns the label values of the series that exist from the start, at 0, by family.
func seriesOf() map[string][][]string {
	codes := vec.Each([]string{"200", "503"})
	return map[string][][]string{
		"kubeproxy_proxy_healthz_total": codes,
		"kubeproxy_proxy_livez_total":   codes,
		"sluice_comparisons_total":      vec.Each(words(proxy.Causes())),
		"sluice_repairs_total":          vec.Each(words(proxy.RepairCauses())),
		"sluice_objects_rejected_total": vec.Each(append(event.Kinds(), kindOther), words(event.Classes())),
	}
}

// kindOther is the kind of everything with problems that is not an object.
const kindOther = "other"

func words[T ~string](of []T) []string {
	var out []string
	for _, v := range of {
		out = append(out, string(v))
	}
	return out
}

func bucketsOf() map[string][]float64 {
	const minute, hour, day = 60, 3600, 86400
	return map[string][]float64{
		"durations": vec.Durations(),
		// kube-proxy's, for which Kubernetes has an objective
		"programming": slices.Concat(
			[]float64{0.25, 0.5},
			prometheus.LinearBuckets(1, 1, 59),
			prometheus.LinearBuckets(60, 5, 12),
			prometheus.LinearBuckets(120, 30, 7),
		),
		"steps": append([]float64{0}, prometheus.ExponentialBuckets(1, 4, 11)...),
		// Close to each other where most changes are, at 0.1 to 2 ms.
		"latency": slices.Concat(
			[]float64{0.0001, 0.00015, 0.0002, 0.00025, 0.0003, 0.0004, 0.0005, 0.0007, 0.001, 0.0015, 0.002},
			prometheus.ExponentialBuckets(0.004, 2, 15),
		),
		"waits": {0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
		"bytes": {64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20},
		"ages": {
			10 * minute, 30 * minute, hour, 4 * hour, day, 7 * day,
			30 * day, 90 * day, 180 * day, 360 * day, 1440 * day,
		},
	}
}
