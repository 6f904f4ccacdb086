//go:build linux

package deploy

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/conformance"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The example configurations work unchanged with the rights of the DaemonSet, and their settings appear in the rules.
func TestExampleConfigurations(t *testing.T) {
	root := imageFor(t, "iptables")
	for _, tt := range []struct {
		file string
		want []string // parts of rules
	}{
		{"kube-proxy.conf", []string{"! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp", "! -s 127.0.0.0/8 -d 127.0.0.0/8 "}},
		{"sluice.conf", []string{"! -s 10.180.0.0/16 -d 10.96.0.10/32 -p tcp", "! -d 127.0.0.0/8 "}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			l := lab.New(t, lab.Options{})
			c := daemonSetContainer(t, root, "iptables", conformance.Program{
				Host: l.NodeA, Manifests: projectPath("examples"),
				Args: []string{"--config=/etc/sluice/config/" + tt.file, "--hostname-override=node-a"},
			})
			p := c.start(t, l.NodeA)
			p.waitForLog("mode=iptables")
			p.waitForLog("msg=Synced")
			rules := l.NodeA.MustRun("iptables-nft-save")
			for _, part := range tt.want {
				if !strings.Contains(rules, part) {
					t.Errorf("no rule has %q:\n%s", part, rules)
				}
			}
			must(t, p.stop())
		})
	}
}
