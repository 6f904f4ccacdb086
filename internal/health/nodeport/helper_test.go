package nodeport

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// patience is for a machine that is busy; nothing here takes a second.
const patience = time.Minute

// node is a Follower at work, told what a compiler makes of a cluster.
type node struct {
	*Follower
	t        *testing.T
	compiler *route.Compiler
	dead     atomic.Bool
	live     func() bool // may be nil; set before there is a port
	told     chan Failure
	opened   chan string
	stop     func()
}

type listenFunc = func(context.Context, string, netip.AddrPort) (net.Listener, error)

// start runs a Follower on node A. It ends with the test, or with stop.
func start(t *testing.T, listen listenFunc, ports route.NodePortOptions) *node {
	t.Helper()
	n := &node{
		t: t, compiler: route.NewCompiler(route.Options{NodeName: "A", NodePorts: ports}), told: make(chan Failure, 100),
		opened: make(chan string, 100),
	}
	n.Follower = New(Options{
		Listen: listen,
		Live:   func() bool { return !n.dead.Load() && (n.live == nil || n.live()) },
		Failed: func(f Failure) { n.told <- f },
		Opened: func(s cluster.Name, port uint16) { n.opened <- fmt.Sprint(s, " ", port) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stopped := false
	n.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	}
	t.Cleanup(n.stop)
	return n
}

// apply compiles a change without conflicts and tells the Follower.
func (n *node) apply(services ...cluster.State) {
	n.t.Helper()
	n.conflicts(0, services...)
}

// conflicts compiles a change that makes so many problems and tells the Follower.
func (n *node) conflicts(want int, services ...cluster.State) {
	n.t.Helper()
	change, problems := n.compiler.Compile(cluster.Delta{Services: services})
	if len(problems) != want {
		n.t.Errorf("%d problems, want %d: %v", len(problems), want, problems)
	}
	n.Applied(change)
}

// local changes the addresses of the host.
func (n *node) local(addrs ...string) {
	facts := &cluster.Facts{Node: &cluster.Node{Name: "A"}}
	for _, a := range addrs {
		facts.Local = append(facts.Local, netip.MustParseAddr(a))
	}
	change, _ := n.compiler.Compile(cluster.Delta{Facts: facts})
	n.Applied(change)
}

// service is a load balancer's Service of both families with ports a and b, that asks at the port. Its endpoints are
// addresses on node A, each with the letters of its conditions: "10.0.0.1/rs".
func service(name string, port uint16, endpoints ...string) cluster.State {
	sum := fnv.New32()
	_, _ = sum.Write([]byte(name)) // never fails
	h := sum.Sum(nil)
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "ns", Name: name}, Type: cluster.LoadBalancer, ExternalLocal: true,
		ClusterIPs: []netip.Addr{
			netip.AddrFrom4([4]byte{10, h[1], h[2], h[3]}),
			netip.AddrFrom16([16]byte{0: 0xfd, 12: h[0], h[1], h[2], h[3]}),
		},
		Ports: []cluster.ServicePort{
			{Name: "a", Protocol: cluster.TCP, Port: 80}, {Name: "b", Protocol: cluster.TCP, Port: 81},
		},
		HealthCheckNodePort: port,
	}
	sl := &cluster.Slice{
		Name: svc.Name, Service: svc.Name,
		Ports: []cluster.SlicePort{
			{Name: "a", Protocol: cluster.TCP, Port: 8080}, {Name: "b", Protocol: cluster.TCP, Port: 8081},
		},
	}
	for _, text := range endpoints {
		addr, conditions, _ := strings.Cut(text, "/")
		sl.Endpoints = append(sl.Endpoints, cluster.Endpoint{
			Addr: netip.MustParseAddr(addr), Node: "A", Ready: strings.Contains(conditions, "r"),
			Serving: strings.Contains(conditions, "s"), Terminating: strings.Contains(conditions, "t"),
		})
	}
	return cluster.State{Name: svc.Name, Service: svc, Slices: []*cluster.Slice{sl}}
}

// only leaves the Service one family.
func only(f route.Family, st cluster.State) cluster.State {
	for _, a := range st.Service.ClusterIPs {
		if route.FamilyOf(a) == f {
			st.Service.ClusterIPs = []netip.Addr{a}
		}
	}
	return st
}

// gone is a Service that was deleted.
func gone(name string) cluster.State {
	return cluster.State{Name: cluster.Name{Namespace: "ns", Name: name}}
}

// exchange sends a request over a connection and returns the answer without the date, with \n in place of \r\n.
func exchange(c net.Conn, request string) (string, error) {
	defer func() { _ = c.Close() }()
	if _, err := fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: lb\r\n\r\n", request); err != nil {
		return "", err
	}
	all, err := io.ReadAll(c)
	var lines []string
	for line := range strings.SplitSeq(string(all), "\r\n") {
		if !strings.HasPrefix(line, "Date: ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n"), err
}

// whole is the answer about a Service.
func whole(status, name string, local int, healthy string) string {
	body := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": %q\n\t},\n"+
		"\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %s\n}",
		name, local, healthy)
	return fmt.Sprintf("HTTP/1.1 %s\nContent-Type: application/json\nX-Content-Type-Options: nosniff\n"+
		"X-Load-Balancing-Endpoint-Weight: %d\nContent-Length: %d\nConnection: close\n\n%s", status, local, len(body), body)
}

const (
	fine        = "200 OK"
	unavailable = "503 Service Unavailable"
)

// brief is the answer in short: status, weight and name, or "refused".
func brief(answer string, err error) string {
	if err != nil {
		return "refused"
	}
	status, _, _ := strings.Cut(strings.TrimPrefix(answer, "HTTP/1.1 "), " ")
	after := func(mark, end string) string {
		_, rest, _ := strings.Cut(answer, mark)
		value, _, _ := strings.Cut(rest, end)
		return value
	}
	return status + " " + after("Weight: ", "\n") + " " + after(`"name": "`, `"`)
}
