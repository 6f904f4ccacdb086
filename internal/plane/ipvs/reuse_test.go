package ipvs

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// reusedPorts is the number of source ports of a client. It uses each again within a second, but
// IPVS remembers an ended connection for two minutes.
const reusedPorts = 8

// A rolling update, whose clients use their source ports again, breaks and delays no connection. A connection from a
// port that IPVS remembers is not sent to the destination of the one before, which may be gone.
func TestARollingUpdateWithReusedClientPortsOnTheKernel(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings []string
		broken   bool
	}{
		{"settings of the plane", nil, false},
		{"control: without them", []string{"net.ipv4.vs.conn_reuse_mode=0", "net.ipv4.vs.expire_nodest_conn=0"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			kernel, netns := realKernel(t)
			prepared(t, netns)
			for _, s := range tt.settings {
				run(t, netns, "sysctl", "-qw", s)
			}
			r := newRollout(t, New(kernel, Options{Families: route.Families(), Mark: 0x4000}), netns)
			err := r.run()
			if broken := err != nil; broken != tt.broken {
				t.Errorf("after %d connections: %v", r.done.Load(), err)
			}
			t.Logf("%d connections, %v", r.done.Load(), err)
		})
	}
}

// rollout is a Service at an address of each family, whose backends are replaced one after
// another, and a client outside of the node.
type rollout struct {
	t           *testing.T
	plane       *Plane
	node        int // network namespaces
	client      int
	stopBackend map[int]func()
	service     *route.Service // as written last

	done atomic.Int64 // connections

	mu     sync.Mutex
	broken []error
}

func newRollout(t *testing.T, p *Plane, node int) *rollout {
	r := &rollout{t: t, plane: p, node: node, client: kerneltest.Namespace(t), stopBackend: map[int]func(){}}
	kerneltest.Do(t, node, func() error {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "wan"}, PeerName: "wan", PeerNamespace: netlink.NsFd(r.client),
		}
		return netlink.LinkAdd(veth)
	})
	for netns, lines := range map[int]string{
		node: `ip addr add 192.0.2.1/24 dev wan
ip addr add 2001:db8::1/64 dev wan nodad
ip link set wan up`,
		r.client: `ip addr add 192.0.2.2/24 dev wan
ip addr add 2001:db8::2/64 dev wan nodad
ip link set wan up
ip route add default via 192.0.2.1
ip -6 route add default via 2001:db8::1`,
	} {
		run(t, netns, "sh", "-ec", lines)
	}
	return r
}

// ends returns the addresses of the Service and of the client in each family.
func ends() map[route.Family][2]netip.Addr {
	return map[route.Family][2]netip.Addr{
		route.IPv4: {netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("192.0.2.2")},
		route.IPv6: {netip.MustParseAddr("fd00:96::1"), netip.MustParseAddr("2001:db8::2")},
	}
}

// backend returns the addresses of a backend.
func backend(n int) map[route.Family]netip.AddrPort {
	return map[route.Family]netip.AddrPort{
		route.IPv4: netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:8080", n)),
		route.IPv6: netip.MustParseAddrPort(fmt.Sprintf("[fd00:10::%d]:8080", n)),
	}
}

// start starts a backend. It answers each connection with a line, and closes it first.
func (r *rollout) start(n int) {
	r.t.Helper()
	var all []net.Listener
	for _, at := range backend(n) {
		run(r.t, r.node, "ip", "addr", "replace", netip.PrefixFrom(at.Addr(), at.Addr().BitLen()).String(), "dev", "lo")
		kerneltest.Do(r.t, r.node, func() error {
			l, err := net.Listen("tcp", at.String())
			all = append(all, l)
			return err
		})
	}
	for _, l := range all {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = fmt.Fprintln(c, "served")
				_ = c.Close()
			}
		}()
	}
	r.stopBackend[n] = sync.OnceFunc(func() {
		for _, l := range all {
			_ = l.Close()
		}
	})
	r.t.Cleanup(r.stopBackend[n])
}

// write writes the Service with these backends.
func (r *rollout) write(backends ...int) {
	r.t.Helper()
	name := cluster.Name{Namespace: "default", Name: "web"}
	svc := &route.Service{Name: name}
	for _, family := range route.Families() {
		port := route.Port{
			Name: "http", Protocol: cluster.TCP, Family: family,
			Frontends: []route.Frontend{{Kind: route.ClusterIP, Addr: ends()[family][0], Port: 80}},
		}
		for _, n := range backends {
			port.Cluster = append(port.Cluster, backend(n)[family])
		}
		svc.Ports = append(svc.Ports, port)
	}
	change := route.Change{
		Table:   &route.Table{Services: map[cluster.Name]*route.Service{name: svc}},
		Touched: []route.Touch{{Name: name, Old: r.service, New: svc}},
	}
	if r.service == nil {
		if err := r.plane.Refresh(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.plane.Plan(change).Apply(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.service = svc
}

// run replaces all backends several times under traffic and returns what went wrong.
func (r *rollout) run() error {
	const backends, rounds = 2, 6
	for n := range backends {
		r.start(n + 1)
	}
	r.write(1, 2)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for _, of := range ends() {
		clients.Go(func() {
			kerneltest.Do(r.t, r.client, func() error {
				r.connect(of, stop)
				return nil
			})
		})
	}
	for n := 1; n <= rounds && r.failures() == nil; n++ {
		r.await(4 * reusedPorts) // IPVS remembers every port
		r.start(n + backends)
		r.write(n+1, n+backends)
		r.await(4) // no connection to the old backend is on its way
		r.stopBackend[n]()
	}
	r.await(4 * reusedPorts)
	close(stop)
	clients.Wait()
	return r.failures()
}

// await waits for n more connections, or for the first failure.
func (r *rollout) await(n int64) {
	for want := r.done.Load() + n; r.done.Load() < want && r.failures() == nil; {
		time.Sleep(time.Millisecond)
	}
}

func (r *rollout) failures() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.broken...)
}

// connect connects from one port after another until the first failure.
func (r *rollout) connect(of [2]netip.Addr, stop <-chan struct{}) {
	to := netip.AddrPortFrom(of[0], 80).String()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
		if err := connectFrom(netip.AddrPortFrom(of[1], uint16(20000+n%reusedPorts)), to); err != nil {
			r.mu.Lock()
			r.broken = append(r.broken, fmt.Errorf("connection %d to %s: %w", n, to, err))
			r.mu.Unlock()
			return
		}
		r.done.Add(1)
	}
}

// connectFrom makes a connection, which the server ends first. A retransmission is an error.
func connectFrom(from netip.AddrPort, to string) error {
	dialer := net.Dialer{
		Timeout: 30 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(from),
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
			return errors.Join(err, failed)
		},
	}
	c, err := dialer.Dial("tcp", to)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	answer, err := io.ReadAll(c)
	if err != nil || !strings.Contains(string(answer), "served") {
		return fmt.Errorf("the answer is %q, %w", answer, err)
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	if info.Total_retrans > 0 {
		return fmt.Errorf("%d packets were retransmitted", info.Total_retrans)
	}
	return nil
}
