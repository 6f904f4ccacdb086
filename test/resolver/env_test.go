//go:build linux

package resolver

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// timeout bounds the wait for an expected event.
const timeout = time.Minute

// Addresses of Service dns.
const dnsIP4, dnsIP6 = "172.30.0.10", "fd00:172:30::10"

// env is a lab with CoreDNS in pods behind a Service, and Sluice in mode ebpf.
type env struct {
	*testing.T
	lab     *lab.Lab
	pod     *lab.Host           // a client on node A
	backend [2]*lab.Host        // on node A and B
	server  [2]*harness.Process // CoreDNS there
	dir     string              // the folder of manifests
	bpf     string              // the folder of the programs
	flags   []string            // of Sluice
	daemon  *harness.Process
}

func newEnv(t *testing.T) *env {
	t.Helper()
	kerneltest.NeedPrograms(t)
	l := lab.New(t, lab.Options{Cgroups: true})
	e := &env{T: t, lab: l, dir: t.TempDir(), bpf: filepath.Join(lab.BPFFS(t), "sluice")}
	e.flags = []string{"--bpf-dir=" + e.bpf, "--cgroup-root=" + l.NodeA.Cgroup()}
	e.pod = l.Pod(l.NodeA, "10.180.0.9", "fd00:10:180::9")
	for i, node := range []*lab.Host{l.NodeA, l.NodeB} {
		a := harness.PodAddr(i)
		e.backend[i] = l.Pod(node, a.String(), lab.Analog(a).String())
		e.serve(i)
	}
	e.endpoints(0, 1)
	e.start(2)
	return e
}

// The number of addresses of many.test. They do not fit into a datagram, not even one of 1,232 bytes, which Go accepts.
const many4, many6 = 100, 60

func manyAddrs() (addrs []netip.Addr) {
	for i := range many4 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}))
	}
	for i := range many6 {
		addrs = append(addrs, netip.MustParseAddr(fmt.Sprintf("2001:db8:51::%x", i+1)))
	}
	return addrs
}

// zone returns the zone file of test for CoreDNS in a pod.
func (e *env) zone(i int) string {
	var b strings.Builder
	fmt.Fprintln(&b, "$TTL 60\n@ SOA ns.test. host.test. 1 3600 600 86400 60\n@ NS ns.test.")
	for name, addrs := range map[string][]netip.Addr{
		"ns":      e.backend[i].Addrs(),
		"backend": e.backend[i].Addrs(),
		"web":     {web4(), web6()},
		"four":    {four()},
		"many":    manyAddrs(),
	} {
		for _, a := range addrs {
			kind := "A"
			if a.Is6() {
				kind = "AAAA"
			}
			fmt.Fprintln(&b, name, kind, a)
		}
	}
	return b.String()
}

// web.test has the addresses web4 and web6, four.test has only four.
func web4() netip.Addr { return netip.MustParseAddr("192.0.2.1") }
func web6() netip.Addr { return netip.MustParseAddr("2001:db8:2::1") }
func four() netip.Addr { return netip.MustParseAddr("192.0.2.4") }

// serve starts CoreDNS in a pod, and waits until it answers.
func (e *env) serve(i int) {
	e.Helper()
	dir := e.TempDir()
	zone := filepath.Join(dir, "zone")
	for name, text := range map[string]string{
		"zone":     e.zone(i),
		"Corefile": fmt.Sprintf("test:53 {\nerrors\nlog\nfile %s\n}\n", zone),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			e.Fatal(err)
		}
	}
	p, err := harness.Start(e.backend[i], exec.Command(coreDNS(), "-conf", filepath.Join(dir, "Corefile")))
	if err != nil {
		e.Fatal(err)
	}
	e.server[i] = p
	self := []string{e.backend[i].Addr4().String()}
	list, err := resolvers()
	if err != nil {
		e.Fatal(err)
	}
	harness.Eventually(e, timeout, func() error {
		if err := p.Alive(); err != nil {
			e.Fatal(err)
		}
		l := e.resolve(list[0], e.backend[i], question{servers: self, rounds: 1, names: []string{"four.test"}})[0]
		if l.err != "" {
			return fmt.Errorf("%s; its log: %s", l, p.Log)
		}
		return nil
	})
}

// signal sends a signal to CoreDNS in a pod.
func (e *env) signal(i int, s syscall.Signal) {
	e.Helper()
	if err := e.server[i].Signal(s); err != nil {
		e.Fatal(err)
	}
}

// queries counts the queries for a name by a protocol, "udp" or "tcp", that CoreDNS has answered.
func (e *env) queries(name, protocol string) (n int) {
	for _, p := range e.server {
		n += len(p.Log.Lines("[INFO]", " IN "+name+". "+protocol+" "))
	}
	return n
}

// endpoints makes these pods the endpoints of the Service.
func (e *env) endpoints(pods ...int) {
	e.Helper()
	ports := []harness.Object{
		{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
	}
	objects := []harness.Object{harness.Service("dns", harness.Object{
		"clusterIP": dnsIP4, "clusterIPs": []string{dnsIP4, dnsIP6}, "ports": ports,
	})}
	for _, family := range []string{"IPv4", "IPv6"} {
		var addrs []string
		for _, i := range pods {
			a := e.backend[i].Addr4()
			if family == "IPv6" {
				a = e.backend[i].Addr6()
			}
			addrs = append(addrs, a.String())
		}
		objects = append(objects, harness.EndpointSlice("dns", family, ports, addrs...))
	}
	if err := harness.Replace(filepath.Join(e.dir, "dns.json"), harness.Manifest(objects)); err != nil {
		e.Fatal(err)
	}
}

// start starts Sluice, and waits until it serves with so many backends of each port.
func (e *env) start(backends int) {
	e.Helper()
	path, err := harness.Program()
	if err != nil {
		e.Fatal(err)
	}
	args := append([]string{
		"--manifests=" + e.dir, "--hostname-override=node-a",
		"--cluster-cidr=10.180.0.0/16,fd00:10:180::/48", "--proxy-mode=ebpf",
	}, e.flags...)
	if e.daemon, err = harness.Start(e.lab.NodeA, exec.Command(path, args...)); err != nil {
		e.Fatal(err)
	}
	e.waitBackends(backends)
	for _, problem := range []string{"Sockets are not balanced", "have no effect"} {
		if n := e.daemon.Log.Count(problem); n > 0 {
			e.Fatalf("programs do not work:\n%s", e.daemon.Log)
		}
	}
}

func (e *env) kill() {
	e.Helper()
	if _, err := e.daemon.Stop(syscall.SIGKILL, timeout); err != nil {
		e.Fatal(err)
	}
}

// waitBackends waits until the kernel has the Service with so many backends of each port.
func (e *env) waitBackends(n int) {
	e.Helper()
	harness.Eventually(e, timeout, func() error {
		if err := e.daemon.Alive(); err != nil {
			return err
		}
		var s inspect.Status
		if err := admin.Dial(admin.Options{NetNS: e.lab.NodeA.NetNSFD()}).Get(e.Context(), "/status", nil, &s); err != nil {
			return err
		}
		if s.PID != e.daemon.PID || s.Health.State == health.Starting || s.Pending > 0 || !s.Lag.Since.IsZero() ||
			s.Busy != "" || s.Counts.Backends != 4*n {
			return fmt.Errorf("process %d: %s, %d pending, %d backends, want process %d, %d",
				s.PID, s.Health.State, s.Pending, s.Counts.Backends, e.daemon.PID, 4*n)
		}
		return nil
	})
}

// awaitPod waits until the programs decide for the sockets of a pod.
func (e *env) awaitPod(pod *lab.Host) {
	e.Helper()
	harness.Eventually(e, timeout, func() error { return harness.Known(e.bpf, pod) })
}

// atSockets returns how many connections and UDP flows to a port of the Service were decided at sockets.
func (e *env) atSockets(port string) (sum int) {
	e.Helper()
	page, err := e.daemon.Get("http://127.0.0.1:10249/metrics")
	if err != nil {
		e.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(series, "sluice_ebpf_connections_total{") || !strings.Contains(series, `port="`+port+`"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			e.Fatalf("read metrics: %v", err)
		}
		sum += int(n)
	}
	return sum
}
