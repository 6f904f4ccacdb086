//go:build linux

package takeover

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

// ipvsMode is kube-proxy's mode ipvs, with iptables-legacy for the rules beside it.
func ipvsMode() mode { return mode{"iptables-legacy", "ipvs", "xtables-legacy-multi"} }

// TestIPVS takes over from the real kube-proxy in mode ipvs to each mode of Sluice. test/uml runs
// it on a kernel that has IPVS.
func TestIPVS(t *testing.T) {
	kerneltest.NeedIPVS(t)
	c := apiserver.Start(t)
	t.Run("to nftables, kube-proxy stopped last", func(t *testing.T) { testIPVSToNftables(newTestEnv(t, c)) })
	t.Run("to iptables", func(t *testing.T) { testIPVSToIptables(newTestEnv(t, c)) })
	t.Run("to ipvs and back", func(t *testing.T) { testIPVSThereAndBack(newTestEnv(t, c)) })
	t.Run("cleanup", func(t *testing.T) { testCleanupOfIPVS(newTestEnv(t, c)) })
}

// ipvsKubeProxy starts a real kube-proxy in mode ipvs. IPVS forgets ended connections after two
// seconds, so that tests need not wait two minutes for it.
func (w *testEnv) ipvsKubeProxy(more ...string) *kubeProxy {
	w.Helper()
	args := append([]string{"--ipvs-tcpfin-timeout=2s"}, more...)
	const gate = "KubeProxyIPVS" // from v1.37 on the mode needs it; before, it is unknown
	if help, _ := exec.Command(program(), "--help").Output(); strings.Contains(string(help), gate) {
		args = append(args, "--feature-gates="+gate+"=true")
	}
	return w.kubeProxy(ipvsMode(), args...)
}

// foreignServer is a virtual server that no Service has.
func foreignServer() ipvs.Server {
	return ipvs.Server{Addr: netip.MustParseAddr("192.168.0.2"), Protocol: unix.IPPROTO_TCP, Port: 81}
}

// addForeignServer adds a virtual server of another program. kube-proxy would remove it, so that
// it must have been stopped.
func (w *testEnv) addForeignServer() {
	w.Helper()
	w.must(w.table().Apply(w.Context(), []ipvs.Command{
		{Op: ipvs.Set, Server: foreignServer(), Settings: ipvs.Settings{Scheduler: "rr"}},
	}))
}

// deleteForeignServer deletes the virtual server of another program, which must exist.
func (w *testEnv) deleteForeignServer() {
	w.Helper()
	servers, err := w.table().Servers(w.Context())
	w.must(err)
	if !slices.Contains(servers, foreignServer()) {
		w.Errorf("the virtual server of another program is gone: %v", servers)
	}
	w.must(w.table().Delete(w.Context(), foreignServer()))
}

func (w *testEnv) table() *ipvs.Table { return ipvs.New(w.lab.NodeA.NetNSFD()) }

// testIPVSToNftables starts Sluice beside kube-proxy, which it stops last. Open connections continue through IPVS,
// and everything that they need stays as long as they do. Services keep the scheduler of the configuration.
func testIPVSToNftables(w *testEnv) {
	const scheduler = "--ipvs-scheduler=sh"
	w.loadForeignRules(ipvsMode())
	before := w.dump() + w.ipvsState()
	kp := w.ipvsKubeProxy(scheduler)
	w.waitReachable()
	w.checkOneBackend()
	traffic := w.startTraffic()
	p := w.startSluice("--proxy-mode=nftables", scheduler)
	w.waitForLog(p, "have the scheduler of the configuration\" scheduler=sh chooses=maglev")
	w.waitForLog(p,
		fmt.Sprintf(`msg="A kube-proxy runs beside this proxy; its rules stay until it is stopped" pid=%d mode=ipvs`, kp.pid))
	kp.stop()
	w.addForeignServer()
	w.checkIPVSLeftToConnections(p, traffic)
	w.checkOneBackend()
	w.checkIPVSRemoved(p, before)
}

// checkOneBackend verifies that a client gets the same backend each time.
func (w *testEnv) checkOneBackend() {
	w.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(clusterIP4), 80)
	first := w.client.Dial(lab.TCP, to)
	for range 20 {
		if r := w.client.Dial(lab.TCP, to); r.Outcome != lab.Answered || r.Backend != first.Backend {
			w.Errorf("%s after %s, want the same backend", r, first)
		}
	}
}

// testIPVSToIptables stops kube-proxy, then starts Sluice in mode iptables, which writes some of the same chains.
func testIPVSToIptables(w *testEnv) {
	w.loadForeignRules(ipvsMode())
	before := w.ipvsState()
	kp := w.ipvsKubeProxy()
	traffic := w.startTraffic()
	kp.stop()
	w.addForeignServer()
	p, _ := w.startIptables(ipvsMode())
	w.checkIPVSLeftToConnections(p, traffic)
	w.rarely(func() error { return w.checkIPVSState(before) })
	w.waitExact(ipvsMode().name)
	w.deleteForeignServer()
	w.must(w.checkReachable(timeout))
}

// testIPVSThereAndBack takes over in mode ipvs, which continues with the objects of kube-proxy, and has kube-proxy
// take it back.
func testIPVSThereAndBack(w *testEnv) {
	w.loadForeignRules(ipvsMode())
	kp := w.ipvsKubeProxy()
	traffic := w.startTraffic()
	kp.stop()
	w.addForeignServer()
	theirs := w.ipvsState()
	p := w.startSluice("--proxy-mode=ipvs")
	first, err := p.First(w.Context())
	w.must(err)
	w.must(first.Err)
	w.Logf("the first write: %d steps, %d entries adopted", first.Steps, first.Adopted)
	if diff := cmp.Diff(theirs, withoutOwnSets(w.ipvsState())); diff != "" {
		w.Errorf("virtual servers, ipsets or addresses differ from kube-proxy's (-kube-proxy, +Sluice):\n%s", diff)
	}
	traffic.Await(100)
	p.Stop()
	w.deleteForeignServer()
	w.ipvsKubeProxy().waitSynced(ipvsMode())
	w.endTraffic(traffic)
}

// testCleanupOfIPVS verifies that the cleanup removes the state of kube-proxy, and keeps foreign virtual servers.
func testCleanupOfIPVS(w *testEnv) {
	w.loadForeignRules(ipvsMode())
	before := w.dump() + w.ipvsState()
	w.ipvsKubeProxy().stop()
	w.addForeignServer()

	report := w.cleanUpKubeProxy()
	w.Log(report)
	w.deleteForeignServer()
	if diff := cmp.Diff(before, w.dump()+w.ipvsState()); diff != "" {
		w.Errorf("state differs from that before kube-proxy (-before, +after):\n%s", diff)
	}
	for _, want := range []string{
		"removed ipvs: ", "removed iptables-legacy: ",
		"left 1 virtual server not known as kube-proxy's",
	} {
		if !strings.Contains(report, want) {
			w.Errorf("the report lacks %q", want)
		}
	}
	if again := w.cleanUpKubeProxy(); strings.Contains(again, "removed ") || strings.Contains(again, "left ") {
		w.Errorf("a second cleanup reports:\n%s", again)
	}
}

// rarely calls try every few seconds until it returns no error. Sluice looks less and less often for the removal of
// objects that open connections needed, and each try runs programs.
func (w *testEnv) rarely(try func() error) {
	w.Helper()
	err := try()
	for deadline := time.Now().Add(3 * time.Minute); err != nil && time.Now().Before(deadline); err = try() {
		time.Sleep(10 * time.Second)
	}
	w.must(err)
}

// checkIPVSLeftToConnections verifies that Sluice leaves everything that open connections need, and ends the traffic.
func (w *testEnv) checkIPVSLeftToConnections(p *apiserver.Proxy, traffic *lab.Steady) {
	w.Helper()
	w.waitForLog(p, "as long as connections go through")
	traffic.Await(100)
	w.must(traffic.End())
	w.Log(traffic)
}

// checkIPVSRemoved waits until Sluice has removed everything of kube-proxy except the foreign virtual server.
func (w *testEnv) checkIPVSRemoved(p *apiserver.Proxy, before string) {
	w.Helper()
	w.rarely(func() error {
		if now := w.withoutForeignServer(w.dump() + w.ipvsState()); now != before {
			return fmt.Errorf("state differs from that before kube-proxy (-before, +now):\n%s\nthe log:\n%s",
				cmp.Diff(before, now), p.Log())
		}
		return nil
	})
	w.deleteForeignServer()
	w.must(w.checkReachable(timeout))
}

// checkIPVSState returns an error if there are more virtual servers, ipsets and addresses than
// before, and the foreign virtual server.
func (w *testEnv) checkIPVSState(before string) error {
	if diff := cmp.Diff(before, w.withoutForeignServer(w.ipvsState())); diff != "" {
		return fmt.Errorf("IPVS differs from that before kube-proxy (-before, +now):\n%s", diff)
	}
	return nil
}

// withoutOwnSets returns a state without the ipsets that only Sluice has.
func withoutOwnSets(state string) string {
	return regexp.MustCompile(`(?m)^KUBE-(6-)?SLUICE-.*\n`).ReplaceAllString(state, "")
}

func (w *testEnv) withoutForeignServer(state string) string {
	return strings.Replace(state, foreignServer().String()+" rr\n", "", 1)
}

// cleanUpKubeProxy removes only the state of kube-proxy.
func (w *testEnv) cleanUpKubeProxy() string {
	w.Helper()
	account, err := takeover.Cleanup(w.Context(), takeover.Options{NetNS: w.lab.NodeA.NetNSFD()})
	w.must(err)
	return strings.Join(account.Lines(), "\n")
}

// ipvsState lists virtual servers with their destinations, ipsets, and the addresses of kube-proxy's interface.
func (w *testEnv) ipvsState() string {
	w.Helper()
	var lines []string
	listed, err := w.table().List(w.Context())
	w.must(err)
	for _, l := range listed {
		lists, err := w.table().Destinations(w.Context(), l.Server)
		w.must(err)
		line := fmt.Sprint(l.Server, " ", l.Scheduler)
		slices.SortFunc(lists[0], func(a, b ipvs.Destination) int { return a.At.Compare(b.At) })
		for _, d := range lists[0] {
			line += fmt.Sprint(" ", d.At, "=", d.Weight)
		}
		lines = append(lines, line+"\n")
	}
	slices.Sort(lines)
	addrs := strings.Split(w.lab.NodeA.MustRun("sh", "-c",
		"ip -o addr show kube-ipvs0 2>/dev/null | awk '{print $4}' || true"), "\n")
	sets := strings.Split(w.lab.NodeA.MustRun("ipset", "list", "-n"), "\n")
	slices.Sort(addrs)
	slices.Sort(sets)
	return "== ipvs\n" + strings.Join(lines, "") + "== addresses\n" + strings.Join(addrs, "\n") + "\n== sets\n" +
		strings.Join(sets, "\n") + "\n"
}
