package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// stage is a node whose Services lead to backends in its own network namespace, and a Follower.
type stage struct {
	t      *testing.T
	opt    bpf.Options
	conn   *bpf.Conn
	follow *Follower
	node   func(func() error) error // as a process of the node
	pod    func(func() error) error // as a process of a pod
}

func newStage(t *testing.T) *stage {
	kerneltest.NeedPrograms(t)
	s := &stage{t: t}
	s.opt = bpf.Options{
		Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t), NetNS: kerneltest.Namespace(t), ConnectedUDP: true,
	}
	pod := kerneltest.Namespace(t)
	s.node, s.pod = lab.Inside(t, s.opt.Cgroup, s.opt.NetNS), lab.Inside(t, s.opt.Cgroup, pod)
	for _, ns := range []int{s.opt.NetNS, pod} {
		for _, at := range []string{"127.0.0.1:53", "127.0.0.2:53", "[::1]:53", "[::1]:54"} {
			listen(t, ns, at)
		}
	}
	conn, err := bpf.Open(s.opt)
	if err != nil {
		t.Fatal(err)
	}
	s.conn = conn
	t.Cleanup(func() {
		if _, err := conn.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s.start()
	return s
}

// start starts a new Follower, as another run of the program.
func (s *stage) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	s.follow = New(Options{
		Sockets: s.conn.Sockets, Destroy: sockdiag.Node{NetNS: s.opt.NetNS}.Destroy,
		Pools:  poolsOf,
		Report: func(sockdiag.Result) {},
		Failed: func(err error) { s.t.Error(err) },
	})
	f := s.follow
	go func() { ended <- f.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
}

func poolsOf(svc *route.Service) map[bpf.Pool]*route.Port {
	all := map[bpf.Pool]*route.Port{}
	if svc != nil {
		for i := range svc.Ports {
			all[poolOf(svc, &svc.Ports[i])] = &svc.Ports[i]
		}
	}
	return all
}

func poolOf(_ *route.Service, p *route.Port) bpf.Pool {
	return bpf.Pool{byte(p.Protocol), byte(p.Family)}
}

// listen accepts connections and datagrams, without an answer.
func listen(t *testing.T, netns int, at string) {
	kerneltest.Do(t, netns, func() error {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		p, err := net.ListenPacket("udp", at)
		t.Cleanup(func() { _, _ = l.Close(), p.Close() }) // nothing was written to them
		return err
	})
}

var services = map[route.Family]netip.AddrPort{
	route.IPv4: netip.MustParseAddrPort("10.96.0.1:53"), route.IPv6: netip.MustParseAddrPort("[fd00::1]:53"),
}

// service has a port of each protocol and family.
func service(pool map[route.Family][]netip.AddrPort) *route.Service {
	svc := &route.Service{Name: cluster.Name{Namespace: "ns", Name: "dns"}}
	for f := range services {
		for _, protocol := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
			p := route.Port{
				Protocol: protocol, Family: f, Cluster: pool[f],
				Frontends: []route.Frontend{{Addr: services[f].Addr(), Port: services[f].Port()}},
			}
			if protocol == cluster.UDP {
				p.Serving = pool[f]
			}
			svc.Ports = append(svc.Ports, p)
		}
	}
	return svc
}

func lists(v4, v6 string) map[route.Family][]netip.AddrPort {
	m := map[route.Family][]netip.AddrPort{}
	if v4 != "" {
		m[route.IPv4] = []netip.AddrPort{netip.MustParseAddrPort(v4)}
		m[route.IPv6] = []netip.AddrPort{netip.MustParseAddrPort(v6)}
	}
	return m
}

// write leads the Services to the pools.
func (s *stage) write(svc *route.Service) {
	s.t.Helper()
	var steps []bpf.Step
	add := func(e bpf.Entry) { steps = append(steps, bpf.Step{Entry: e}) }
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for k, b := range p.Cluster {
			add(bpf.Slot{Pool: poolOf(svc, p), Index: k, Backend: b}.Entry())
			add(bpf.Member{Pool: poolOf(svc, p), Backend: b}.Entry())
		}
		for _, clients := range []bpf.Clients{bpf.OfNode, bpf.OfPods} {
			add(bpf.Frontend{
				At: services[p.Family], Protocol: uint8(p.Protocol), Clients: clients, Pool: poolOf(svc, p), Count: len(p.Cluster),
			}.Entry())
		}
	}
	add(bpf.Entry{Key: bpf.Key{Table: bpf.Programs}, Value: s.conn.Version()})
	if err := s.conn.Write(context.Background(), steps); err != nil {
		s.t.Fatal(err)
	}
}

// client is a connected socket.
type client struct {
	name string
	fd   int
	in   func(func() error) error
	to   netip.AddrPort
}

func (c *client) connect() error {
	var sa unix.Sockaddr
	if c.to.Addr().Is4() {
		sa = &unix.SockaddrInet4{Addr: c.to.Addr().As4(), Port: int(c.to.Port())}
	}
	if domain, _ := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_DOMAIN); domain == unix.AF_INET6 {
		sa = &unix.SockaddrInet6{Addr: c.to.Addr().As16(), Port: int(c.to.Port())}
	}
	return c.in(func() error { return unix.Connect(c.fd, sa) })
}

// broken returns the error of the socket.
func (c *client) broken() error {
	n, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && n != 0 {
		err = unix.Errno(n)
	}
	return err
}

func (s *stage) client(name string, in func(func() error) error, kind int, to netip.AddrPort) *client {
	s.t.Helper()
	family := unix.AF_INET
	if to.Addr().Is6() || name == "mapped" {
		family = unix.AF_INET6
	}
	c := &client{name: fmt.Sprint(name, kind, to), in: in, to: to}
	err := in(func() (err error) {
		c.fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err = errors.Join(err, c.connect()); err != nil {
		s.t.Fatalf("%s: %v", c.name, err)
	}
	s.t.Cleanup(func() { _ = unix.Close(c.fd) }) // nothing is lost
	return c
}

// clients returns sockets of all kinds that are connected through the Services, and others that are connected to the
// backends.
func (s *stage) clients(kind int) (through, others []*client) {
	s.t.Helper()
	for f, to := range services {
		backend := netip.MustParseAddrPort(map[route.Family]string{route.IPv4: "127.0.0.1:53", route.IPv6: "[::1]:53"}[f])
		through = append(through, s.client("node", s.node, kind, to))
		others = append(others, s.client("direct", s.node, kind, backend),
			s.client("direct in the pod", s.pod, kind, backend))
		if f == route.IPv4 {
			through = append(through, s.client("pod", s.pod, kind, to), s.client("mapped", s.node, kind, to))
		}
	}
	return through, others
}

// knowPod makes programs decide for the pod, which has no route to the Service.
func (s *stage) knowPod() {
	s.t.Helper()
	var pod bpf.Pod
	err := s.pod(func() (err error) {
		pod.NetNS, err = netns.Cookie()
		return err
	})
	pod.IPv4 = netip.MustParseAddr("10.1.0.1")
	if err = errors.Join(err, s.conn.SetPods([]bpf.Pod{pod})); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) want(list []*client, want error) {
	s.t.Helper()
	for _, c := range list {
		var err error
		for range 600 { // a pass comes after seconds
			if err = c.broken(); want == nil || err != nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if !errors.Is(err, want) {
			s.t.Errorf("%s: %v, want %v", c.name, err, want)
		}
	}
}

func TestUDPSocketsOfLostBackends(t *testing.T) {
	s := newStage(t)
	first, second := lists("127.0.0.1:53", "[::1]:53"), lists("127.0.0.2:53", "[::1]:54")
	was, is := service(first), service(second)
	s.write(was)
	s.knowPod()
	s.follow.Applied(route.Change{Touched: []route.Touch{{Name: was.Name, New: was}}})
	through, others := s.clients(unix.SOCK_DGRAM)
	time.Sleep(2*secondPass - secondPass/2) // the passes of the start are over
	s.want(through, nil)
	s.write(is)
	s.follow.Applied(route.Change{Touched: []route.Touch{{Name: was.Name, Old: was, New: is}}})
	s.want(through, unix.ECONNABORTED)
	s.want(others, nil)
	for _, c := range through {
		if err := c.connect(); err != nil {
			t.Errorf("%s: connect again: %v", c.name, err)
		}
	}
	list, err := s.conn.Sockets()
	for _, socket := range list {
		if socket.Backend != second[route.IPv4][0] && socket.Backend != second[route.IPv6][0] {
			t.Errorf("connected again to %s", socket.Backend)
		}
	}
	if err != nil || len(list) != len(through) {
		t.Errorf("%d sockets, %v, want %d", len(list), err, len(through))
	}
	// The backends, and the Service, disappear while the program is down.
	s.start()
	s.follow.Applied(route.Change{Touched: nil})
	s.want(through, unix.ECONNABORTED)
	s.want(others, nil)
}

// A socket is destroyed if the Service loses the address to which it is connected, and its backend serves still.
func TestUDPSocketsOfLostAddresses(t *testing.T) {
	s := newStage(t)
	backends := lists("127.0.0.1:53", "[::1]:53")
	was, is := service(backends), service(backends)
	for i := range is.Ports {
		if p := &is.Ports[i]; p.Family == route.IPv4 {
			p.Frontends = []route.Frontend{{Addr: netip.MustParseAddr("10.96.0.9"), Port: 53}}
		}
	}
	s.write(was)
	s.follow.Applied(route.Change{Touched: []route.Touch{{Name: was.Name, New: was}}})
	lost := s.client("IPv4", s.node, unix.SOCK_DGRAM, services[route.IPv4])
	stays := s.client("IPv6", s.node, unix.SOCK_DGRAM, services[route.IPv6])
	s.follow.Applied(route.Change{Touched: []route.Touch{{Name: was.Name, Old: was, New: is}}})
	s.want([]*client{lost}, unix.ECONNABORTED)
	time.Sleep(secondPass + secondPass/2)
	s.want([]*client{stays}, nil)
}

// TCP connections go on, whatever happens to their endpoints and Services.
func TestTCPConnectionsStay(t *testing.T) {
	s := newStage(t)
	was, is := service(lists("127.0.0.1:53", "[::1]:53")), service(lists("127.0.0.2:53", "[::1]:54"))
	s.write(was)
	s.knowPod()
	s.follow.Applied(route.Change{Touched: []route.Touch{{Name: was.Name, New: was}}})
	through, others := s.clients(unix.SOCK_STREAM)
	s.write(is)
	s.follow.Applied(route.Change{Touched: []route.Touch{{Name: was.Name, Old: was, New: is}}})
	s.follow.Applied(route.Change{Touched: []route.Touch{{Name: was.Name, Old: is}}})
	time.Sleep(secondPass + secondPass/2)
	s.want(through, nil)
	s.want(others, nil)
}

func TestTry(t *testing.T) {
	if err := (sockdiag.Node{NetNS: kerneltest.Namespace(t)}).Try(); err != nil {
		t.Error(err)
	}
}
