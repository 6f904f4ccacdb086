//go:build linux

package takeover

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/test/lab"
)

// recordedRules is a file of testdata, with the commands that list and load its rules.
type recordedRules struct {
	file       string
	list, load []string
}

// recordings are the files of a mode.
func (m mode) recordings() []recordedRules {
	if m.iptables == "" {
		return []recordedRules{
			{m.name + "-ip4.nft", []string{"nft", "-s", "list", "table", "ip", "kube-proxy"}, []string{"nft", "-f", "-"}},
			{m.name + "-ip6.nft", []string{"nft", "-s", "list", "table", "ip6", "kube-proxy"}, []string{"nft", "-f", "-"}},
		}
	}
	var out []recordedRules
	for _, program := range []string{"iptables", "ip6tables"} {
		variant := strings.Replace(m.name, "iptables", program, 1)
		out = append(out, recordedRules{variant + ".save", []string{variant + "-save"}, []string{variant + "-restore"}})
	}
	return out
}

func (w *testEnv) loadRecorded(m mode) {
	w.Helper()
	for _, r := range m.recordings() {
		text, err := os.ReadFile(filepath.Join("testdata", r.file))
		w.must(err)
		load := r.load
		if m.iptables != "" {
			load = append(load, "--noflush")
		}
		_, err = w.lab.NodeA.Run(string(text), load...)
		w.must(err)
	}
}

// TestCleanup verifies that --cleanup removes the rules of kube-proxy in all modes and reports
// them. It needs no API server, and connections may break.
func TestCleanup(t *testing.T) {
	l := lab.New(t, lab.Options{})
	w := &testEnv{T: t, lab: l}
	for _, m := range modes() {
		w.loadForeignRules(m)
	}
	before := w.dump()
	for _, m := range modes() {
		w.loadRecorded(m)
	}
	out := w.cleanup()
	w.checkRestored(before)
	for _, m := range modes() {
		if !strings.Contains(out, "removed "+m.name+": ") {
			t.Errorf("the output lacks the removal of %s:\n%s", m.name, out)
		}
	}
	if out := w.cleanup(); out != "" {
		t.Errorf("a second cleanup reports:\n%s", out)
	}
}

// cleanup runs the code of --cleanup on node A, and returns its report.
func (w *testEnv) cleanup() string {
	w.Helper()
	report, err := app.Cleanup(w.Context(), app.Options{
		Config: &config.Config{}, Kinds: app.Kinds(), Log: slog.New(slog.DiscardHandler), NetNS: w.lab.NodeA.NetNSFD(),
	})
	w.must(err)
	return strings.Join(report, "\n")
}
