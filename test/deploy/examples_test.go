//go:build linux

package deploy

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/conformance"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The configurations among the examples are taken as they are, with the rights of
// the DaemonSet, and the kernel has what they say.
func TestExampleConfigurations(t *testing.T) {
	root := imageFor(t, "iptables")
	for _, tt := range []struct {
		file string
		says []string // parts of rules
	}{
		{"kube-proxy.conf", []string{"! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp", "! -s 127.0.0.0/8 -d 127.0.0.0/8 "}},
		{"sluice.conf", []string{"! -s 10.180.0.0/16 -d 10.96.0.10/32 -p tcp", "! -d 127.0.0.0/8 "}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			l := lab.New(t, lab.Options{})
			c := given(t, root, "iptables", conformance.Program{
				Host: l.NodeA, Manifests: project("examples"), Args: []string{"--config=/etc/sluice/config/" + tt.file, "--hostname-override=node-a"},
			})
			p := c.start(t, l.NodeA)
			p.says("mode=iptables")
			p.says("msg=Synced")
			rules := l.NodeA.MustRun("iptables-nft-save")
			for _, part := range tt.says {
				if !strings.Contains(rules, part) {
					t.Errorf("no rule has %q:\n%s", part, rules)
				}
			}
			must(t, p.stop())
		})
	}
}
