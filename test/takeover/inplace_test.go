//go:build linux

package takeover

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/harness"
)

// testInPlace verifies that in mode iptables Sluice continues to use kube-proxy's chains, and kube-proxy Sluice's.
func testInPlace(t *testing.T, c *apiserver.Cluster, m mode) {
	t.Run("there and back", func(t *testing.T) { testThereAndBack(newTestEnv(t, c), m) })
	t.Run("side by side", func(t *testing.T) { testSideBySide(newTestEnv(t, c), m) })
}

// startIptables starts Sluice in mode iptables, and returns it with its first write.
func (w *testEnv) startIptables(m mode, more ...string) (*apiserver.Proxy, proxy.Sync) {
	w.Helper()
	p := w.startSluice(append(more, "--proxy-mode=iptables")...)
	first, err := p.First(w.Context())
	w.must(err)
	w.must(first.Err)
	if want := fmt.Sprintf("Rules are written by %s", m.name); !strings.Contains(p.Log(), want) {
		w.Errorf("the log lacks %q:\n%s", want, p.Log())
	}
	return p, first
}

// maxLines bounds the lines of Sluice's first write over kube-proxy's chains for the same
// Services. None of them is in a chain of a single Service.
const maxLines = 40

// minAdopted is the minimal number of chains, and single rules of shared chains, that Sluice adopts there.
const minAdopted = 60

// checkAdopted verifies that most of kube-proxy's chains stayed unchanged.
func (w *testEnv) checkAdopted(first proxy.Sync) {
	w.Helper()
	w.Logf("the first write: %d lines, %d chains and single rules adopted", first.Steps, first.Adopted)
	if first.Steps > maxLines || first.Adopted < minAdopted {
		w.Errorf("the first write has %d lines and adopts %d chains and single rules", first.Steps, first.Adopted)
	}
}

// extraChain is a chain of Sluice that kube-proxy never has.
const extraChain = "KUBE-MARK-MASQ-NOT-POD"

// testThereAndBack stops kube-proxy and starts Sluice, then stops Sluice and starts kube-proxy. Each continues with the
// chains of the other, and the cleanup removes only those that kube-proxy does not use.
func testThereAndBack(w *testEnv, m mode) {
	w.loadForeignRules(m)
	kp := w.kubeProxy(m)
	traffic := w.startTraffic()
	kp.waitSynced(m)
	chains := w.chains(m.name)
	kp.stop()
	counters := w.counters(m.name)

	p, first := w.startIptables(m)
	w.checkAdopted(first)
	w.waitExact(m.name)
	w.checkCounters(m.name, counters)
	if strings.Contains(p.Log(), "Removed ") {
		w.Errorf("shared chains were removed:\n%s", p.Log())
	}
	p.Stop()

	p, _ = w.startIptables(m, "--cluster-cidr=10.99.0.0/16,"+clusterCIDRs) // which needs extraChain
	w.waitExact(m.name)
	if !strings.Contains(strings.Join(w.chains(m.name), "\n"), ":"+extraChain) {
		w.Errorf("there is no chain %s", extraChain)
	}
	p.Stop()

	kp = w.kubeProxy(m)
	kp.waitSynced(m)
	report := w.cleanup()
	for _, want := range []string{
		fmt.Sprintf("kube-proxy (pid %d, ", kp.pid), ") in mode iptables runs (it listens on port ",
	} {
		if !strings.Contains(report, want) {
			w.Errorf("the report of the cleanup lacks %q:\n%s", want, report)
		}
	}
	w.checkChains(m.name, chains)
	w.endTraffic(traffic)
}

// repairs counts the writes by which Sluice restored rules.
func repairs(p *apiserver.Proxy) int {
	n := 0
	for _, s := range p.Syncs() {
		if s.Repair() {
			n++
		}
	}
	return n
}

// testSideBySide runs kube-proxy and Sluice at the same time, each overwriting the other, until
// kube-proxy is stopped. No connection breaks.
func testSideBySide(w *testEnv, m mode) {
	w.loadForeignRules(m)
	kp := w.kubeProxy(m, "--iptables-sync-period=1s")
	traffic := w.startTraffic()
	kp.waitSynced(m)
	p, first := w.startIptables(m)
	w.checkAdopted(first)
	w.waitForLog(p,
		fmt.Sprintf(`msg="A kube-proxy runs beside this proxy and each overwrites the chains of the other: `+
			`stop it" pid=%d mode=iptables`, kp.pid))
	w.setEndpoints("empty") // causes a write by both
	w.waitForMore(2, func() int { return repairs(p) })
	kp.stop()
	w.waitForLog(p,
		fmt.Sprintf(`msg="kube-proxy has stopped, this proxy alone writes the chains that both wrote" pid=%d mode=iptables`,
			kp.pid))
	w.waitExact(m.name)
	w.endTraffic(traffic)
}

// waitSynced waits until kube-proxy has written all queued changes, and the canary chain by
// which it detects that its rules were flushed, which mode ipvs lacks.
func (k *kubeProxy) waitSynced(m mode) {
	k.Helper()
	k.eventually(func() error {
		if m.mode != "ipvs" && !slices.ContainsFunc(k.chains(m.name), func(line string) bool {
			return strings.Contains(line, "KUBE-PROXY-CANARY")
		}) {
			return errors.New("kube-proxy has not created its canary chain yet")
		}
		_, page, err := harness.Get(k.lab.NodeA, 10*time.Second, "http://127.0.0.1:10249/metrics")
		if err != nil {
			return err
		}
		queued, wrote := metricValues(page, "last_queued_timestamp_seconds"), metricValues(page, "last_timestamp_seconds")
		if len(wrote) == 0 {
			return errors.New("kube-proxy has not written yet")
		}
		for family, at := range queued {
			if wrote[family] < at {
				return fmt.Errorf("kube-proxy has not written the changes queued at %v yet, its last write was at %v",
					at, wrote[family])
			}
		}
		return nil
	})
}

// metricValues returns the values of a metric of kube-proxy's writes, by labels.
func metricValues(page []byte, metric string) map[string]float64 {
	values := map[string]float64{}
	for line := range strings.Lines(string(page)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		labels, found := strings.CutPrefix(series, "kubeproxy_sync_proxy_rules_"+metric)
		if at, err := strconv.ParseFloat(value, 64); found && err == nil {
			values[labels] = at
		}
	}
	return values
}
