package ipvs

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// oneService returns the change that adds a Service at 10.96.0.1:80 with these backends.
func oneService(backends ...string) (route.Change, *route.Service) {
	name := cluster.Name{Namespace: "default", Name: "web"}
	svc := withBackends(&route.Service{Name: name, Ports: []route.Port{{
		Name: "http", Protocol: cluster.TCP, Family: route.IPv4,
		Frontends: []route.Frontend{{Kind: route.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}},
	}}}, backends...)
	table := &route.Table{Services: map[cluster.Name]*route.Service{name: svc}}
	return route.Change{Table: table, Touched: []route.Touch{{Name: name, New: svc}}}, svc
}

// withBackends returns the Service with other backends.
func withBackends(svc *route.Service, backends ...string) *route.Service {
	out := *svc
	out.Ports = slices.Clone(svc.Ports)
	out.Ports[0].Cluster = nil
	for _, b := range backends {
		out.Ports[0].Cluster = append(out.Ports[0].Cluster, netip.MustParseAddrPort(b))
	}
	return &out
}

// destinations returns the destinations of the Service with their weights.
func destinations(t *testing.T, k Kernel) string {
	t.Helper()
	lists, err := k.Servers.Destinations(t.Context(), ipvs.Server{
		Addr: netip.MustParseAddr("10.96.0.1"), Protocol: uint8(cluster.TCP), Port: 80,
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, d := range lists[0] {
		all = append(all, fmt.Sprint(d.At, " ", d.Weight))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// listen answers each line with the address of the listener.
func listen(t *testing.T, netns int, at string) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		kerneltest.Serve(t, l, func(c net.Conn) {
			for lines := bufio.NewScanner(c); lines.Scan(); {
				_, _ = fmt.Fprintln(c, at)
			}
			_ = c.Close()
		})
		return nil
	})
}

// dial connects to the Service.
func dial(t *testing.T, netns int) net.Conn {
	t.Helper()
	var c net.Conn
	kerneltest.Do(t, netns, func() (err error) {
		c, err = net.DialTimeout("tcp", "10.96.0.1:80", 30*time.Second)
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask returns the address of the listener that a connection reaches.
func ask(t *testing.T, c net.Conn) string {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(c, "who"); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}
