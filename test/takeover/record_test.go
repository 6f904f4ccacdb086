//go:build linux && record

package takeover

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/sluice-proxy/sluice/test/apiserver"
)

// TestRecord writes what a real kube-proxy leaves.
func TestRecord(t *testing.T) {
	c := apiserver.Start(t)
	for _, m := range modes() {
		w := newWorldIn(t, c, recordedIn)
		kp := w.kubeProxy(m)
		if m.iptables != "" {
			kp.wrote(m)
		}
		kp.end()
		for _, r := range m.recordings() {
			text := timeless(w.lab.NodeA.MustRun(r.list...))
			w.must(os.WriteFile(filepath.Join("testdata", r.file), []byte(text), 0o644))
		}
		w.sweep()
	}
}

// timeless leaves out when it was recorded, how many packets there were, the
// objects that count packets, which are no part of the rules, and what kube-proxy
// shares with kubelet.
func timeless(text string) string {
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
