package metrics

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// promtool finds the program: named by PROMTOOL, on the PATH, or where
// hack/test-tools.sh puts it. Only in CI it has to be there.
func promtool(t *testing.T) string {
	t.Helper()
	if named := os.Getenv("PROMTOOL"); named != "" {
		return named
	}
	if found, err := exec.LookPath("promtool"); err == nil {
		return found
	}
	made, err := filepath.Abs("../../.cache/test-tools/promtool")
	if err == nil {
		_, err = os.Stat(made)
	}
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("there is no promtool (hack/test-tools.sh fetches it): %v", err)
	}
	if err != nil {
		t.Skipf("there is no promtool (hack/test-tools.sh fetches it): %v", err)
	}
	return made
}

// Prometheus' own tool finds nothing wrong but with the one name that we have
// from kube-proxy.
func TestPromtoolChecksMetrics(t *testing.T) {
	tool := promtool(t)
	w := httptest.NewRecorder()
	busy(t).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	check := exec.CommandContext(t.Context(), tool, "check", "metrics")
	check.Stdin = w.Body
	said, err := check.CombinedOutput()
	want := `kubeproxy_sync_proxy_rules_no_local_endpoints_total non-counter metrics should not have "_total" suffix`
	if got := strings.TrimSpace(string(said)); got != want {
		t.Errorf("promtool check metrics (%v):\n%s\nwant:\n%s", err, got, want)
	}
}
