package ipvs

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func server(protocol uint8, text string) Server {
	at := netip.MustParseAddrPort(text)
	return Server{Addr: at.Addr(), Port: at.Port(), Protocol: protocol}
}

// present reports whether this kernel has IPVS.
func present(t *testing.T) bool {
	t.Helper()
	err := New(0).session(t.Context(), func(*session) error { return nil })
	if err != nil && !errors.Is(err, ErrAbsent) {
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
	if err := table.Load(t.Context()); !errors.Is(err, ErrAbsent) {
		t.Errorf("load: %v", err)
	}
}

func TestServerString(t *testing.T) {
	for want, s := range map[string]Server{
		"tcp 10.96.0.1:443": server(unix.IPPROTO_TCP, "10.96.0.1:443"),
		"udp [fd00::1]:53":  server(unix.IPPROTO_UDP, "[fd00::1]:53"),
		"sctp 10.96.0.1:5":  server(unix.IPPROTO_SCTP, "10.96.0.1:5"),
		"50 1.2.3.4:0":      server(50, "1.2.3.4:0"),
		"mark 7":            {Mark: 7},
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
		got, err := decodeListed(netlink.Message{Data: append([]byte{1, 1, 0, 0}, s.attributes()...)})
		if diff := gocmp.Diff(s, got.Server, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
			t.Errorf("%s (-want +got): %v\n%s", s, err, diff)
		}
	}
}

func TestMalformedRepliesAreErrors(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty": nil, "only a header": {1, 1, 0, 0}, "truncated": {1, 1, 0, 0, 9, 0, 1, 0},
		"no family": {1, 1, 0, 0, 4, 0, 1, 0},
	} {
		if s, err := decodeListed(netlink.Message{Data: b}); err == nil {
			t.Errorf("%s: decoded as %s", name, s.Server)
		}
	}
	if n, err := decodeDestination(netlink.Message{Data: []byte{1}}, Server{}); err == nil ||
		!strings.Contains(err.Error(), "too short") {
		t.Errorf("a short reply is decoded as %v, %v", n, err)
	}
}
