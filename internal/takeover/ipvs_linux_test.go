package takeover

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) {
	if addresses := os.Getenv(served); addresses != "" {
		act(addresses)
	}
	if os.Getenv(looking) != "" {
		kubeProxy, err := newDetector(Options{}).detect(context.Background())
		fmt.Println(kubeProxy, err)
		os.Exit(0)
	}
	os.Exit(kerneltest.Main(m))
}

// sh runs commands in a namespace, one a line.
func sh(t *testing.T, netns int, commands string) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		out, err := exec.Command("sh", "-ec", commands).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// afterRealIPVS has about the same leftovers as mode ipvs of kube-proxy: a Service at two addresses, a node port, and
// rules that refer to an ipset.
const afterRealIPVS = `
sysctl -qw net.ipv4.vs.conntrack=1
ip link add wan type dummy
ip link set wan up
ip addr add 192.0.2.7/24 dev wan
ip route add default dev wan
ip link add kube-ipvs0 type dummy
for vip in 10.96.0.1 10.96.0.10; do
	ip addr add $vip/32 dev kube-ipvs0
done
ip addr add fd00::1/128 dev kube-ipvs0
ipset create KUBE-CLUSTER-IP hash:ip,port
ipset create KUBE-6-CLUSTER-IP hash:ip,port family inet6
ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
ipset add KUBE-NODE-PORT-TCP 30080
iptables-legacy -t nat -N KUBE-SERVICES
iptables-legacy -t nat -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
iptables-legacy -t nat -A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
`

// addServers adds virtual servers at the addresses, and virtual servers of other programs: at a port of the node, and
// for a mark.
func addServers(t *testing.T, netns int) {
	t.Helper()
	var changes []ipvs.Command
	add := func(s ipvs.Server) {
		changes = append(changes, ipvs.Command{Op: ipvs.Set, Server: s, Settings: ipvs.Settings{Scheduler: "rr"}})
	}
	for _, at := range []string{"10.96.0.1:80", "10.96.0.10:80", "[fd00::1]:80", "192.0.2.7:30080", "192.0.2.7:80"} {
		add(tcp(at))
	}
	add(ipvs.Server{Addr: netip.IPv4Unspecified(), Mark: 7})
	for _, at := range []string{"10.96.0.1:80", "10.96.0.10:80"} {
		changes = append(changes, ipvs.Command{
			Op: ipvs.SetDest, Server: tcp(at), Dest: ipvs.Destination{At: netip.MustParseAddrPort("127.0.0.1:8080"), Weight: 1},
		})
	}
	if err := ipvs.New(netns).Apply(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
}

// talk opens a connection that is used whenever the function returned is called.
func talk(t *testing.T, netns int, to string) (conn *net.TCPConn, say func()) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		c, err := net.DialTimeout("tcp", to, 30*time.Second)
		if err != nil {
			return err
		}
		conn = c.(*net.TCPConn)
		return nil
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn, func() {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatalf("%s: %v", to, err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
			t.Fatalf("%s: %v", to, err)
		}
	}
}

// echo answers on port 8080.
func echo(t *testing.T, netns int) {
	t.Helper()
	var l net.Listener
	kerneltest.Do(t, netns, func() (err error) {
		l, err = net.Listen("tcp4", ":8080")
		return err
	})
	kerneltest.Serve(t, l, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
}

// TestIPVSModeIsTakenOverInARealKernel is run by test/uml in user-mode Linux 6.1, which has IPVS: connections through
// it, and connections that programs of the node made from an address on kube-ipvs0, continue until they end by
// themselves.
func TestIPVSModeIsTakenOverInARealKernel(t *testing.T) {
	kerneltest.NeedIPVS(t)
	netns := kerneltest.Namespace(t)
	sh(t, netns, afterRealIPVS)
	sh(t, netns, "ipset create mine hash:ip")
	addServers(t, netns)
	echo(t, netns)
	through, sayThrough := talk(t, netns, "10.96.0.1:80")
	sayThrough()

	// From here on another proxy's rules are in force.
	sh(t, netns,
		"iptables-legacy -t nat -I OUTPUT -p tcp --dport 80 -d 10.96.0.0/24 -j DNAT --to-destination 127.0.0.1:8080")
	past, sayPast := talk(t, netns, "10.96.0.10:80")
	sayPast()

	r := newRules(Options{NetNS: netns})
	compare(t, "while there are connections", `removed ipvs: 3 virtual servers
left 1 virtual server, as long as connections go through
left 2 addresses of kube-ipvs0, as long as programs of this node have connections from there
left interface kube-ipvs0 and kube-proxy's rules in iptables, until then
left 2 virtual servers not known as kube-proxy's`, takeOnce(t, r))
	sayThrough()
	sayPast()
	fresh, sayFresh := talk(t, netns, "10.96.0.10:80")
	sayFresh()
	if from := fresh.LocalAddr().String(); !strings.HasPrefix(from, "192.0.2.7:") {
		t.Errorf("a new connection comes from %s", from)
	}

	for _, c := range []*net.TCPConn{through, past} {
		_ = c.Close()
	}
	last := "" // IPVS remembers them for two minutes, in which waiting costs nothing but each search does
	for deadline := time.Now().Add(150 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Second) {
		if last = takeOnce(t, r); !strings.Contains(last, "until then") {
			break
		}
	}
	compare(t, "when they have ended", `removed iptables-legacy: 1 chain and 1 rule in iptables-legacy nat
removed ipvs: 1 virtual server, interface kube-ipvs0 with 1 address, 3 ipsets
left 2 virtual servers not known as kube-proxy's`, last)
	sayFresh()
	compare(t, "again", "", takeOnce(t, r))
}

// takeOnce finds, removes, and returns the account.
func takeOnce(t *testing.T, r *rules) string {
	t.Helper()
	found, err := r.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.remove(t.Context(), found)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(a.Lines(), "\n")
}
