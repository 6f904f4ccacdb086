package userspace_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// loopbackRun is a run of the program with the plane at loopback addresses.
type loopbackRun struct {
	*plane.Opened
	stop func()
	log  *bytes.Buffer // complete once it has stopped
}

// begin starts a run with what the run before has handed over.
func begin(t *testing.T, ns int, in plane.Inherited) *loopbackRun {
	t.Helper()
	var log bytes.Buffer
	opened, err := userspace.Loopback().Open(t.Context(), plane.Setup{
		Config: &config.Config{Mode: "userspace", Userspace: config.Userspace{
			Bind: config.BindLoopback, FirstPort: 1024, LastPort: 65535, UDPTimeout: time.Minute, DrainTimeout: time.Minute,
		}},
		NetNS: ns, Families: []route.Family{route.IPv4}, Log: slog.New(slog.NewTextHandler(&log, nil)), Inherited: in,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &loopbackRun{opened, runUntilStopped(t, opened.Parts[0].Run), &log}
}

// runUntilStopped calls a function with a context that ends when the test calls stop, or ends.
func runUntilStopped(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// compare returns the first plan for a Service with an endpoint.
func (r *loopbackRun) compare(t *testing.T, backend netip.AddrPort) plane.Plan {
	t.Helper()
	return r.plan(t, cluster.TCP, backend)
}

// plan is compare for a port with another protocol.
func (r *loopbackRun) plan(t *testing.T, protocol cluster.Protocol, backend netip.AddrPort) plane.Plan {
	t.Helper()
	s := cluster.NewStore()
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: "web"}, ClusterIPs: planetest.Addrs("172.30.0.41"),
		Ports: []cluster.ServicePort{{Protocol: protocol, Port: 80}},
	}
	s.SetService(svc)
	s.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "shop", Name: "web-4"}, Service: svc.Name,
		Ports:     []cluster.SlicePort{{Protocol: protocol, Port: backend.Port()}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint(backend.Addr().String(), "a")},
	})
	if err := r.Plane.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r.Plane.Plan(planetest.Compile(s, route.Options{Families: []route.Family{route.IPv4}}))
}

// end ends a run and returns what the next one inherits.
func (r *loopbackRun) end(t *testing.T) plane.Inherited {
	t.Helper()
	finish := r.HandOver()
	r.stop()
	in, err := finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// dial connects to the Service.
func dial(t *testing.T, ns int) (c net.Conn, err error) {
	t.Helper()
	kerneltest.Do(t, ns, func() error {
		c, err = net.DialTimeout("tcp", "127.0.0.1:8080", 30*time.Second)
		return nil
	})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// At the end of a run its connections are reset, and its sockets stay open: clients wait for the first plan of the
// next run.
func TestAPlaneInheritsSockets(t *testing.T) {
	ns := kerneltest.Namespace(t)
	backend := echoServer(t, ns)
	r := begin(t, ns, plane.Inherited{})
	first := r.compare(t, backend)
	if err := first.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	open := connect(t, ns)
	checkEcho(t, open, "before")
	in := r.end(t)
	if err := first.Apply(t.Context()); err == nil {
		t.Error("a run that has handed its sockets over writes")
	}
	_ = open.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := open.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection that was open ends with %v, want a reset", err)
	}
	for range 3 {
		waits, err := dial(t, ns)
		if err != nil {
			t.Fatalf("between two runs: %v", err)
		}
		r = begin(t, ns, in)
		if err := r.compare(t, backend).Apply(t.Context()); err != nil {
			t.Error(err)
		}
		checkEcho(t, waits, "a client that connected between two runs")
		in = r.end(t)
	}
	closeSockets(in)
}

// An inherited socket that the first plan does not want is closed when that plan has been written.
func TestInheritedSocketsThatAreNotWantedAreClosed(t *testing.T) {
	ns := kerneltest.Namespace(t)
	backend := echoServer(t, ns)
	r := begin(t, ns, plane.Inherited{})
	if err := r.compare(t, backend).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	in := r.end(t)
	if len(in.Sockets) != 1 {
		t.Fatalf("%d sockets are handed over, want 1", len(in.Sockets))
	}
	r = begin(t, ns, in)
	if _, err := dial(t, ns); err != nil {
		t.Errorf("before the first plan: %v", err)
	}
	if err := r.plan(t, cluster.UDP, backend).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, ns); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after a plan without the port: %v, want a refusal", err)
	}
}

// A run that has written nothing hands nothing over: rules may lead to sockets of an earlier run.
func TestARunWithoutAPlanHandsNothingOver(t *testing.T) {
	if in := begin(t, kerneltest.Namespace(t), plane.Inherited{}).end(t); len(in.Sockets) > 0 {
		t.Errorf("it hands over %v", in.Sockets)
	}
}

func closeSockets(in plane.Inherited) {
	for _, f := range in.Sockets {
		_ = f.Close()
	}
}

// echoServer returns the address of a server that returns what it reads.
func echoServer(t *testing.T, ns int) netip.AddrPort {
	t.Helper()
	var l net.Listener
	kerneltest.Do(t, ns, func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	kerneltest.Serve(t, l, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

func checkEcho(t *testing.T, c net.Conn, when string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	_, _ = c.Write([]byte("x"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}
