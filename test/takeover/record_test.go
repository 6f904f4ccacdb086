//go:build linux && record

package takeover

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/sluice-proxy/sluice/test/apiserver"
)

// TestRecord records the rules of a real kube-proxy.
func TestRecord(t *testing.T) {
	c := apiserver.Start(t)
	for _, m := range modes() {
		w := newTestEnvIn(t, c, "recorded")
		kp := w.kubeProxy(m)
		if m.iptables != "" {
			kp.waitSynced(m)
		}
		kp.stop()
		for _, r := range m.recordings() {
			text := withoutCounters(w.lab.NodeA.MustRun(r.list...))
			w.must(os.WriteFile(filepath.Join("testdata", r.file), []byte(text), 0o644))
		}
		w.deleteAll()
	}
}

// withoutCounters removes timestamps, packet counters, nfacct objects, which are not part of
// the rules, and the chain that kube-proxy shares with kubelet.
func withoutCounters(text string) string {
	for _, change := range [][2]string{
		{`(?m)^#.*\n`, ""},
		{`\[\d+:\d+\]`, "[0:0]"},
		{` -m nfacct --nfacct-name  ?\S+`, ""},
		{`(?m)^.*KUBE-FIREWALL\b.*\n`, ""},
	} {
		text = regexp.MustCompile(change[0]).ReplaceAllString(text, change[1])
	}
	return text
}
