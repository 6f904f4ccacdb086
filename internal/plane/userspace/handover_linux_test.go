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
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/machine"
)

// loopbackRun is a run of the program with the plane at loopback addresses.
type loopbackRun struct {
	*plane.Opened
	stop func()
	log  *bytes.Buffer // complete once it has stopped
}

// begin starts a run with the first port of the range, and what the run before has left.
func begin(t *testing.T, ns int, first uint16, in *plane.Inherited) *loopbackRun {
	t.Helper()
	var log bytes.Buffer
	opened, err := userspace.Loopback().Open(t.Context(), plane.Setup{
		Config: &config.Config{Mode: "userspace", Userspace: config.Userspace{
			Bind: config.BindLoopback, FirstPort: first, LastPort: 65535, UDPTimeout: time.Minute, DrainTimeout: drainTime(),
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

// handOver ends a run and returns the state that the next one inherits.
func handOver(t *testing.T, begin func() func(context.Context) (*plane.Inherited, error), stop func()) *plane.Inherited {
	t.Helper()
	finish := begin()
	stop()
	in, err := finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// compare returns the first plan for a Service with an endpoint.
func (r *loopbackRun) compare(t *testing.T, backend netip.AddrPort) plane.Plan {
	t.Helper()
	s := cluster.NewStore()
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: "web"}, ClusterIPs: planetest.Addrs("172.30.0.41"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	}
	s.SetService(svc)
	s.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "shop", Name: "web-4"}, Service: svc.Name,
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: backend.Port()}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint(backend.Addr().String(), "a")},
	})
	if err := r.Plane.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r.Plane.Plan(planetest.Compile(s, route.Options{Families: []route.Family{route.IPv4}}))
}

func (r *loopbackRun) end(t *testing.T) *plane.Inherited {
	t.Helper()
	return handOver(t, r.HandOver, r.stop)
}

// The next run finds the sockets open and has nothing to write. With another range of ports it opens
// new ones, and connections to the old ones drain.
func TestAPlaneInheritsSockets(t *testing.T) {
	ns := kerneltest.Namespace(t)
	backend := echoServer(t, ns)
	r := begin(t, ns, 1024, nil)
	first := r.compare(t, backend)
	if err := first.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := connect(t, ns)
	works := func(when string) { t.Helper(); checkEcho(t, c, when) }
	works("before")
	in := r.end(t)
	if err := first.Apply(t.Context()); err == nil {
		t.Error("a run that has handed its sockets over writes")
	}

	r = begin(t, ns, 1024, in)
	works("before the first plan of the next run")
	plan := r.compare(t, backend)
	if plan.Steps() != 0 || plan.Kept() != 2 {
		t.Errorf("the first plan of the next run keeps %d and has the steps\n%s", plan.Kept(), plan)
	}
	if err := plan.Apply(t.Context()); err != nil {
		t.Error(err)
	}
	if s := r.Sockets(); len(s) != 1 || s[0].Open != 1 {
		t.Errorf("sockets %+v", s)
	}
	in = r.end(t)

	begun := time.Now()
	r = begin(t, ns, 30000, in)
	works("after a change of the range")
	if plan := r.compare(t, backend); plan.Steps() != 1 {
		t.Errorf("with another range the first plan is\n%s", plan)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the connection ends with %v", err)
	}
	if took := time.Since(begun); took < drainTime()*9/10 || took > 3*drainTime() {
		t.Errorf("it has ended after %v, want %v", took, drainTime())
	}
}

// After a change to another mode a connection goes on for longer than connections drain, in that run and in the
// next ones, but no client is accepted. When the node returns to this mode, the connection goes on there.
func TestConnectionsGoOnInAnotherMode(t *testing.T) {
	ns := kerneltest.Namespace(t)
	backend := echoServer(t, ns)
	r := begin(t, ns, 1024, nil)
	if err := r.compare(t, backend).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	dial := func() (c net.Conn, err error) {
		kerneltest.Do(t, ns, func() error {
			c, err = net.DialTimeout("tcp", "127.0.0.1:8080", time.Second)
			return nil
		})
		return c, err
	}
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	in := r.end(t)

	replaced := make(chan struct{})
	first := goOn(t, ns, in, replaced)
	next, err := dial()
	if err != nil {
		t.Errorf("before other rules are there: %v", err)
	} else {
		checkEcho(t, next, "a connection that began after the change")
		_ = next.Close()
	}
	close(replaced)
	eventually(t, func() bool { c, err := dial(); closeIf(c); return errors.Is(err, syscall.ECONNREFUSED) })
	time.Sleep(drainTime() * 3 / 2)
	checkEcho(t, c, "in another mode")
	in = first.end(t)

	second := goOn(t, ns, in, replaced)
	checkEcho(t, c, "in the next run")
	if n := second.Open(); n != 1 {
		t.Errorf("%d connections are open, want 1", n)
	}
	if c, err := dial(); err == nil {
		closeIf(c)
		t.Error("the next run listens again")
	}
	in = second.end(t)

	r = begin(t, ns, 1024, in)
	if plan := r.compare(t, backend); plan.Steps() != 0 {
		t.Errorf("back in this mode the first plan is\n%s", plan)
	}
	time.Sleep(drainTime() * 3 / 2)
	checkEcho(t, c, "back in this mode")
	again, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	closeIf(again)
	in = r.end(t)

	third := goOn(t, ns, in, replaced)
	_ = c.Close()
	select {
	case <-third.Over:
	case <-time.After(30 * time.Second):
		t.Errorf("%d connections are open", third.Open())
	}
	if in := third.end(t); in != nil {
		t.Errorf("a run without connections hands over %s", in.State)
	}
}

// If another mode cannot go on with the connections, as there are no file descriptors, they are reset, and do not hang.
func TestConnectionsThatCannotGoOnAreReset(t *testing.T) {
	ns := kerneltest.Namespace(t)
	backend := echoServer(t, ns)
	r := begin(t, ns, 1024, nil)
	if err := r.compare(t, backend).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := connect(t, ns)
	checkEcho(t, c, "before the change")
	in := r.end(t)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := userspace.Loopback().GoOn(plane.Setup{Config: &config.Config{}, Log: slog.New(slog.DiscardHandler), Inherited: in}, nil)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("got %v, want EMFILE", err)
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client got %v, want a reset", err)
	}
}

// restRun is a run in another mode.
type restRun struct {
	*plane.Rest
	stop func()
}

func goOn(t *testing.T, ns int, in *plane.Inherited, replaced chan struct{}) *restRun {
	t.Helper()
	rest, err := userspace.Loopback().GoOn(plane.Setup{
		Config: &config.Config{Mode: "nftables", Userspace: config.Userspace{UDPTimeout: time.Minute, DrainTimeout: drainTime()}},
		NetNS:  ns, Log: slog.New(slog.DiscardHandler), Inherited: in,
	}, replaced)
	if err != nil {
		t.Fatal(err)
	}
	return &restRun{rest, runUntilStopped(t, rest.Run)}
}

func (r *restRun) end(t *testing.T) *plane.Inherited {
	t.Helper()
	return handOver(t, r.HandOver, r.stop)
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

// drainTime is how long connections drain: longer than a machine needs for some steps of a test.
func drainTime() time.Duration { return machine.Scale(time.Second) }

func checkEcho(t *testing.T, c net.Conn, when string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	_, _ = c.Write([]byte("x"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}

func closeIf(c net.Conn) {
	if c != nil {
		_ = c.Close()
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not hold after 30 s")
		}
	}
}
