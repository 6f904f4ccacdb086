package nodeport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/listentest"
)

// fake is a node on a host in memory, in fake time.
type fake struct {
	*node
	host *listentest.Host
}

// onFake runs a story.
func onFake(t *testing.T, ports route.NodePortOptions, story func(fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := fake{host: listentest.New(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"))}
		f.node = start(t, f.host.Listen, ports)
		f.local("127.0.0.1", "::1", "192.0.2.1", "2001:db8::1")
		story(f)
		f.stop()
		if open := f.host.Open(); len(open) > 0 {
			t.Errorf("left open: %v", open)
		}
	})
}

// expect compares the ports that are open, and the answers at them in short.
func (f fake) expect(what string, want ...string) {
	f.t.Helper()
	synctest.Wait()
	var got []string
	for _, at := range f.host.Open() {
		c, err := f.host.Dial(f.t.Context(), at.String())
		if err != nil {
			f.t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s: %s", at, brief(exchange(c, "GET /"))))
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		f.t.Errorf("%s: got\n%s\nwant\n%s", what, g, w)
	}
}

// expectTold compares what was told of failures since.
func (f fake) expectTold(want ...string) {
	f.t.Helper()
	synctest.Wait()
	var got []string
	for len(f.told) > 0 {
		got = append(got, (<-f.told).Error())
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		f.t.Errorf("told\n%s\nwant\n%s", g, w)
	}
}

func every() route.NodePortOptions { return route.NodePortOptions{} }

func TestPortsFollowServices(t *testing.T) {
	onFake(t, every(), func(f fake) {
		f.expect("nothing yet")
		f.apply(service("web", 1000, "10.0.0.1/rs", "10.0.0.2/rs", "fd01::1/rs"), only(route.IPv6, service("six", 1001)))
		f.expect("two services", "0.0.0.0:1000: 200 2 web", "[::]:1000: 200 1 web", "[::]:1001: 503 0 six")
		f.apply(service("web", 1000, "10.0.0.1/rs", "10.0.0.2/st", "fd01::1/rs"))
		f.expect("one endpoint terminates", "0.0.0.0:1000: 200 1 web", "[::]:1000: 200 1 web", "[::]:1001: 503 0 six")
		f.apply(only(route.IPv4, service("web", 1000, "10.0.0.1/rs")), gone("six"))
		f.expect("a family goes, and a service", "0.0.0.0:1000: 200 1 web")
		f.apply(only(route.IPv4, service("web", 1002, "10.0.0.1/rs")))
		f.expect("another port", "0.0.0.0:1002: 200 1 web")
		f.apply(only(route.IPv4, service("web", 0, "10.0.0.1/rs")))
		f.expect("none")
		f.apply(gone("web"), gone("nobody"))
		f.expect("none still")
		f.expectTold()
	})
}

// Ports pass from one Service to another in one change, whatever their order.
func TestServicesExchangePorts(t *testing.T) {
	onFake(t, every(), func(f fake) {
		one := func(name string, port uint16) cluster.State {
			return only(route.IPv4, service(name, port, "10.0.0.1/rs"))
		}
		f.apply(one("a", 1), one("b", 2), one("c", 3))
		f.apply(one("a", 2), one("b", 1), gone("c"), one("d", 3))
		f.expect("exchanged", "0.0.0.0:1: 200 1 b", "0.0.0.0:2: 200 1 a", "0.0.0.0:3: 200 1 d")
		f.expectTold()
		if n := len(f.Failing()); n != 0 {
			t.Errorf("%d failures", n)
		}
	})
}

func TestBusyPort(t *testing.T) {
	t.Run("S-267 the port is taken: told once, retried, others unaffected", func(t *testing.T) {
		onFake(t, every(), func(f fake) {
			other, err := f.host.Listen(f.t.Context(), "tcp4", netip.MustParseAddrPort("192.0.2.1:1000"))
			if err != nil {
				t.Fatal(err)
			}
			f.apply(only(route.IPv4, service("web", 1000, "10.0.0.1/rs")), only(route.IPv4, service("z", 1001)))
			synctest.Wait()
			failure := <-f.told
			want := Failure{cluster.Name{Namespace: "ns", Name: "web"}, netip.MustParseAddrPort("0.0.0.0:1000"), failure.Err}
			if failure != want || !errors.Is(failure.Err, syscall.EADDRINUSE) {
				t.Errorf("told %+v, want %+v", failure, want)
			}
			if n := len(f.Failing()); n != 1 {
				t.Errorf("%d failures, want 1", n)
			}
			time.Sleep(12 * time.Second)
			f.expectTold()
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3*time.Second - 1)
			f.expect("just before the third retry", "0.0.0.0:1001: 503 0 z")
			time.Sleep(time.Nanosecond)
			f.expect("after it", "0.0.0.0:1000: 200 1 web", "0.0.0.0:1001: 503 0 z")
			if len(f.opened) != 1 || <-f.opened != "ns/web 1000" {
				t.Error("that it works now is not told once")
			}
			if n := len(f.Failing()); n != 0 {
				t.Errorf("%d failures, want none", n)
			}
		})
	})
	t.Run("S-267 a change makes another attempt", func(t *testing.T) {
		onFake(t, every(), func(f fake) {
			other, err := f.host.Listen(f.t.Context(), "tcp4", netip.MustParseAddrPort("192.0.2.1:1000"))
			if err != nil {
				t.Fatal(err)
			}
			f.apply(only(route.IPv4, service("b", 1000, "10.0.0.1/rs")))
			f.expectTold("cannot open the health check port of Service ns/b at 0.0.0.0:1000: listen tcp4 0.0.0.0:1000: " +
				"address already in use")
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			f.apply(only(route.IPv4, service("c", 1001)))
			f.expect("at once", "0.0.0.0:1000: 200 1 b", "0.0.0.0:1001: 503 0 c")
			<-f.opened
		})
	})
}

// Of Services that ask for the same port only the owner of the claim listens: the
// others cost no attempts, however many they are.
func TestOnePortOfManyServices(t *testing.T) {
	onFake(t, every(), func(f fake) {
		f.conflicts(1, only(route.IPv4, service("a", 1000)), only(route.IPv4, service("b", 1000, "10.0.0.1/rs")))
		f.expect("the first has it", "0.0.0.0:1000: 503 0 a")
		f.conflicts(0, gone("a"))
		f.expect("the next has it at once", "0.0.0.0:1000: 200 1 b")
		f.conflicts(1, only(route.IPv4, service("a", 1000)))
		f.expect("the first has it again", "0.0.0.0:1000: 503 0 a")
		var many []cluster.State
		for i := range 1000 {
			many = append(many, only(route.IPv4, service(fmt.Sprintf("c%03d", i), 1000)))
		}
		f.conflicts(1000, many...)
		f.expect("as before", "0.0.0.0:1000: 503 0 a")
		f.expectTold()
		if n := len(f.Failing()); n != 0 {
			t.Errorf("%d failures, want none: nobody else has the port", n)
		}
	})
}

// More Services than there are file descriptors for: those that came first by
// name are served, the others are told, and follow when there is room.
func TestMoreServicesThanListeners(t *testing.T) {
	onFake(t, every(), func(f fake) {
		synctest.Wait()
		f.opt.MaxListeners = 2
		f.apply(only(route.IPv4, service("a", 1000)), only(route.IPv4, service("b", 1001)),
			only(route.IPv4, service("c", 1002)))
		f.expect("two of three", "0.0.0.0:1000: 503 0 a", "0.0.0.0:1001: 503 0 b")
		f.expectTold("cannot open the health check port of Service ns/c at 0.0.0.0:1002: " +
			"2 health check node ports are open, " +
			"and the limit of file descriptors of this process (RLIMIT_NOFILE) has room for no more; raise it, " +
			"for example with LimitNOFILE= in the systemd unit")
		if n := len(f.Failing()); n != 1 {
			t.Errorf("%d failures, want 1", n)
		}
		f.apply(gone("a"))
		f.expect("room again", "0.0.0.0:1001: 503 0 b", "0.0.0.0:1002: 503 0 c")
		f.expectTold()
	})
}

func TestAddresses(t *testing.T) {
	ports := route.NodePortOptions{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.0/8")},
	}
	t.Run("L-7 listeners follow the addresses of the node", func(t *testing.T) {
		onFake(t, ports, func(f fake) {
			f.apply(service("web", 1000, "10.0.0.1/rs"))
			f.expect("addresses of one family are named", "127.0.0.1:1000: 200 1 web", "192.0.2.1:1000: 200 1 web",
				"[::]:1000: 503 0 web")
			f.host.SetAddrs(netip.MustParseAddr("192.0.2.2"))
			f.local("127.0.0.1", "192.0.2.2")
			f.expect("another address", "127.0.0.1:1000: 200 1 web", "192.0.2.2:1000: 200 1 web", "[::]:1000: 503 0 web")
			f.local("127.0.0.1", "192.0.2.2", "192.0.2.3")
			f.expectTold("cannot open the health check port of Service ns/web at 192.0.2.3:1000: " +
				"listen tcp4 192.0.2.3:1000: cannot assign requested address")
			f.expect("one that is not ready yet", "127.0.0.1:1000: 200 1 web", "192.0.2.2:1000: 200 1 web",
				"[::]:1000: 503 0 web")
			f.local("10.9.9.9")
			f.expect("none that is named", "[::]:1000: 503 0 web")
			if n := len(f.Failing()); n != 0 {
				t.Errorf("%d failures, want none", n)
			}
		})
	})
}

func TestAListenerThatBreaksIsOpenedAgain(t *testing.T) {
	onFake(t, every(), func(f fake) {
		f.apply(only(route.IPv4, service("web", 1000)))
		synctest.Wait()
		f.host.Break(netip.MustParseAddrPort("0.0.0.0:1000"), errors.New("out of order"))
		f.expect("broken")
		time.Sleep(retryPeriod)
		f.expect("opened again", "0.0.0.0:1000: 503 0 web")
		f.expectTold()
	})
}

// A change costs what it changes, also with thousands of Services.
func TestOneChangeTouchesOnePort(t *testing.T) {
	onFake(t, every(), func(f fake) {
		var all []cluster.State
		for i := range uint16(3000) {
			all = append(all, only(route.IPv4, service(fmt.Sprint(i), 1000+i)))
		}
		f.apply(all...)
		synctest.Wait()
		if n := f.host.Opens(); n != 3000 {
			t.Errorf("%d ports were opened", n)
		}
		f.apply(only(route.IPv4, service("7", 1007, "10.0.0.1/rs")))
		f.apply(only(route.IPv4, service("8", 900)))
		synctest.Wait()
		if n := f.host.Opens(); n != 3001 {
			t.Errorf("%d more ports were opened, want 1", n-3000)
		}
	})
}

// A write that is overdue makes every answer a refusal. That the node leaves does not, and no other server is needed.
func TestAnOverdueWriteFailsHealthChecks(t *testing.T) {
	t.Run("S-261 L-17 writes fail, and nobody runs the health server", func(t *testing.T) {
		onFake(t, every(), func(f fake) {
			store := cluster.NewStore()
			store.Feed()()
			tracker := health.New(health.Options{Store: store, SyncPeriod: 30 * time.Second})
			if err := tracker.Run(f.t.Context()); err != nil {
				t.Fatal(err)
			}
			f.live = tracker.Serving
			f.apply(only(route.IPv4, service("web", 1000, "10.0.0.1/rs")))
			tracker.Observe(proxy.Sync{})
			f.expect("all is well", "0.0.0.0:1000: 200 1 web")
			store.SetNode(&cluster.Node{Name: "A", Leaving: true})
			tracker.Observe(proxy.Sync{Began: time.Now(), Err: errors.New("no")})
			time.Sleep(time.Minute - 1)
			f.expect("a write fails for almost a minute", "0.0.0.0:1000: 200 1 web")
			time.Sleep(time.Nanosecond)
			f.expect("for a minute", "0.0.0.0:1000: 503 1 web")
			store.Take()
			store.MarkWritten()
			tracker.Observe(proxy.Sync{})
			f.expect("S-265 S-256 it goes well, on a node that leaves", "0.0.0.0:1000: 200 1 web")
		})
	})
}

// Services that nobody asks about wake nobody.
func TestOtherServicesAreLeftAlone(t *testing.T) {
	f := New(Options{})
	table := &route.Table{}
	plain := &route.Service{Name: cluster.Name{Namespace: "ns", Name: "plain"}}
	f.Applied(route.Change{
		Table: table, Touched: []route.Touch{{Name: plain.Name, New: plain}, {Name: plain.Name, Old: plain}},
	})
	if len(f.changed) != 0 {
		t.Errorf("noted %v", f.changed)
	}
}

// What the run of the program before answered is answered until the first change
// is applied; Services that are gone then have no port any more.
func TestAnswersOfTheRunBefore(t *testing.T) {
	host := listentest.New(netip.MustParseAddr("192.0.2.1"))
	one := cluster.Name{Namespace: "ns", Name: "one"}
	f := New(Options{
		Listen: host.Listen, Live: func() bool { return true },
		Before: Before{NodePorts: route.NodePorts{All4: true}, Services: []Answer{
			{one, &route.Health{Port: 1001, Local: []route.LocalCount{{Family: route.IPv4, Endpoints: 2}}}},
			{
				cluster.Name{Namespace: "ns", Name: "gone"},
				&route.Health{Port: 1002, Local: []route.LocalCount{{Family: route.IPv4}}},
			},
		}},
	})
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	running.Go(func() { _ = f.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	open := func(want ...string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			got := fmt.Sprint(host.Open())
			if got == fmt.Sprint(want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("open are %s, want %s", got, want)
			}
		}
	}
	open("0.0.0.0:1001", "0.0.0.0:1002")
	svc := &route.Service{
		Name: one, Health: &route.Health{Port: 1001, Local: []route.LocalCount{{Family: route.IPv4, Endpoints: 1}}},
	}
	table := &route.Table{
		Services: map[cluster.Name]*route.Service{one: svc}, Host: route.Host{NodePorts: route.NodePorts{All4: true}},
	}
	f.Applied(route.Change{Table: table, Touched: []route.Touch{{Name: one, New: svc}}})
	open("0.0.0.0:1001")
}
