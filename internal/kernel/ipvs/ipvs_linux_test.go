package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func server(protocol uint8, text string) Server {
	at := netip.MustParseAddrPort(text)
	return Server{Addr: at.Addr(), Port: at.Port(), Protocol: protocol}
}

// present reports whether this kernel has IPVS.
func present(t *testing.T) bool {
	t.Helper()
	_, err := New(0).family(t.Context())
	if err != nil && !errors.Is(err, errAbsent) {
		t.Fatal(err)
	}
	return err == nil
}

func TestAKernelWithoutIPVSHasNoServers(t *testing.T) {
	if present(t) {
		t.Skip("this kernel has IPVS")
	}
	table := New(kerneltest.Namespace(t))
	if servers, err := table.Servers(t.Context()); err != nil || servers != nil {
		t.Errorf("servers: %v, %v", servers, err)
	}
	if err := table.Delete(t.Context(), server(unix.IPPROTO_TCP, "10.96.0.1:443")); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// TestServersAreListedAndDeleted ran in user-mode Linux 6.1, which has IPVS.
func TestServersAreListedAndDeleted(t *testing.T) {
	if !present(t) {
		t.Skip("this kernel has no IPVS")
	}
	netns := kerneltest.Namespace(t)
	run := func(argv ...string) {
		t.Helper()
		kerneltest.Do(t, netns, func() error {
			if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", argv, err, out)
			}
			return nil
		})
	}
	run("ipvsadm", "-A", "-t", "127.0.0.2:80", "-s", "rr")
	run("ipvsadm", "-a", "-t", "127.0.0.2:80", "-r", "127.0.0.1:8080", "-m")
	run("ipvsadm", "-A", "-u", "10.96.0.10:53", "-s", "rr")
	run("ipvsadm", "-A", "-t", "[fd00::1]:443", "-s", "rr")
	run("ipvsadm", "-A", "-f", "7", "-s", "rr")
	table := New(netns)
	check := func(want ...Server) {
		t.Helper()
		got, err := table.Servers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(got, func(a, b Server) int { return cmp.Compare(a.String(), b.String()) })
		if diff := gocmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("servers (-want +got):\n%s", diff)
		}
	}
	mark := Server{Addr: netip.IPv4Unspecified(), Mark: 7}
	tcp4, tcp6 := server(unix.IPPROTO_TCP, "127.0.0.2:80"), server(unix.IPPROTO_TCP, "[fd00::1]:443")
	udp := server(unix.IPPROTO_UDP, "10.96.0.10:53")
	check(mark, tcp4, tcp6, udp)

	// A connection counts while it is open, and for some time after it is closed.
	var ends []io.Closer
	kerneltest.Do(t, netns, func() error {
		l, err := net.Listen("tcp", "127.0.0.1:8080")
		if err != nil {
			return err
		}
		c, err := net.Dial("tcp", "127.0.0.2:80")
		ends = append(ends, l, c)
		return err
	})
	for s, want := range map[Server]int{tcp4: 1, tcp6: 0, udp: 0, mark: 0} {
		if n, err := table.Connections(t.Context(), s); err != nil || n != want {
			t.Errorf("%s has %d connections, %v; want %d", s, n, err, want)
		}
	}
	for _, e := range ends {
		_ = e.Close()
	}

	for range 2 { // the second deletion has no effect
		for _, s := range []Server{mark, tcp6, udp} {
			if err := table.Delete(t.Context(), s); err != nil {
				t.Error(err)
			}
		}
	}
	check(tcp4)
}

func TestServerString(t *testing.T) {
	for want, s := range map[string]Server{
		"tcp 10.96.0.1:443":     server(unix.IPPROTO_TCP, "10.96.0.1:443"),
		"udp [fd00::1]:53":      server(unix.IPPROTO_UDP, "[fd00::1]:53"),
		"sctp 10.96.0.1:5":      server(unix.IPPROTO_SCTP, "10.96.0.1:5"),
		"protocol 50 1.2.3.4:0": server(50, "1.2.3.4:0"),
		"mark 7":                {Mark: 7},
	} {
		if got := s.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The kernel reports a server with the attributes that identify it in a request.
func TestServersAreEncodedAndDecoded(t *testing.T) {
	for _, s := range []Server{
		server(unix.IPPROTO_TCP, "10.96.0.1:443"), server(unix.IPPROTO_UDP, "[fd00::1]:53"),
		{Addr: netip.IPv4Unspecified(), Mark: 7},
		{Addr: netip.IPv6Unspecified(), Mark: 1 << 31},
	} {
		ae := netlink.NewAttributeEncoder()
		s.encode(ae)
		b, err := ae.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeServer(netlink.Message{Data: append([]byte{1, 1, 0, 0}, b...)})
		if diff := gocmp.Diff(s, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
			t.Errorf("%s (-want +got): %v\n%s", s, err, diff)
		}
	}
}

func TestMalformedRepliesAreErrors(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty": nil, "only a header": {1, 1, 0, 0}, "truncated": {1, 1, 0, 0, 9, 0, 1, 0}, "no family": {1, 1, 0, 0, 4, 0, 1, 0},
	} {
		if s, err := decodeServer(netlink.Message{Data: b}); err == nil {
			t.Errorf("%s: decoded as %s", name, s)
		}
	}
	if n, err := decodeConnections(netlink.Message{Data: []byte{1}}); err == nil || !strings.Contains(err.Error(), "too short") {
		t.Errorf("a short reply is decoded as %d connections, %v", n, err)
	}
}
