package userspace_test

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Clients cannot connect to the sockets directly, which would bypass source ranges; also not if another
// program exempts packets from connection tracking, as network plugins and firewalls do.
func TestSocketsAreGuarded(t *testing.T) {
	for what, notrack := range map[string]bool{"tracked": false, "untracked": true} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			client := n.Pod(n.NodeA, "10.180.0.9", "fd00:10:180::9")
			n.pod.Serve(lab.TCP, 8080)
			if notrack {
				for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
					n.NodeA.MustRun(program, "-t", "raw", "-A", "PREROUTING", "-p", "tcp", "-j", "NOTRACK")
					n.NodeA.MustRun(program, "-t", "raw", "-A", "OUTPUT", "-p", "tcp", "-j", "NOTRACK")
				}
			}
			tried := 0
			for _, s := range n.opened.Sockets() {
				if s.Protocol != cluster.TCP {
					continue
				}
				tried++
				r := client.Try(lab.Probe{Protocol: lab.TCP, To: s.At, Timeout: lab.Soon})
				if r.Outcome != lab.TimedOut {
					t.Errorf("socket %s: %s", s.At, r)
				}
			}
			if tried == 0 {
				t.Error("there are no sockets")
			}
		})
	}
}
