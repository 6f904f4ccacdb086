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
