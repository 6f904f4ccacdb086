//go:build linux

package deploy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/test/conformance"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Each alert has a test in which it fires and one in which it does not, with its complete text.
func TestAlertRules(t *testing.T) {
	run(t, tool("promtool"), "check", "rules", projectPath("deploy/helm/sluice/files/alerts.yaml"))
	run(t, tool("promtool"), "test", "rules", "testdata/alerts_test.yaml")
	tests, err := os.ReadFile("testdata/alerts_test.yaml")
	must(t, err)
	runbook, err := os.ReadFile(projectPath("docs/runbook.md"))
	must(t, err)
	for name, a := range alerts(t) {
		if !strings.Contains(string(tests), "alertname: "+name+"\n") {
			t.Errorf("alert %s is not tested", name)
		}
		if !strings.Contains(string(runbook), "\n## "+name+"\n") || !strings.HasSuffix(a.runbook, "#"+strings.ToLower(name)) {
			t.Errorf("alert %s has no section in docs/runbook.md, or does not lead there: %s", name, a.runbook)
		}
	}
}

// alert is what tests know of an alert.
type alert struct{ expr, runbook string }

// alerts returns the alerts by name.
func alerts(t *testing.T) map[string]alert {
	t.Helper()
	text, err := os.ReadFile(projectPath("deploy/helm/sluice/files/alerts.yaml"))
	must(t, err)
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	must(t, yaml.Unmarshal(text, &file))
	out := map[string]alert{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			out[r.Alert] = alert{r.Expr, r.Annotations["runbook_url"]}
		}
	}
	return out
}

// panel is a panel of the dashboard, with the fields that the tests use.
type panel struct {
	Title, Description, Type string
	Targets                  []struct{ Expr, LegendFormat string }
	FieldConfig              struct {
		Defaults struct{ Unit string }
	}
	GridPos struct{ X, Y, W, H int }
}

func panels(t *testing.T) []panel {
	t.Helper()
	text, err := os.ReadFile(projectPath("deploy/helm/sluice/files/dashboard.json"))
	must(t, err)
	var dashboard struct{ Panels []panel }
	must(t, json.Unmarshal(text, &dashboard))
	return dashboard.Panels
}

// Each panel has a unique title, a description, queries and a unit, and overlaps no other.
func TestDashboardPanels(t *testing.T) {
	titles, taken := map[string]bool{}, map[[2]int]string{}
	var rows []string
	for _, p := range panels(t) {
		if titles[p.Title] || p.Title == "" {
			t.Errorf("two panels have the title %q", p.Title)
		}
		titles[p.Title] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q overlaps %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "" && p.Type != "heatmap" {
			t.Errorf("%q lacks a description, a query or a unit", p.Title)
		}
		for _, q := range p.Targets {
			if q.LegendFormat == "" && p.Type == "timeseries" {
				t.Errorf("%q has no legend for %s", p.Title, q.Expr)
			}
		}
	}
	want := []string{
		"Overview", "Latency", "Kernel writes", "Repairs", "API", "Health",
		servicesRow, iptablesRow, ebpfRow, userspaceRow, ipvsRow, "Draining", "Direct",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the rows are %v, want %v", rows, want)
	}
}

// Rows of panels that have data in one mode only.
const (
	iptablesRow, ebpfRow  = "Mode iptables", "Mode ebpf"
	userspaceRow, ipvsRow = "Mode userspace", "Mode ipvs"
	servicesRow           = "Traffic of Services" // of two panels
)

func rowOf(t *testing.T, title string) (row []panel) {
	t.Helper()
	in := false
	for _, p := range panels(t) {
		if p.Type == "row" {
			in = p.Title == title
		} else if in {
			row = append(row, p)
		}
	}
	if len(row) == 0 {
		t.Fatalf("the row %q has no panels", title)
	}
	return row
}

// monitoredSluice is a Sluice with a Prometheus that scrapes it, on node A.
type monitoredSluice struct {
	t    *testing.T
	node *lab.Host
	mode string
	dir  string
}

const scrape = `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
  - job_name: sluice
    static_configs: [{targets: ["127.0.0.1:10249"], labels: {instance: node-a}}]
`

func startMonitored(t *testing.T, mode string) *monitoredSluice {
	t.Helper()
	l := lab.New(t, lab.Options{})
	m := &monitoredSluice{t: t, node: l.NodeA, mode: mode, dir: t.TempDir()}
	m.write(1)
	daemonSetContainer(t, imageFor(t, mode), mode, conformance.Program{
		Host: l.NodeA, Manifests: m.dir, Args: []string{"--hostname-override=node-a", "--proxy-mode=" + mode},
	}).start(t, l.NodeA).waitForLog("msg=Synced")
	m.monitor()
	return m
}

// monitor starts a Prometheus that scrapes Sluice.
func (m *monitoredSluice) monitor() {
	t := m.t
	t.Helper()
	config := filepath.Join(t.TempDir(), "prometheus.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, scrape, projectPath("deploy/helm/sluice/files/alerts.yaml")), 0o600))
	run(t, tool("promtool"), "check", "config", config)
	cmd := exec.Command(tool("prometheus"), "--config.file="+config, "--storage.tsdb.path="+t.TempDir(),
		"--web.listen-address=127.0.0.1:9090", "--log.level=error")
	log := &harness.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	_, err := m.node.Start(cmd)
	must(t, err)
	eventually(t, func() error {
		if up, err := m.query("up"); err != nil || !slices.Equal(up, []string{"1"}) {
			return fmt.Errorf("up is %v: %w", up, err)
		}
		return nil
	})
}

// write replaces the manifests. The endpoint depends on n, and one object is invalid.
func (m *monitoredSluice) write(n int) {
	m.t.Helper()
	text := fmt.Sprintf(`
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web
  labels: {kubernetes.io/service-name: web}
  annotations: {endpoints.kubernetes.io/last-change-trigger-time: %q}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.180.0.%d]}]
---
{apiVersion: v1, kind: Service, metadata: {name: odd}, spec: {clusterIP: 10.96.0.999, ports: [{port: 80}]}}
`, time.Now().Format(time.RFC3339Nano), n)
	temp := filepath.Join(m.dir, ".new")
	must(m.t, os.WriteFile(temp, []byte(text), 0o600))
	must(m.t, os.Rename(temp, filepath.Join(m.dir, "all.yaml")))
}

// createActivity causes data for every panel.
func (m *monitoredSluice) createActivity() {
	m.t.Helper()
	for n := range 5 {
		m.write(n + 2)
		if m.mode == "nftables" {
			m.node.MustRun("nft", "flush", "table", "ip", "sluice")
		}
		for _, path := range []string{"healthz", "livez"} {
			_, err := fetch(m.node, netip.MustParseAddrPort("127.0.0.1:10256"), "/"+path)
			must(m.t, err)
		}
		time.Sleep(time.Second)
	}
}

// query runs a Prometheus query and returns the values of the result.
func (m *monitoredSluice) query(expr string) ([]string, error) {
	out, err := fetch(m.node, netip.MustParseAddrPort("127.0.0.1:9090"),
		"/api/v1/query?"+url.Values{"query": {expr}}.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error string
		Data  struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("read %q: %w", out, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	var values []string
	for _, r := range answer.Data.Result {
		values = append(values, fmt.Sprint(r.Value[1]))
	}
	return values, nil
}

// newMonitored starts Sluice in a mode with a Prometheus, and creates activity.
func newMonitored(t *testing.T, mode string) *monitoredSluice {
	t.Helper()
	m := startMonitored(t, mode)
	m.createActivity()
	return m
}

// checkPanel verifies that a panel has data.
func (m *monitoredSluice) checkPanel(p panel) {
	m.t.Helper()
	for _, q := range p.Targets {
		expr := expand(q.Expr)
		eventually(m.t, func() error {
			values, err := m.query(expr)
			if err == nil && len(slices.DeleteFunc(values, func(v string) bool { return v == "NaN" })) == 0 {
				err = fmt.Errorf("panel %q has no data: %s", p.Title, expr)
			}
			return err
		})
	}
}

// expand gives the variables of a query values.
func expand(query string) string {
	return strings.NewReplacer("$instance", ".+", "$__rate_interval", "1m").Replace(query)
}

// The panels for mode iptables have data in that mode.
func TestQueriesOfIptablesMode(t *testing.T) {
	m := newMonitored(t, "iptables")
	for _, p := range rowOf(t, iptablesRow) {
		m.checkPanel(p)
	}
}

// The panels for mode ebpf, and the alert about its maps, have data in that mode.
func TestQueriesOfEBPFMode(t *testing.T) {
	n := newSocketsNode(t)
	n.container(t).start(t, n.lab.NodeA).waitForLog("msg=Synced")
	m := &monitoredSluice{t: t, node: n.lab.NodeA, mode: "ebpf", dir: n.dir}
	m.monitor()
	for range 3 { // a rate needs samples before and after
		for range 5 {
			if r := n.lab.NodeA.Dial(lab.TCP, netip.MustParseAddrPort("10.96.0.10:80")); r.Outcome != lab.Answered {
				t.Fatal(r)
			}
		}
		time.Sleep(2 * time.Second)
	}
	for _, p := range rowOf(t, ebpfRow) {
		m.checkPanel(p)
	}
	for name, a := range alerts(t) {
		if !strings.Contains(a.expr, ebpfMetrics) {
			continue
		}
		if values, err := m.query(strings.Replace(a.expr, "> 0.9", ">= 0", 1)); err != nil || len(values) == 0 {
			t.Errorf("alert %s has no data: %v", name, err)
		}
	}
	if values, err := m.query("sum(sluice_ebpf_connections_total)"); err != nil || !slices.Equal(values, []string{"15"}) {
		t.Errorf("%v connections are counted (%v), want 15", values, err)
	}
}

// The panels and alerts for mode userspace have data in that mode.
func TestQueriesOfUserspaceMode(t *testing.T) {
	m := newMonitored(t, "userspace")
	for _, p := range rowOf(t, userspaceRow) {
		m.checkPanel(p)
	}
	for name, a := range alerts(t) {
		if strings.Contains(a.expr, userspaceMetrics) {
			m.hasMetrics(name, a.expr)
		}
	}
}

// hasMetrics verifies that there are all metrics that an alert uses.
func (m *monitoredSluice) hasMetrics(alert, expr string) {
	m.t.Helper()
	for metric := range metricNames(expr) {
		if values, err := m.query(fmt.Sprintf("count({__name__=%q})", metric)); err != nil || len(values) == 0 {
			m.t.Errorf("alert %s uses %s, which Sluice does not export: %v", alert, metric, err)
		}
	}
}

// These begin the names of metrics that are there in one mode only.
const ebpfMetrics, userspaceMetrics = "sluice_ebpf_", "sluice_userspace_"

// TestQueries runs the queries of the dashboard and the alerts on a real Prometheus that scrapes a real Sluice.
func TestQueries(t *testing.T) {
	m := newMonitored(t, "nftables")
	for _, p := range panels(t) {
		if p.Title == servicesRow {
			break
		}
		m.checkPanel(p)
	}
	counted := rowOf(t, servicesRow)
	m.checkPanel(counted[2]) // live connections

	for _, p := range append(counted[:2], rowOf(t, ipvsRow)...) { // packages compare the names of their metrics
		for _, q := range p.Targets {
			if _, err := m.query(expand(q.Expr)); err != nil {
				t.Errorf("panel %q: %v", p.Title, err)
			}
		}
	}
	for name, a := range alerts(t) {
		if _, err := m.query(a.expr); err != nil {
			t.Errorf("alert %s: %v", name, err)
		}
		if !strings.Contains(a.expr, ebpfMetrics) && !strings.Contains(a.expr, userspaceMetrics) {
			m.hasMetrics(name, a.expr)
		}
	}
	for _, change := range []string{
		`sum(increase(sluice_repairs_total{cause="foreign-edit"}[1m]))`, `sum(rate(kubeproxy_proxy_healthz_total[1m]))`,
		`sum(sluice_objects_rejected_total)`, `sum(rate(kubeproxy_network_programming_duration_seconds_count[1m]))`,
	} {
		if values, err := m.query(change); err != nil || len(values) != 1 || values[0] == "0" {
			t.Errorf("%s is %v (%v), want more than 0", change, values, err)
		}
	}
}

func metricNames(expr string) map[string]bool {
	out := map[string]bool{}
	for _, name := range regexp.MustCompile(`\b(sluice|kubeproxy)_\w+`).FindAllString(expr, -1) {
		out[name] = true
	}
	return out
}
