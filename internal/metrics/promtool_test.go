package metrics

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// promtool finds the program: where TEST_TOOLS says, where hack/test-tools.sh
// puts it, or on the PATH. Only the quick tests do without it.
func promtool(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{os.Getenv("TEST_TOOLS"), "../../.cache/test-tools"} {
		if path, err := filepath.Abs(filepath.Join(dir, "promtool")); dir != "" && err == nil && exists(path) {
			return path
		}
	}
	found, err := exec.LookPath("promtool")
	switch {
	case err == nil:
	case testing.Short():
		t.Skip("the quick tests do without promtool")
	default:
		t.Fatalf("there is no promtool (make test-tools fetches it): %v", err)
	}
	return found
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Prometheus' own tool finds nothing wrong but with the names that we have from
// kube-proxy.
func TestPromtoolChecksMetrics(t *testing.T) {
	tool := promtool(t)
	for mode, gauges := range map[string][]string{
		modeNFTables: {"no_local_endpoints_total"},
		modeIPTables: {"iptables_total", "no_local_endpoints_total"},
	} {
		w := httptest.NewRecorder()
		busy(t, mode).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		check := exec.CommandContext(t.Context(), tool, "check", "metrics")
		check.Stdin = w.Body
		said, err := check.CombinedOutput()
		var want []string
		for _, g := range gauges {
			want = append(want, "kubeproxy_sync_proxy_rules_"+g+` non-counter metrics should not have "_total" suffix`)
		}
		if got := strings.Split(strings.TrimSpace(string(said)), "\n"); !slices.Equal(got, want) {
			t.Errorf("promtool check metrics in mode %s (%v):\n%s\nwant:\n%s", mode, err, said, strings.Join(want, "\n"))
		}
	}
}
