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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// plane is a data plane under attack.
type plane struct {
	name    string
	mode    string
	variant string        // of the iptables programs
	change  time.Duration // bound on the time from a change to packets that follow it
}

var (
	nftables       = plane{"nftables", "nftables", "", 500 * time.Millisecond}
	iptablesNFT    = plane{"iptables-nft", "iptables", "nft", 2 * time.Second}
	iptablesLegacy = plane{"iptables-legacy", "iptables", "legacy", 2 * time.Second}
	mainPlanes     = []plane{nftables, iptablesNFT}
)

// The good Services: stays has the same backend all along, turns another one
// with each change.
const (
	staysIP, turnsIP = "172.30.0.80", "172.30.0.81"
	staysNodePort    = 30080
	nodeAddr         = "192.168.0.2"
	healthAt         = nodeAddr + ":10256"
	metricsAt        = "127.0.0.1:10249"
	pace             = 50 * time.Millisecond
	podCIDRs         = "10.180.0.0/16,fd00:10:180::/48"
)

// siege is a node under attack: a lab, a folder of manifests and a daemon.
type siege struct {
	*testing.T
	plane  plane
	lab    *lab.Lab
	client *lab.Host    // a pod on node A
	pods   [2]*lab.Host // the backends, on nodes A and B
	dir    string       // of manifests
	args   []string     // of the daemon
	files  uint64       // RLIMIT_NOFILE of the daemon
	tables string       // of nf_tables before the daemon

	turns  int // changes so far
	daemon *daemon
	checks []func() // made after each change during the attack
	stops  []func() // end what the attack itself has on node A

	intrusions atomic.Int64   // how often neighbours have sent all of their packets
	faults     map[string]int // what checks found, and how often
}

func newSiege(t *testing.T, p plane, a attack) *siege {
	t.Helper()
	l := lab.New(t, lab.Options{Timeout: time.Second})
	client, pods := harness.Pods(l, 2)
	s := &siege{T: t, plane: p, lab: l, files: a.files, client: client, pods: [2]*lab.Host(pods)}
	s.dir = s.folder()
	if p.variant != "" { // what kubelet of this variant leaves
		s.restore("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n*nat\nCOMMIT\n*filter\nCOMMIT\n")
	}
	s.tables = l.NodeA.MustRun("nft", "list", "tables")
	s.args = append([]string{
		"--manifests=" + s.dir, "--hostname-override=node-a", "--cluster-cidr=" + podCIDRs, "--proxy-mode=" + p.mode,
	}, a.flags...)
	stays := service("stays", staysIP, 0)
	stays[0]["spec"].(object)["type"] = "NodePort"
	stays[0]["spec"].(object)["ports"] = []object{{"port": 80, "nodePort": staysNodePort}}
	s.write("good-stays.json", stays)
	s.write("good-turns.json", service("turns", turnsIP, 0))
	return s
}

// restore gives rules to iptables-restore of the variant.
func (s *siege) restore(rules string) {
	s.Helper()
	_, err := s.lab.NodeA.Run(rules, "iptables-"+s.plane.variant+"-restore", "--noflush")
	s.must(err)
}

// folder makes a folder that goes with the test. /run is this process's own.
func (s *siege) folder() string {
	s.Helper()
	dir, err := os.MkdirTemp("/run", "hostile-")
	s.must(err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *siege) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// pause waits, or until the context ends.
func (s *siege) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

type object = harness.Object

// service is a dual-stack Service on port 80 with one pod behind it.
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

// write replaces a manifest as a whole.
func (s *siege) write(name string, objects []object) {
	s.Helper()
	s.must(s.put(name, harness.Manifest(objects)))
}

// put replaces a manifest by any text.
func (s *siege) put(name string, text []byte) error {
	return harness.Replace(filepath.Join(s.dir, name), text)
}

// evict removes every manifest except the good ones, and their drafts: it may run
// while turn replaces one.
func (s *siege) evict() {
	s.Helper()
	entries, err := os.ReadDir(s.dir)
	s.must(err)
	for _, e := range entries {
		if !strings.HasPrefix(strings.TrimPrefix(e.Name(), "."), "good-") {
			s.must(os.RemoveAll(filepath.Join(s.dir, e.Name())))
		}
	}
}

// ways are from a pod and from outside, in both families.
func (s *siege) ways() []lab.Way {
	return []lab.Way{
		{From: s.client, To: at(staysIP, 80)},
		{From: s.lab.Outside, To: at("2001:db8::1", staysNodePort)},
	}
}

func at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}

// turn gives Service "turns" the other backend and returns how long it takes
// until new connections in both families reach it. It ends the test after giveUp.
func (s *siege) turn() time.Duration {
	s.Helper()
	s.turns++
	began := time.Now()
	s.write("good-turns.json", service("turns", turnsIP, s.turns%2))
	for _, addr := range []netip.Addr{netip.MustParseAddr(turnsIP), lab.Analog(netip.MustParseAddr(turnsIP))} {
		for !s.answers(s.client, netip.AddrPortFrom(addr, 80), s.pods[s.turns%2]) {
			if s.daemon != nil {
				s.daemon.alive()
			}
			if time.Since(began) > giveUp {
				s.Fatalf("a change of a good Service does not work after %v; the log:\n%s", giveUp, s.daemon.Log.End())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return time.Since(began)
}

// answers reports whether a pod answers a new connection.
func (s *siege) answers(from *lab.Host, to netip.AddrPort, pod *lab.Host) bool {
	r := from.Try(lab.Probe{Protocol: lab.TCP, To: to, Timeout: 200 * time.Millisecond})
	return r.Outcome == lab.Answered && r.Backend.Addr() == pod.Addr(to.Addr())
}

// probeTime is how long kubelet waits for /healthz: twice its default.
const probeTime = 2 * time.Second

// healthy verifies that the health server answers 200 to kubelet, which asks from
// the node. A stranger may keep others at its own address from an answer.
func (s *siege) healthy() {
	s.Helper()
	if code, err := s.health(); err != nil || code != http.StatusOK {
		s.fault("GET /healthz from the node", code, err)
	}
}

// fault records what a check found, which is reported once. Only the first
// details are logged.
func (s *siege) fault(what string, details ...any) {
	s.Helper()
	if s.faults == nil {
		s.faults = map[string]int{}
	}
	if s.faults[what]++; s.faults[what] == 1 {
		s.Log(append([]any{what, "the first time:"}, details...)...)
	}
}

func (s *siege) health() (code int, err error) {
	conn, err := dial(s.lab.NodeA, healthAt, probeTime)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(probeTime))
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

// dial connects from a host.
func dial(from *lab.Host, address string, timeout time.Duration) (conn net.Conn, err error) {
	err = from.Do(func() error {
		conn, err = net.DialTimeout("tcp", address, timeout)
		return err
	})
	return conn, err
}

// eventually tries until there is no error.
func (s *siege) eventually(limit time.Duration, try func() error) {
	s.Helper()
	err := errors.New("not tried")
	for deadline := time.Now().Add(limit); err != nil && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		err = try()
	}
	if err != nil {
		s.Errorf("after %v: %v", limit, err)
	}
}

// recovers waits until the daemon is healthy again and its rules are those that
// it wants.
func (s *siege) recovers() {
	s.Helper()
	s.succeed("status", "diff")
}

// succeed runs commands of Sluice's until each exits with 0.
func (s *siege) succeed(commands ...string) {
	s.Helper()
	s.eventually(giveUp, func() error {
		s.daemon.alive()
		for _, command := range commands {
			if out, code := s.ask(command); code != 0 {
				return fmt.Errorf("sluice %s exits with %d: %s", command, code, abridged(out))
			}
		}
		return nil
	})
}

// abridged is the beginning of a text that may be long.
func abridged(text string) string {
	if len(text) > 600 {
		return text[:600] + "..."
	}
	return text
}
