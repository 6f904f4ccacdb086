package nodeport

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// real is a node in a namespace that has 192.168.0.2 as well.
type real struct {
	*node
	ns int
}

func startReal(t *testing.T, ports route.NodePortOptions) real {
	t.Helper()
	r := real{ns: kerneltest.Namespace(t)}
	r.address(t, "192.168.0.2/24")
	r.node = start(t, listen.Opener{NetNS: r.ns}.Listen, ports)
	r.local("127.0.0.1", "::1", "192.168.0.2")
	return r
}

func (r real) address(t *testing.T, cidr string) {
	t.Helper()
	kerneltest.Do(t, r.ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, a)
	})
}

// ask returns the whole answer, or "refused".
func (r real) ask(t *testing.T, at, request string) string {
	t.Helper()
	answer := ""
	kerneltest.Do(t, r.ns, func() error {
		c, err := net.Dial("tcp", at)
		if err != nil {
			answer = "refused"
			return nil
		}
		answer, err = exchange(c, request)
		return err
	})
	return answer
}

// expect waits for an answer.
func (r real) expect(t *testing.T, at, want string) {
	t.Helper()
	got := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got = r.ask(t, at, "GET /"); got == want {
			return
		}
	}
	t.Errorf("%s: got\n%s\nwant\n%s", at, got, want)
}

func TestAnswers(t *testing.T) {
	r := startReal(t, route.NodePortOptions{})
	const v4, v6 = "192.168.0.2:30500", "[::1]:30500"
	t.Run("S-264 no local endpoint", func(t *testing.T) {
		r.apply(service("web", 30500))
		r.expect(t, v4, whole(unavailable, "web", 0, "true"))
		r.expect(t, v6, whole(unavailable, "web", 0, "true"))
	})
	t.Run("S-263 two local ready endpoints on two ports each, of one family", func(t *testing.T) {
		r.apply(service("web", 30500, "10.0.0.1/rs", "10.0.0.2/rs"))
		r.expect(t, v4, whole(fine, "web", 2, "true"))
		r.expect(t, v6, whole(unavailable, "web", 0, "true"))
	})
	t.Run("S-263 any path and method", func(t *testing.T) {
		want := whole(fine, "web", 2, "true")
		for _, request := range []string{"GET /anything", "POST /", "DELETE /a//b/../c?d=e", "OPTIONS *", "PUT /healthz"} {
			if got := r.ask(t, v4, request); got != want {
				t.Errorf("%s: got\n%s\nwant\n%s", request, got, want)
			}
		}
		head, _, _ := strings.Cut(want, "{")
		if got := r.ask(t, v4, "HEAD /"); got != head {
			t.Errorf("HEAD: got\n%s\nwant\n%s", got, head)
		}
	})
	t.Run("S-261 the proxy is not healthy", func(t *testing.T) {
		r.dead.Store(true)
		r.expect(t, v4, whole(unavailable, "web", 2, "false"))
		r.dead.Store(false)
		r.expect(t, v4, whole(fine, "web", 2, "true"))
	})
	t.Run("S-265 the node is about to leave: that does not count", func(t *testing.T) {
		facts := &cluster.Facts{Node: &cluster.Node{Name: "A", Leaving: true}}
		change, _ := r.compiler.Compile(cluster.Delta{Facts: facts})
		r.Applied(change)
		r.apply(service("web", 30500, "10.0.0.1/rs"))
		r.expect(t, v4, whole(fine, "web", 1, "true"))
	})
	t.Run("S-150 only one that terminates and serves", func(t *testing.T) {
		r.apply(service("web", 30500, "10.0.0.1/st"))
		r.expect(t, v4, whole(unavailable, "web", 0, "true"))
	})
	t.Run("another port", func(t *testing.T) {
		r.apply(service("web", 30501, "10.0.0.1/rs"))
		r.expect(t, "192.168.0.2:30501", whole(fine, "web", 1, "true"))
		r.expect(t, v4, "refused")
	})
	t.Run("deleted", func(t *testing.T) {
		r.apply(gone("web"))
		r.expect(t, "192.168.0.2:30501", "refused")
	})
}

func TestNodePortAddresses(t *testing.T) {
	t.Run("S-266 nodePortAddresses 127.0.0.0/8", func(t *testing.T) {
		r := startReal(t, route.NodePortOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
		r.apply(service("web", 30500, "10.0.0.1/rs"))
		r.expect(t, "127.0.0.1:30500", whole(fine, "web", 1, "true"))
		if got := r.ask(t, "192.168.0.2:30500", "GET /"); got != "refused" {
			t.Errorf("another address: got %s", got)
		}
	})
	t.Run("L-7 an address comes later", func(t *testing.T) {
		r := startReal(t, route.NodePortOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}})
		r.apply(service("web", 30500, "10.0.0.1/rs"))
		r.expect(t, "192.168.0.2:30500", whole(fine, "web", 1, "true"))
		r.address(t, "192.168.7.7/24")
		r.local("127.0.0.1", "::1", "192.168.0.2", "192.168.7.7")
		r.expect(t, "192.168.7.7:30500", whole(fine, "web", 1, "true"))
	})
}

func TestAPortOfAnotherProgram(t *testing.T) {
	t.Run("S-267 hcnp port taken by a host process", func(t *testing.T) {
		r := startReal(t, route.NodePortOptions{})
		other, err := listen.Opener{NetNS: r.ns}.Listen(t.Context(), "tcp4", netip.MustParseAddrPort("0.0.0.0:30500"))
		if err != nil {
			t.Fatal(err)
		}
		r.apply(only(route.IPv4, service("web", 30500, "10.0.0.1/rs")), service("other", 30501, "10.0.0.1/rs"))
		want := "cannot open the health check port of Service ns/web at 0.0.0.0:30500: listen tcp4 0.0.0.0:30500: " +
			"bind: address already in use"
		if got := (<-r.told).Error(); got != want {
			t.Errorf("told\n%s\nwant\n%s", got, want)
		}
		r.expect(t, "127.0.0.1:30501", whole(fine, "other", 1, "true"))
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		r.apply(service("other", 30501))
		r.expect(t, "127.0.0.1:30500", whole(fine, "web", 1, "true"))
	})
}

// Two thousand Services, each with its port in a real kernel.
func TestManyServices(t *testing.T) {
	r := startReal(t, route.NodePortOptions{})
	var all []cluster.State
	for i := range uint16(2000) {
		all = append(all, only(route.IPv4, service(fmt.Sprint(i), 20000+i, "10.0.0.1/rs")))
	}
	r.apply(all...)
	r.expect(t, "127.0.0.1:20999", whole(fine, "999", 1, "true")) // the last one, by name
	began := time.Now()
	r.apply(only(route.IPv4, service("5", 20005)))
	r.expect(t, "127.0.0.1:20005", whole(unavailable, "5", 0, "true"))
	t.Logf("one change among 2000 was answered after %v", time.Since(began))
	if n := len(r.Failing()); n != 0 {
		t.Errorf("%d ports are not open", n)
	}
}
