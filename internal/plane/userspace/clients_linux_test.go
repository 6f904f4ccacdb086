package userspace_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// node is a node with the plane, a Service with a NodePort, and a pod behind it.
type node struct {
	*lab.Lab
	pod    *lab.Host
	opened *plane.Opened
	stop   func() // ends the parts, as the end of the process does: the rules stay
}

func newNode(t *testing.T) *node { return nodeWith(t, store(func(*cluster.Service) {})) }

// nodeWith returns a node with some Services.
func nodeWith(t *testing.T, services *cluster.Store) *node {
	n := &node{Lab: lab.New(t, lab.Options{})}
	n.pod = n.Pod(n.NodeA, "10.180.0.1", "fd00:10:180::1")
	families := route.Families()
	cfg := &config.Config{Mode: "userspace", MasqueradeMark: 0x4000, SyncPeriod: time.Minute, Userspace: config.Userspace{
		Bind: config.BindRules, FirstPort: 1024, LastPort: 65535, UDPTimeout: time.Minute, DrainTimeout: time.Minute,
	}}
	opened, err := userspace.Kind(iptables.PortalsKind()).Open(t.Context(), plane.Setup{
		Config: cfg, NetNS: n.NodeA.NetNSFD(), Families: families, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	var parts sync.WaitGroup
	n.stop = func() {
		stop()
		parts.Wait()
	}
	for _, part := range opened.Parts {
		if part.SetLocal != nil {
			part.SetLocal(n.NodeA.Addrs())
		}
		if part.Run != nil {
			done := make(chan error, 1)
			parts.Go(func() { done <- part.Run(ctx) })
			t.Cleanup(func() {
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		}
	}
	n.opened = opened
	planetest.Load(t, opened.Plane, planetest.Compile(services, route.Options{
		Families: families, NodePorts: route.NodePortOptions{All: true},
	}))
	return n
}

// store has a Service with changes.
func store(change func(*cluster.Service)) *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(planetest.NewNode("10.180.0.0/24", "fd00:10:180::/64"))
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: "web"}, Type: cluster.NodePort,
		ClusterIPs: planetest.Addrs("172.30.0.41", "fd00:172:30::41"),
	}
	slices := []*cluster.Slice{
		{
			Name: cluster.Name{Namespace: "shop", Name: "web-4"}, Service: svc.Name,
			Endpoints: []cluster.Endpoint{planetest.Endpoint("10.180.0.1", "a")},
		},
		{
			Name: cluster.Name{Namespace: "shop", Name: "web-6"}, Service: svc.Name,
			Endpoints: []cluster.Endpoint{planetest.Endpoint("fd00:10:180::1", "a")},
		},
	}
	for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		svc.Ports = append(svc.Ports, cluster.ServicePort{Name: p.String(), Protocol: p, Port: 80, NodePort: 30080})
		for _, sl := range slices {
			sl.Ports = append(sl.Ports, cluster.SlicePort{Name: p.String(), Protocol: p, Port: 8080})
		}
	}
	change(svc)
	s.SetService(svc)
	for _, sl := range slices {
		s.SetSlice(sl)
	}
	return s
}

// A backend learns the address of the client and that to which it connected from a PROXY header,
// before the first byte of the client.
func TestProxyHeader(t *testing.T) {
	n := nodeWith(t, store(func(svc *cluster.Service) { svc.ProxyHeader = true }))
	var l net.Listener
	if err := n.pod.Do(func() (err error) {
		l, err = net.Listen("tcp", "10.180.0.1:8080")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var c net.Conn
	if err := n.Outside.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", "192.168.0.2:30080", 30*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	got := make([]byte, 28+len("hello"))
	if _, err := io.ReadFull(b, got); err != nil {
		t.Fatal(err)
	}
	client := netip.MustParseAddrPort(c.LocalAddr().String())
	want := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), client.Addr().AsSlice()...)
	want = append(want, 192, 168, 0, 2)
	want = append(want, byte(client.Port()>>8), byte(client.Port()), 30080>>8, 30080&0xff)
	if want = append(want, "hello"...); string(got) != string(want) {
		t.Errorf("the backend received\n%q, want\n%q", got, want)
	}
}
