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

// testInPlace: in mode iptables Sluice goes on with kube-proxy's chains, and
// kube-proxy with Sluice's.
func testInPlace(t *testing.T, c *apiserver.Cluster, m mode) {
	t.Run("recorded", func(t *testing.T) { testInPlaceRecorded(newWorldIn(t, c, recordedIn), m) })
	if program() == "" {
		t.Log("there is no real kube-proxy (KUBE_PROXY): only what it leaves was tested")
		return
	}
	t.Run("there and back", func(t *testing.T) { testThereAndBack(newWorld(t, c), m) })
	t.Run("side by side", func(t *testing.T) { testSameChains(newWorld(t, c), m) })
}

// testInPlaceRecorded: kube-proxy is gone for long.
func testInPlaceRecorded(w *world, m mode) {
	w.others(m)
	w.leave(m)
	traffic := w.start()
	counters := w.counters(m.name)
	_, first := w.inPlace(m)
	w.adopted(first)
	w.exact(m.name)
	w.untouched(m.name, counters)
	w.settled(traffic)
}

// inPlace starts Sluice in mode iptables, and returns it with its first write.
func (w *world) inPlace(m mode, more ...string) (*apiserver.Proxy, proxy.Sync) {
	w.Helper()
	p := w.takeOver(append(more, "--proxy-mode=iptables")...)
	first, err := p.First(w.Context())
	w.must(err)
	w.must(first.Err)
	if want := fmt.Sprintf("Rules are written by %s", m.name); !strings.Contains(p.Log(), want) {
		w.Errorf("the log lacks %q:\n%s", want, p.Log())
	}
	return p, first
}

// few bounds the lines that Sluice writes where kube-proxy, with the same Services,
// wrote last. None of them is in a chain of a single Service. More than half are
// rules that count by nfacct, which the recorded rules lack.
const few = 40

// most bounds from below the chains, and single rules of shared chains, that Sluice
// adopts there. With all their rules they are several times as many.
const most = 60

// adopted makes sure that what was there stayed.
func (w *world) adopted(first proxy.Sync) {
	w.Helper()
	w.Logf("the first write: %d lines, %d chains and single rules stay as they are", first.Steps, first.Adopted)
	if first.Steps > few || first.Adopted < most {
		w.Errorf("the first write has %d lines, and leaves %d chains and single rules as they are", first.Steps, first.Adopted)
	}
}

// outside is a chain that kube-proxy never has.
const outside = "KUBE-MARK-MASQ-NOT-POD"

// testThereAndBack: kube-proxy is stopped, then Sluice started; Sluice is
// stopped, then kube-proxy started. Each goes on with what the other left, and
// the cleanup takes away what is Sluice's alone.
func testThereAndBack(w *world, m mode) {
	w.others(m)
	kp := w.kubeProxy(m)
	traffic := w.start()
	kp.wrote(m)
	chains := w.chains(m.name)
	kp.end()
	counters := w.counters(m.name)

	p, first := w.inPlace(m)
	w.adopted(first)
	w.exact(m.name)
	w.untouched(m.name, counters)
	if strings.Contains(p.Log(), "Removed ") {
		w.Errorf("chains that both use were removed:\n%s", p.Log())
	}
	p.Stop()

	p, _ = w.inPlace(m, "--cluster-cidr=10.99.0.0/16,"+clusterCIDRs) // which takes a chain more
	w.exact(m.name)
	if !strings.Contains(strings.Join(w.chains(m.name), "\n"), ":"+outside) {
		w.Errorf("there is no chain %s", outside)
	}
	p.Stop()

	kp = w.kubeProxy(m)
	kp.wrote(m)
	said := w.cleanup()
	for _, want := range []string{fmt.Sprintf("kube-proxy (pid %d, ", kp.pid), ") in mode iptables runs and uses them (it listens on port "} {
		if !strings.Contains(said, want) {
			w.Errorf("the cleanup does not say %q:\n%s", want, said)
		}
	}
	w.equal(m.name, chains)
	w.settled(traffic)
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

// testSameChains: kube-proxy runs on beside Sluice, and undoes its work, until it
// is stopped. No connection breaks.
func testSameChains(w *world, m mode) {
	w.others(m)
	kp := w.kubeProxy(m, "--iptables-sync-period=1s")
	traffic := w.start()
	kp.wrote(m)
	p, first := w.inPlace(m)
	w.adopted(first)
	w.says(p, fmt.Sprintf(`msg="A kube-proxy runs beside this proxy and writes the same chains, each against the other: stop it" pid=%d mode=iptables`, kp.pid))
	w.back("empty") // both write that
	w.more(2, func() int { return repairs(p) })
	kp.end()
	w.says(p, fmt.Sprintf(`msg="kube-proxy has stopped, this proxy alone writes the chains that both wrote" pid=%d mode=iptables`, kp.pid))
	w.exact(m.name)
	w.settled(traffic)
}

// wrote waits until kube-proxy has written all that it was asked to, with the chain by
// which it detects that its rules were flushed.
func (k *kubeProxy) wrote(m mode) {
	k.Helper()
	k.eventually(func() error {
		if !slices.ContainsFunc(k.chains(m.name), func(line string) bool { return strings.Contains(line, "KUBE-PROXY-CANARY") }) {
			return errors.New("kube-proxy has not made its canary chain yet")
		}
		_, page, err := harness.Get(k.lab.NodeA, time.Second, "http://127.0.0.1:10249/metrics")
		if err != nil {
			return err
		}
		asked, wrote := latest(page, "last_queued_timestamp_seconds"), latest(page, "last_timestamp_seconds")
		if len(wrote) == 0 {
			return errors.New("kube-proxy has not written yet")
		}
		for family, at := range asked {
			if wrote[family] < at {
				return fmt.Errorf("kube-proxy has not written what changed at %v yet, last it wrote at %v", at, wrote[family])
			}
		}
		return nil
	})
}

// latest returns the values of a metric of kube-proxy's writes, by labels.
func latest(page []byte, metric string) map[string]float64 {
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
