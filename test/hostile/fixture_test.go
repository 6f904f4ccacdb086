//go:build linux

package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// plane is a data plane under attack.
type plane struct {
	name    string
	mode    string
	variant string        // of the iptables programs
	change  time.Duration // bound on the time until new connections follow a change, on a fast machine
}

var (
	nftables       = plane{"nftables", "nftables", "", 500 * time.Millisecond}
	iptablesNFT    = plane{"iptables-nft", "iptables", "nft", 2 * time.Second}
	iptablesLegacy = plane{"iptables-legacy", "iptables", "legacy", 2 * time.Second}
	userspace      = plane{"userspace", "userspace", "nft", 2 * time.Second}
	ebpf           = plane{"ebpf", "ebpf", "", 500 * time.Millisecond}
)

// The good Services: the backend of Service fixed never changes, the backend of Service changing alternates with each
// change.
const (
	fixedIP, changingIP = "172.30.0.80", "172.30.0.81"
	fixedNodePort       = 30080
	nodeAddr            = "192.168.0.2"
	healthAt            = nodeAddr + ":10256"
	metricsAt           = "127.0.0.1:10249"
	pace                = 50 * time.Millisecond
	podCIDRs            = "10.180.0.0/16,fd00:10:180::/48"
)

// attackTest is a node under attack: a lab, a folder of manifests and a daemon.
type attackTest struct {
	*testing.T
	plane  plane
	lab    *lab.Lab
	client *lab.Host    // a pod on node A
	pods   [2]*lab.Host // the backends, on nodes A and B
	dir    string       // the folder of manifests
	args   []string     // of the daemon
	files  uint64       // RLIMIT_NOFILE of the daemon
	tables string       // of nf_tables before the daemon

	changes int // changes so far
	daemon  *daemon
	checks  []func() // made after each change during the attack
	stops   []func() // stop the attack's processes and servers on node A

	mostFiles int // file descriptors of the daemon during the attack, if sampled

	rounds atomic.Int64   // how many times neighbours have sent all packets
	faults map[string]int // failed checks, and how often each failed
}

func newAttackTest(t *testing.T, p plane, a attack) *attackTest {
	t.Helper()
	l := lab.New(t, lab.Options{Timeout: time.Second, Cgroups: p == ebpf})
	client, pods := harness.Pods(l, 2)
	s := &attackTest{T: t, plane: p, lab: l, files: a.files, client: client, pods: [2]*lab.Host(pods)}
	s.dir = s.tempDir()
	if p.variant != "" { // the chain by which kubelet announces the variant
		s.restore("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n*nat\nCOMMIT\n*filter\nCOMMIT\n")
	}
	s.tables = l.NodeA.MustRun("nft", "list", "tables")
	s.args = append([]string{
		"--manifests=" + s.dir, "--hostname-override=node-a", "--cluster-cidr=" + podCIDRs, "--proxy-mode=" + p.mode,
	}, a.flags...)
	if p == ebpf {
		kerneltest.NeedPrograms(t)
		s.args = append(s.args, "--bpf-dir="+filepath.Join(lab.BPFFS(t), "sluice"), "--cgroup-root="+l.NodeA.Cgroup())
	}
	fixed := service("fixed", fixedIP, 0)
	fixed[0]["spec"].(object)["type"] = "NodePort"
	fixed[0]["spec"].(object)["ports"] = []object{{"port": 80, "nodePort": fixedNodePort}}
	s.write("good-fixed.json", fixed)
	s.write("good-changing.json", service("changing", changingIP, 0))
	return s
}

// restore passes rules to iptables-restore of the variant.
func (s *attackTest) restore(rules string) {
	s.Helper()
	_, err := s.lab.NodeA.Run(rules, "iptables-"+s.plane.variant+"-restore", "--noflush")
	s.must(err)
}

// tempDir creates a folder that is removed after the test. Each test process has its own /run.
func (s *attackTest) tempDir() string {
	s.Helper()
	dir, err := os.MkdirTemp("/run", "hostile-")
	s.must(err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *attackTest) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// pause waits for d, or until the context ends.
func (s *attackTest) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

type object = harness.Object

// service is a dual-stack Service on port 80 with one pod as its endpoint.
func service(name, ip string, pod int) []object {
	v4, a := netip.MustParseAddr(ip), harness.PodAddr(pod)
	return []object{
		harness.Service(name, object{
			"clusterIP": ip, "clusterIPs": []string{ip, lab.Analog(v4).String()}, "ports": []object{{"port": 80}},
		}),
		harness.EndpointSlice(name, "IPv4", []object{{"port": 80}}, a.String()),
		harness.EndpointSlice(name, "IPv6", []object{{"port": 80}}, lab.Analog(a).String()),
	}
}

// write replaces a manifest atomically.
func (s *attackTest) write(name string, objects []object) {
	s.Helper()
	s.must(s.put(name, harness.Manifest(objects)))
}

// put replaces a manifest by any text.
func (s *attackTest) put(name string, text []byte) error {
	return harness.Replace(filepath.Join(s.dir, name), text)
}

// removeHostile removes every manifest except the good ones and their temporary files: it may
// run while change replaces one.
func (s *attackTest) removeHostile() {
	s.Helper()
	entries, err := os.ReadDir(s.dir)
	s.must(err)
	for _, e := range entries {
		if !strings.HasPrefix(strings.TrimPrefix(e.Name(), "."), "good-") {
			s.must(os.RemoveAll(filepath.Join(s.dir, e.Name())))
		}
	}
}

// ways are connections from a pod and from outside, one in each family.
func (s *attackTest) ways() []lab.Way {
	return []lab.Way{
		{From: s.client, To: at(fixedIP, 80)},
		{From: s.lab.Outside, To: at("2001:db8::1", fixedNodePort)},
	}
}

func at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}

// change gives Service changing its other backend, and returns the time until new connections
// in both families reach it. It ends the test after changeTimeout.
func (s *attackTest) change() time.Duration {
	s.Helper()
	s.changes++
	began := time.Now()
	s.write("good-changing.json", service("changing", changingIP, s.changes%2))
	for _, addr := range []netip.Addr{netip.MustParseAddr(changingIP), lab.Analog(netip.MustParseAddr(changingIP))} {
		for !s.answers(s.client, netip.AddrPortFrom(addr, 80), s.pods[s.changes%2]) {
			if s.daemon != nil {
				s.daemon.checkAlive()
			}
			if time.Since(began) > changeTimeout() {
				s.Fatalf("a change of a good Service has no effect after %v; the log:\n%s", changeTimeout(), s.daemon.Log.End())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return time.Since(began)
}

// answers reports whether a pod answers a new connection.
func (s *attackTest) answers(from *lab.Host, to netip.AddrPort, pod *lab.Host) bool {
	r := from.Try(lab.Probe{Protocol: lab.TCP, To: to, Timeout: machine.Scale(200 * time.Millisecond)})
	return r.Outcome == lab.Answered && r.Backend.Addr() == pod.Addr(to.Addr())
}

// probeTimeout is the timeout of kubelet for /healthz, twice its default.
func probeTimeout() time.Duration { return machine.Scale(2 * time.Second) }

// checkHealth verifies that the health server answers 200 to kubelet, which connects from the
// node. A bad client may prevent answers to others at its own address.
func (s *attackTest) checkHealth() {
	s.Helper()
	if code, err := s.getHealth(); err != nil || code != http.StatusOK {
		s.recordFault("GET /healthz from the node", code, err)
	}
}

// recordFault records a failed check, which is reported once. Only the details of the first failure are logged.
func (s *attackTest) recordFault(check string, details ...any) {
	s.Helper()
	if s.faults == nil {
		s.faults = map[string]int{}
	}
	if s.faults[check]++; s.faults[check] == 1 {
		s.Log(append([]any{check, "failed first with:"}, details...)...)
	}
}

func (s *attackTest) getHealth() (code int, err error) {
	conn, err := dial(s.lab.NodeA, healthAt, probeTimeout())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(probeTimeout()))
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}}
	resp, err := client.Get("http://" + healthAt + "/healthz")
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func dial(from *lab.Host, address string, timeout time.Duration) (conn net.Conn, err error) {
	err = from.Do(func() error {
		conn, err = net.DialTimeout("tcp", address, timeout)
		return err
	})
	return conn, err
}

// eventually calls try until it returns no error.
func (s *attackTest) eventually(limit time.Duration, try func() error) {
	s.Helper()
	err := errors.New("not tried")
	for deadline := time.Now().Add(limit); err != nil && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		err = try()
	}
	if err != nil {
		s.Errorf("after %v: %v", limit, err)
	}
}

// others are the planes of a full run for objects, which reach every plane.
func others(own plane) []plane {
	all := []plane{nftables, iptablesNFT, iptablesLegacy, userspace}
	return slices.DeleteFunc(all, func(p plane) bool { return p == own })
}

// waitHealthy waits until the daemon is healthy and its rules are as intended.
func (s *attackTest) waitHealthy() {
	s.Helper()
	s.waitForSuccess("status", "diff")
}

// waitForSuccess runs commands of sluice until each exits with 0.
func (s *attackTest) waitForSuccess(commands ...string) {
	s.Helper()
	s.eventually(changeTimeout(), func() error {
		s.daemon.checkAlive()
		for _, command := range commands {
			if out, code := s.runSluice(command); code != 0 {
				return fmt.Errorf("sluice %s exits with %d: %s", command, code, abridged(out))
			}
		}
		return nil
	})
}

// abridged returns the beginning of a long text.
func abridged(text string) string {
	if len(text) > 600 {
		return text[:600] + "..."
	}
	return text
}
