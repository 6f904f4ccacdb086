package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// realKernel returns the kernel in a new network namespace, which iptables-nft is in use in.
func realKernel(t *testing.T) (k Kernel, netns int) {
	t.Helper()
	if !strings.Contains(t.Name(), "OnTheKernel") {
		t.Fatal("a test that needs the kernel has OnTheKernel in its name, by which test/uml runs it")
	}
	kerneltest.NeedIPVS(t)
	netns = kerneltest.Namespace(t)
	lock := filepath.Join(t.TempDir(), "lock")
	run(t, netns, "env", "XTABLES_LOCKFILE="+lock, "iptables-nft", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	tools, err := iptables.Open(t.Context(), iptables.Options{NetNS: netns, Lock: lock})
	if err != nil {
		t.Fatal(err)
	}
	return KernelOf(netns, tools), netns
}

func run(t *testing.T, netns int, argv ...string) string {
	t.Helper()
	text := ""
	kerneltest.Do(t, netns, func() error {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if text = string(out); err != nil {
			return fmt.Errorf("%v: %w: %s", argv, err, out)
		}
		return nil
	})
	return text
}

func TestModelOnTheKernel(t *testing.T) {
	for seed := range seeds.Of(t, 1) {
		kernel, _ := realKernel(t)
		if err := newSubject(kernel).run(seed, seeds.Rounds(t, planetest.Rounds)); err != nil {
			t.Fatal(err)
		}
	}
}

// Every shape is written, and a comparison with the kernel then has no steps: the kernel
// returns each entry as it was written.
func TestEveryShapeOnTheKernel(t *testing.T) {
	for name, o := range planetest.Detectors() {
		t.Run(name, func(t *testing.T) {
			kernel, _ := realKernel(t)
			change := everyShape(o)
			written(t, newPlane(kernel, route.Families(), 1<<20), change)
			again := newPlane(kernel, route.Families(), 1<<20)
			if err := again.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			plan := again.Plan(change)
			if plan.Steps() != 0 {
				t.Errorf("a comparison has steps:\n%s", plan)
			}
			t.Logf("%d entries are as wanted", plan.Kept())
		})
	}
}

func everyShape(o route.Options) route.Change {
	o.ListLocal = true
	return planetest.Compile(planetest.EveryShape(), o)
}

func written(t *testing.T, p *Plane, change route.Change) {
	t.Helper()
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Plan(change).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A destination with a connection drains: it gets no new connections, and goes when the connection has ended.
func TestADestinationDrainsOnTheKernel(t *testing.T) {
	kernel, netns := realKernel(t)
	change, service := oneService("127.0.0.1:8080", "127.0.0.1:8081")
	prepared(t, netns)
	now := time.Now()
	p := New(kernel, Options{Families: route.Families()[:1], Mark: 0x4000, Now: func() time.Time { return now }})
	written(t, p, change)
	conns := map[string]net.Conn{}
	for _, port := range []string{"8080", "8081"} {
		listen(t, netns, "127.0.0.1:"+port)
	}
	for range 2 {
		c := dial(t, netns)
		conns[ask(t, c)] = c
	}
	if len(conns) != 2 {
		t.Fatalf("the destinations of two connections: %v", conns)
	}
	after := withBackends(service, "127.0.0.1:8081")
	change.Table.Services[service.Name] = after
	if err := p.Plan(route.Change{
		Table: change.Table, Touched: []route.Touch{{Name: service.Name, Old: service, New: after}},
	}).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := destinations(t, kernel); got != "127.0.0.1:8080 0, 127.0.0.1:8081 1" {
		t.Errorf("destinations while one drains: %s", got)
	}
	if got := ask(t, conns["127.0.0.1:8080"]); got != "127.0.0.1:8080" {
		t.Errorf("the connection of the old destination reaches %s", got)
	}
	for range 4 {
		if got := ask(t, dial(t, netns)); got != "127.0.0.1:8081" {
			t.Errorf("a new connection reaches %s", got)
		}
	}

	// After a restart it goes on to drain.
	p = New(kernel, Options{Families: route.Families()[:1], Mark: 0x4000, Now: func() time.Time { return now }})
	written(t, p, change)
	if got := destinations(t, kernel); got != "127.0.0.1:8080 0, 127.0.0.1:8081 1" {
		t.Errorf("destinations after a restart: %s", got)
	}
	due := p.Due()
	if due.IsZero() {
		t.Fatal("nothing is due after a restart")
	}
	later := func() string {
		t.Helper()
		now = now.Add(drainCheck)
		if err := p.Plan(route.Change{Table: change.Table}).Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		return destinations(t, kernel)
	}
	if got := later(); got != "127.0.0.1:8080 0, 127.0.0.1:8081 1" {
		t.Errorf("destinations with an open connection: %s", got)
	}
	conn := conns["127.0.0.1:8080"].(*net.TCPConn)
	if err := errors.Join(conn.SetLinger(0), conn.Close()); err != nil { // IPVS forgets a reset connection after 10 s
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); later() != "127.0.0.1:8081 1"; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("destinations after the connection was reset: %s", destinations(t, kernel))
		}
	}
	if due := p.Due(); !due.IsZero() {
		t.Errorf("due at %v although nothing drains", due)
	}
}

// The poll reports a flush of the virtual servers within its period, and other edits are found by a comparison.
func TestAnEditIsReportedOnTheKernel(t *testing.T) {
	kernel, _ := realKernel(t)
	change, _ := oneService("127.0.0.1:8080")
	p := New(kernel, Options{Families: route.Families()[:1], Mark: 0x4000, Poll: 20 * time.Millisecond})
	written(t, p, change)
	ctx, stop := context.WithCancel(t.Context())
	edits, ended, subscribed := make(chan plane.Edit, 100), make(chan error, 1), make(chan struct{})
	go func() {
		ended <- p.Watch(ctx, func() { close(subscribed) }, func(e plane.Edit) {
			if !e.Possible {
				edits <- e
			}
		})
	}()
	<-subscribed
	time.Sleep(200 * time.Millisecond) // some polls
	if len(edits) != 0 {
		t.Errorf("reported without an edit: %+v", <-edits)
	}
	at := ipvs.Server{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: uint8(cluster.TCP), Port: 80}
	if err := kernel.Servers.Apply(t.Context(), []ipvs.Command{{Op: ipvs.Delete, Server: at}}); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-edits:
		if e.What != "virtual servers" {
			t.Errorf("reported %+v", e)
		}
	case <-time.After(30 * time.Second):
		t.Error("the flush was not reported")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// prepared makes the settings of the host.
func prepared(t *testing.T, netns int) {
	t.Helper()
	setup := plane.Setup{
		NetNS: netns, Families: route.Families(), Config: &config.Config{}, Log: slog.New(slog.DiscardHandler),
	}
	if err := prepare(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
}

// tcpTimeout returns the timeout of established connections.
func tcpTimeout(t *testing.T, netns int) time.Duration {
	t.Helper()
	const getTimeout = 64 + 1024 + 64 + 6     // IP_VS_SO_GET_TIMEOUT (ip_vs.h)
	var seconds struct{ tcp, fin, udp int32 } // struct ip_vs_timeout_user
	kerneltest.Do(t, netns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		size := uint32(unsafe.Sizeof(seconds))
		if _, _, code := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, getTimeout,
			uintptr(unsafe.Pointer(&seconds)), uintptr(unsafe.Pointer(&size)), 0); code != 0 {
			return code
		}
		return nil
	})
	return time.Duration(seconds.tcp) * time.Second
}

// The Kind passes its probe, opens, and writes; an unknown scheduler is an error that names
// it, before anything is written.
func TestTheKindOpensOnTheKernel(t *testing.T) {
	_, netns := realKernel(t)
	support, err := Kind().Probe(t.Context(), netns)
	if err != nil || !support.IPv4 || !support.IPv6 {
		t.Fatalf("probe: %+v, %v", support, err)
	}
	setup := plane.Setup{
		NetNS: netns, Families: support.Families(), Log: slog.New(slog.DiscardHandler),
		Config: &config.Config{
			MasqueradeMark: 0x4000, SyncPeriod: 30 * time.Second,
			Scheduler: "best", IPVS: config.IPVS{TCPTimeout: time.Hour, StrictARP: true},
		},
	}
	want := `the kernel does not have the scheduler "best" (ipvs.scheduler): load it with: modprobe ip_vs_best`
	if _, err := Kind().Open(t.Context(), setup); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("an unknown scheduler: %v", err)
	}
	setup.Config.Scheduler = "mh"
	opened, err := Kind().Open(t.Context(), setup)
	if err != nil {
		t.Fatal(err)
	}
	change, svc := oneService("10.0.0.1:80")
	svc.Ports[0].Scheduler = "mh"
	planetest.Load(t, opened.Plane, change)
	listed, err := ipvs.New(netns).List(t.Context())
	if err != nil || len(listed) != 1 || listed[0].Settings != (ipvs.Settings{Scheduler: "mh", Ports: true}) {
		t.Errorf("virtual servers: %v, %v", listed, err)
	}
	if got := tcpTimeout(t, netns); got != time.Hour {
		t.Errorf("the timeout of TCP is %v", got)
	}
	for key, want := range map[string]string{
		"net.ipv4.vs.conntrack": "1", "net.ipv4.vs.conn_reuse_mode": "1", "net.ipv4.conf.all.arp_ignore": "1",
		"net.ipv4.conf.all.arp_announce": "2",
	} {
		if got := strings.TrimSpace(run(t, netns, "sysctl", "-n", key)); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	for _, part := range opened.Parts {
		if part.Close != nil {
			_ = part.Close()
		}
	}
}
