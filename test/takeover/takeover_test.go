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
			t.Run("recorded", func(t *testing.T) { testRecorded(newWorld(t, c), m) })
			if program() == "" {
				t.Log("there is no real kube-proxy (KUBE_PROXY): only what it leaves was tested")
				return
			}
			t.Run("kube-proxy first stopped", func(t *testing.T) { testAfter(newWorld(t, c), m) })
			t.Run("kube-proxy stopped last", func(t *testing.T) { testBeside(newWorld(t, c), m) })
		})
		if m.iptables != "" {
			t.Run(m.name+" in place", func(t *testing.T) { testInPlace(t, c, m) })
			t.Run(m.name+" and nftables", func(t *testing.T) { testModes(newWorld(t, c), m) })
		}
	}
	t.Run("elsewhere", func(t *testing.T) { testOthers(t, c) })
}

// foreign are rules of others, in all variants: a CNI plugin's, a person's, and
// kubelet's, which are called as kube-proxy's are.
const foreign = `
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

// localnet is a rule of kubelet's, in IPv4 alone, that kube-proxy wants as well.
const localnet = `-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" ` +
	"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\nCOMMIT\n"

// others loads the rules of others.
func (w *world) others(m mode) {
	w.Helper()
	if m.iptables == "" {
		w.lab.NodeA.Nft("table inet others { chain input { type filter hook input priority 0; tcp dport 9995 drop; }; }")
		return
	}
	folder := programs(w.T, m.iptables)
	for restore, rules := range map[string]string{
		"iptables-restore":  strings.TrimSuffix(foreign, "COMMIT\n") + localnet,
		"ip6tables-restore": foreign,
	} {
		_, err := w.lab.NodeA.Run(rules, folder+"/"+restore)
		w.must(err)
	}
}

// takeOver starts Sluice.
func (w *world) takeOver(more ...string) *apiserver.Proxy {
	w.Helper()
	return w.Cluster.Run(w, w.lab.NodeA, append([]string{"--cluster-cidr=" + clusterCIDRs}, more...)...)
}

// taken waits until Sluice logs that it has removed all rules of a mechanism, and
// verifies that it did so in one step.
func (w *world) taken(p *apiserver.Proxy, m mode) {
	w.Helper()
	w.says(p, `msg="Removed what kube-proxy left" mechanism=`+m.name)
	if n := strings.Count(p.Log(), "Removed what kube-proxy left"); n != 1 {
		w.Errorf("it was removed in %d steps:\n%s", n, p.Log())
	}
}

// says waits until Sluice logs a text.
func (w *world) says(p *apiserver.Proxy, text string) {
	w.Helper()
	w.eventually(func() error {
		if !strings.Contains(p.Log(), text) {
			return fmt.Errorf("the log lacks %q:\n%s", text, p.Log())
		}
		return nil
	})
}

// same verifies that the rules are as they were before there was a kube-proxy.
func (w *world) same(before string) {
	w.Helper()
	if diff := cmp.Diff(before, w.dump()); diff != "" {
		w.Errorf("not as without kube-proxy (-before, +now):\n%s", diff)
	}
}

// settled waits for some more traffic, and ends it.
func (w *world) settled(t *lab.Steady) {
	w.Helper()
	t.Await(100)
	if err := t.End(); err != nil {
		w.Error(err)
	}
	w.Log(t)
	w.must(w.reachable(patience))
}

// testAfter: kube-proxy is stopped, then Sluice started.
func testAfter(w *world, m mode) {
	w.others(m)
	before := w.dump()
	kp := w.kubeProxy(m)
	traffic := w.start()
	kp.end()
	if w.dump() == before {
		w.Fatal("kube-proxy left nothing, so there is nothing to take over")
	}
	w.taken(w.takeOver(), m)
	w.same(before)
	w.settled(traffic)
}

// countQuestions returns a function that counts the connections to the address at
// which kube-proxy answers which mode it is in. Sluice makes two for each search for
// a kube-proxy.
func (w *world) countQuestions() (count func() int) {
	w.Helper()
	w.lab.NodeA.Nft(`table inet questions {
	counter asked {}
	chain output { type filter hook output priority 0; ip daddr 127.0.0.1 tcp dport 10249 tcp flags & (syn | ack) == syn counter name asked; }
}`)
	return func() int {
		w.Helper()
		out := w.lab.NodeA.MustRun("nft", "list", "counter", "inet", "questions", "asked")
		n, err := strconv.Atoi(regexp.MustCompile(`packets (\d+)`).FindStringSubmatch(out)[1])
		w.must(err)
		return n
	}
}

// more waits until a count is n larger than now.
func (w *world) more(n int, count func() int) {
	w.Helper()
	want := count() + n
	w.eventually(func() error {
		if now := count(); now < want {
			return fmt.Errorf("the count is %d, want %d", now, want)
		}
		return nil
	})
}

// testBeside: Sluice is started while kube-proxy runs, which is then stopped.
func testBeside(w *world, m mode) {
	w.others(m)
	questions := w.countQuestions()
	before := w.dump()
	kp := w.kubeProxy(m)
	traffic := w.start()
	p := w.takeOver()
	w.says(p, fmt.Sprintf(`msg="A kube-proxy runs beside this proxy; its rules stay until it is stopped" pid=%d mode=%s`, kp.pid, m.mode))
	beside := w.dump()
	w.more(3, questions) // two for each search: one search is over, and the next has begun
	if diff := cmp.Diff(beside, w.dump()); diff != "" {
		w.Errorf("rules changed while both run (-before, +now):\n%s", diff)
	}
	kp.end()
	w.says(p, fmt.Sprintf(`msg="kube-proxy has stopped, removing its rules" pid=%d mode=%s`, kp.pid, m.mode))
	w.taken(p, m)
	w.same(before)
	w.settled(traffic)
}
