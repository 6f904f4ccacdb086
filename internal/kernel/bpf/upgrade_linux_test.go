package bpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/sockdiag"
	"github.com/sluice-proxy/sluice/test/lab"
)

// otherBuild returns programs whose maps have larger keys and values, and other sizes and types (hack/bpf.sh).
func otherBuild(t *testing.T) build {
	t.Helper()
	object, err := os.ReadFile("testdata/other.o")
	if err != nil {
		t.Fatal(err)
	}
	return build{object: object}
}

// laterBuild returns the programs of this version, as if those of otherBuild were of the layout before.
func laterBuild() build {
	b := build{object: _SockBytes, layouts: map[string]int{}, conversions: map[string][]conversion{}}
	for name, size := range map[string]int{
		sockMapChosen: 32, sockMapOriginals: 32, sockMapClients: 16, sockMapLoads: 36, sockMapNewcomers: 36, sockMapMembers: 36,
	} {
		b.layouts[name] = firstLayout + 1
		b.conversions[name] = []conversion{func(k, v []byte) ([]byte, []byte, bool) { return k[:size], v, true }}
	}
	return b
}

// use continues with another build, as another run of the program.
func (n *node) use(b build) {
	n.t.Helper()
	_ = n.conn.Close() // what is written is pinned
	c, err := openBuild(n.opt, b)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	n.conn = c
}

// fill writes entries into the maps of any build, with zeros after them, and attaches the programs.
func (n *node) fill(list []Entry) error {
	if err := n.conn.open(); err != nil {
		return err
	}
	for _, e := range list {
		m := n.conn.maps[e.Table.String()]
		k, v := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		copy(k, e.Data)
		copy(v, e.Value)
		if err := put(m, k, v); err != nil {
			return fmt.Errorf("%s: %w", e, err)
		}
	}
	if err := n.conn.openFilter(); err != nil {
		return err
	}
	return n.conn.attach()
}

const podVIP = "10.96.0.3:80"

// upgraded is a node with Services, and sockets that live through upgrades.
type upgraded struct {
	*node
	list      []Entry // of the Services
	connected *socket // to a Service
	sends     *socket // has sent to a Service, and its reply is not read yet
	answers   string  // the backend that has answered sends before
	tcp       net.Conn
	inPod     func(func() error) error
	stop      chan struct{}
	traffic   sync.WaitGroup
}

func newUpgraded(t *testing.T, b build) *upgraded {
	n := &upgraded{node: newNode(t), stop: make(chan struct{})}
	backends := []string{"127.0.0.1:53", "127.0.0.2:53"}
	for _, at := range backends {
		serve(t, n.opt.NetNS, at)
	}
	pod := kerneltest.Namespace(t)
	address4(t, pod, "10.1.0.1/32")
	serve(t, pod, "10.1.0.1:53")
	serve(t, pod, "127.0.0.1:53")
	n.inPod = lab.Inside(t, n.opt.Cgroup, pod)
	n.list = slices.Concat(service(dns4, 17, OfNode, backends...), service(vip, 6, OfNode, backends...), service(podVIP, 6, OfPods, backends[0]))
	n.list = append(n.list, PodPrefix(netip.MustParsePrefix("10.1.0.0/24")))
	for i, e := range n.list {
		if e.Table == Frontends && []byte(e.Data)[18] == 6 {
			value := []byte(e.Value)
			value[20] = byte(ByLoad)
			n.list[i].Value = string(value)
		}
	}
	n.use(b)
	if err := n.fill(n.list); err != nil {
		t.Fatal(err)
	}
	n.begin()
	return n
}

// begin opens the sockets that stay.
func (n *upgraded) begin() {
	n.t.Helper()
	n.run(func() (err error) {
		if n.connected, err = openSocket(unix.AF_INET); err != nil {
			return err
		}
		if n.sends, err = openSocket(unix.AF_INET); err != nil {
			return err
		}
		if err := n.connected.connect(dns4); err != nil {
			return err
		}
		if n.answers, _, err = n.sends.ask(dns4); err != nil {
			return err
		}
		if err := unix.Sendto(n.sends.fd, []byte("?"), 0, n.sends.address(dns4)); err != nil {
			return err
		}
		n.tcp, err = net.Dial("tcp", vip)
		return err
	})
	n.t.Cleanup(func() {
		n.connected.close()
		n.sends.close()
		_ = n.tcp.Close() // nothing is left to lose
	})
	n.learn()
	if err := n.inPod(func() error { _, _, err := ask("10.1.0.1:53"); return err }); err != nil { // its address is known from now on
		n.t.Fatal(err)
	}
}

// differs returns an error unless two values are equal.
func differs[T comparable](what string, is, want T) error {
	if is == want {
		return nil
	}
	return fmt.Errorf("%s is %v, want %v", what, is, want)
}

// live verifies that the connected sockets still reach their backends.
func (n *upgraded) live() {
	n.t.Helper()
	n.run(func() error {
		by, err := n.connected.want("", dns4)
		if err != nil {
			return fmt.Errorf("the connected socket: %w", err)
		}
		again, err := n.connected.want(dns4, dns4)
		if err = errors.Join(err, differs("the backend of the connected socket that sends to the Service", again, by)); err != nil {
			return err
		}
		raw, err := n.tcp.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		peer, err := peerOf(raw)
		return errors.Join(err, differs("the peer of the TCP connection", peer, vip))
	})
	for name, service := range map[string]string{sockMapUdpSockets: dns4, sockMapConnections: vip} {
		if list := n.sockets(name); len(list) != 1 || list[0].Service.String() != service {
			n.t.Errorf("map %s has %+v, want one socket that is connected to %s", name, list, service)
		}
	}
}

// sockets returns the sockets in a map of any build.
func (n *upgraded) sockets(name string) (list []Socket) {
	n.t.Helper()
	all, err := dump(n.conn.maps[name])
	if err != nil {
		n.t.Fatal(err)
	}
	for _, v := range all {
		if s := socketIn([]byte(v)); s.Socket != 0 {
			list = append(list, s)
		}
	}
	return list
}

// remembers verifies the socket that sends without connecting, and the pod.
func (n *upgraded) remembers() {
	n.t.Helper()
	n.run(func() error {
		_, early, err := n.sends.receive()
		if err = errors.Join(err, differs("the source of an early reply", early, dns4)); err != nil {
			return err
		}
		by, from, err := n.sends.ask(dns4)
		return errors.Join(err, differs("the backend", by, n.answers), differs("the source of a reply", from, dns4))
	})
	if err := n.inPod(callPod); err != nil {
		n.t.Errorf("the pod: %v", err)
	}
}

func callPod() error {
	_, _, err := ask(podVIP)
	return err
}

// loads returns the open connections that are counted, by both maps.
func (n *upgraded) loads() (sockets, sum int) {
	n.t.Helper()
	counted, err := dump(n.conn.maps[sockMapCounted])
	if err != nil {
		n.t.Fatal(err)
	}
	all, err := dump(n.conn.maps[sockMapLoads])
	if err != nil {
		n.t.Fatal(err)
	}
	for _, load := range all {
		sum += int(load[0])
	}
	return len(counted), sum
}

// destroy ends the connected socket as if its backend were gone.
func (n *upgraded) destroy() {
	n.t.Helper()
	var list []sockdiag.Socket
	for _, s := range n.sockets(sockMapUdpSockets) {
		list = append(list, sockdiag.Socket{Cookie: s.Socket, NetNS: s.NetNS, Protocol: unix.IPPROTO_UDP, Peer: s.Backend})
	}
	result, err := sockdiag.Destroyer{Node: n.opt.NetNS}.Destroy(n.t.Context(), list)
	if err != nil || result.Destroyed[unix.IPPROTO_UDP] != 1 {
		n.t.Errorf("destroyed %v, %v, want one socket", result, err)
	}
	n.run(func() error {
		_, _, err := n.connected.receive()
		return differs("the error of the socket that was destroyed", err, error(unix.ECONNABORTED))
	})
}

// While a version with other keys, values, sizes and types of maps replaces another one, no call fails, and nothing is forgotten.
func TestUpgradeOfMaps(t *testing.T) {
	n := newUpgraded(t, otherBuild(t))
	end := n.keep(callTCP, callConnectedUDP, callUDP, callOneSocket(t))
	n.use(laterBuild())
	for _, s := range many() { // more than the first size
		n.list = append(n.list, s.Entry)
	}
	n.write(n.list...)
	end()
	n.live()
	n.remembers()
	if sockets, sum := n.loads(); sockets != 1 || sum != 1 {
		t.Errorf("%d sockets are counted, and %d in the loads, want 1 (the TCP connection that is open)", sockets, sum)
	}
	n.destroy()
	if got := n.reads(); got != n.conn.Version() {
		t.Errorf("the programs are %q, want %q", got, n.conn.Version())
	}
}

// An upgrade that fails, at any program, is repeated. No call fails meanwhile.
func TestUpgradeThatFails(t *testing.T) {
	n := newUpgraded(t, otherBuild(t))
	end := n.keep(callTCP, callConnectedUDP, callUDP, callOneSocket(t))
	n.use(laterBuild())
	for i := range len((Options{}).points()) {
		n.conn.opt.Fault = failAt(Attach, i+1)
		var steps []Step
		for _, e := range n.list {
			steps = append(steps, Step{Entry: e})
		}
		steps = append(steps, Step{Entry: Entry{Key{Table: Programs}, n.conn.Version()}})
		if err := n.conn.Write(t.Context(), steps); !errors.Is(err, errFault) {
			t.Errorf("attachment %d: %v, want %v", i, err, errFault)
		}
		if got := n.reads(); got != other {
			t.Errorf("attachment %d: the programs are %q, want %q", i, got, other)
		}
	}
	n.conn.opt.Fault = nil
	n.write(n.list...)
	end()
	n.live()
	n.remembers()
	n.destroy()
}

// A new version that is killed in the middle of an upgrade has not forgotten the sockets from before it.
func TestUpgradeThatIsKilled(t *testing.T) {
	for _, at := range []int{1, len((Options{}).points()) / 2, len((Options{}).points())} {
		n := newUpgraded(t, otherBuild(t))
		n.use(laterBuild())
		n.conn.opt.Fault = failAt(Attach, at)
		if err := n.fill(n.list); !errors.Is(err, errFault) {
			t.Fatal(err)
		}
		n.use(laterBuild())
		n.write(n.list...)
		n.live()
		n.remembers()
		n.destroy()
	}
}

// An earlier version replaces a later one, whose layouts it does not know. It keeps connections and connected sockets, whose keys are the
// same, and learns the rest again. No call fails.
func TestDowngrade(t *testing.T) {
	n := newUpgraded(t, laterBuild())
	end := n.keep(callTCP, callConnectedUDP)
	n.use(otherBuild(t))
	if err := n.fill(n.list); err != nil {
		t.Fatal(err)
	}
	end()
	n.live()
	if err := n.inPod(callPod); err == nil {
		t.Error("the pod is known, by a key of the later version")
	}
	n.destroy()
	if names, err := n.conn.names("."); err != nil || !slices.Equal(names, []string{"links", "maps-1"}) {
		t.Errorf("left are %v, %v", names, err)
	}
}

// A map that only the later version has begins empty, and so does one that is missing after a downgrade.
func TestMapOfALaterVersion(t *testing.T) {
	n, backends := twoBackends(t)
	for range 2 {
		if err := n.conn.Exempt(map[uint64]bool{1 << 40: true}); err != nil {
			t.Fatal(err)
		}
		added := n.conn.mapPath(sockMapExempt)
		if err := os.Rename(added, n.conn.mapPath("unknown")); err != nil { // a map that this version does not have
			t.Fatal(err)
		}
		n.conn = n.reopen(func(*Options) {})
		n.balances(backends...)
		if exists(n.conn.mapPath("unknown")) || !exists(added) {
			t.Errorf("after the write: unknown %t, %s %t", exists(n.conn.mapPath("unknown")), added, exists(added))
		}
		if all, err := dump(n.conn.maps[sockMapExempt]); err != nil || len(all) != 0 {
			t.Errorf("the new map has %v, %v", all, err)
		}
	}
}
