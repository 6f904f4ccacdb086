//go:build linux

package takeover

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestTakeover(t *testing.T) {
	c := apiserver.Start(t)
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Run("kube-proxy first stopped", func(t *testing.T) { testStoppedFirst(newTestEnv(t, c), m) })
			t.Run("kube-proxy stopped last", func(t *testing.T) { testStoppedLast(newTestEnv(t, c), m) })
		})
		if m.iptables != "" {
			t.Run(m.name+" in place", func(t *testing.T) { testInPlace(t, c, m) })
			t.Run(m.name+" and nftables", func(t *testing.T) { testSwitchModes(newTestEnv(t, c), m) })
		}
	}
	t.Run("other mechanism", func(t *testing.T) { testOtherMechanisms(t, c) })
}

// foreignRules are rules of other programs: of a CNI plugin, of an administrator, and of kubelet, whose names are
// like kube-proxy's.
const foreignRules = `
*mangle
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -m comment --comment "kubernetes service portals" -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp --dport 9999 -j REDIRECT --to-ports 9998
-A POSTROUTING -p tcp --dport 9997 -j MASQUERADE
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:MY-RULES - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A INPUT -p tcp --dport 9996 -j MY-RULES
-A MY-RULES -j DROP
COMMIT
`

// kubeletRule is a rule of kubelet, IPv4 only, that kube-proxy needs as well.
const kubeletRule = `-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment ` +
	`--comment "block incoming localnet connections" ` +
	"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\nCOMMIT\n"

func (w *testEnv) loadForeignRules(m mode) {
	w.Helper()
	if m.iptables == "" {
		w.lab.NodeA.Nft("table inet foreign { chain input { type filter hook input priority 0; tcp dport 9995 drop; }; }")
		return
	}
	folder := programs(w.T, m.iptables)
	for restore, rules := range map[string]string{
		"iptables-restore":  strings.TrimSuffix(foreignRules, "COMMIT\n") + kubeletRule,
		"ip6tables-restore": foreignRules,
	} {
		_, err := w.lab.NodeA.Run(rules, folder+"/"+restore)
		w.must(err)
	}
}

func (w *testEnv) startSluice(more ...string) *apiserver.Proxy {
	w.Helper()
	return w.Cluster.Run(w, w.lab.NodeA, append([]string{"--cluster-cidr=" + clusterCIDRs}, more...)...)
}

// waitRemoved waits until Sluice logs that it has removed all rules of a mechanism, and
// verifies that it did so in one step.
func (w *testEnv) waitRemoved(p *apiserver.Proxy, m mode) {
	w.Helper()
	w.waitForLog(p, `msg="Removed leftovers of kube-proxy or of another mode" mechanism=`+m.name)
	if n := strings.Count(p.Log(), "Removed leftovers of kube-proxy"); n != 1 {
		w.Errorf("kube-proxy's rules were removed in %d steps:\n%s", n, p.Log())
	}
}

// waitForLog waits until Sluice logs a text.
func (w *testEnv) waitForLog(p *apiserver.Proxy, text string) {
	w.Helper()
	w.eventually(func() error {
		if !strings.Contains(p.Log(), text) {
			return fmt.Errorf("the log lacks %q:\n%s", text, p.Log())
		}
		return nil
	})
}

// checkRestored verifies that the rules are the same as before kube-proxy started.
func (w *testEnv) checkRestored(before string) {
	w.Helper()
	if diff := cmp.Diff(before, w.dump()); diff != "" {
		w.Errorf("rules differ from those before kube-proxy (-before, +after):\n%s", diff)
	}
}

// endTraffic waits for some more connections, and ends them.
func (w *testEnv) endTraffic(t *lab.Steady) {
	w.Helper()
	t.Await(100)
	if err := t.End(); err != nil {
		w.Error(err)
	}
	w.Log(t)
	w.must(w.checkReachable(timeout))
}

// testStoppedFirst stops kube-proxy, then starts Sluice.
func testStoppedFirst(w *testEnv, m mode) {
	w.loadForeignRules(m)
	before := w.dump()
	kp := w.kubeProxy(m)
	traffic := w.startTraffic()
	kp.stop()
	if w.dump() == before {
		w.Fatal("kube-proxy left no rules to take over")
	}
	w.waitRemoved(w.startSluice(), m)
	w.checkRestored(before)
	w.endTraffic(traffic)
}

// countQueries returns a function that counts connections to the address at which kube-proxy
// reports its mode. Sluice makes two for each search for a kube-proxy.
func (w *testEnv) countQueries() (count func() int) {
	w.Helper()
	w.lab.NodeA.Nft(`table inet queries {
	counter queries {}
	chain output { type filter hook output priority 0; ` +
		`ip daddr 127.0.0.1 tcp dport 10249 tcp flags & (syn | ack) == syn counter name queries; }
}`)
	return func() int {
		w.Helper()
		out := w.lab.NodeA.MustRun("nft", "list", "counter", "inet", "queries", "queries")
		n, err := strconv.Atoi(regexp.MustCompile(`packets (\d+)`).FindStringSubmatch(out)[1])
		w.must(err)
		return n
	}
}

// waitForMore waits until a count has grown by n.
func (w *testEnv) waitForMore(n int, count func() int) {
	w.Helper()
	want := count() + n
	w.eventually(func() error {
		if now := count(); now < want {
			return fmt.Errorf("the count is %d, want %d", now, want)
		}
		return nil
	})
}

// testStoppedLast starts Sluice while kube-proxy is running, then stops kube-proxy.
func testStoppedLast(w *testEnv, m mode) {
	w.loadForeignRules(m)
	queries := w.countQueries()
	before := w.dump()
	kp := w.kubeProxy(m)
	traffic := w.startTraffic()
	p := w.startSluice()
	w.waitForLog(p,
		fmt.Sprintf(`msg="A kube-proxy runs beside this proxy; its rules stay until it is stopped" pid=%d mode=%s`,
			kp.pid, m.mode))
	beside := w.dump()
	w.waitForMore(2, queries) // one search has ended, and the next has begun
	if diff := cmp.Diff(beside, w.dump()); diff != "" {
		w.Errorf("rules changed while both were running (-before, +after):\n%s", diff)
	}
	kp.stop()
	w.waitForLog(p, fmt.Sprintf(`msg="kube-proxy has stopped, removing its rules" pid=%d mode=%s`, kp.pid, m.mode))
	w.waitRemoved(p, m)
	w.checkRestored(before)
	w.endTraffic(traffic)
}
