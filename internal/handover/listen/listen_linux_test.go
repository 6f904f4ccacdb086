package listen_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/listentest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func open(t *testing.T, d listen.Opener, network, at string) error {
	t.Helper()
	l, err := d.Listen(t.Context(), network, netip.MustParseAddrPort(at))
	if err == nil {
		t.Cleanup(func() { _ = l.Close() })
	}
	return err
}

// Each namespace has its own ports, and a port can be opened once.
func TestPortsBelongToANamespace(t *testing.T) {
	one, other := listen.Opener{NetNS: kerneltest.Namespace(t)}, listen.Opener{NetNS: kerneltest.Namespace(t)}
	for _, d := range []listen.Opener{one, other} {
		if err := open(t, d, "tcp", "127.0.0.1:10256"); err != nil {
			t.Fatal(err)
		}
	}
	if err := open(t, one, "tcp", "127.0.0.1:10256"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port is opened twice: %v", err)
	}
	if err := open(t, one, "tcp", "192.0.2.1:10256"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a missing address: %v", err)
	}
}

// A client reaches a listener only from its namespace.
func TestAListenerIsReachedInItsNamespace(t *testing.T) {
	in, out := kerneltest.Namespace(t), kerneltest.Namespace(t)
	if err := open(t, listen.Opener{NetNS: in}, "tcp", "127.0.0.1:10256"); err != nil {
		t.Fatal(err)
	}
	dial := func() error {
		c, err := net.Dial("tcp", "127.0.0.1:10256")
		if err != nil {
			return err
		}
		return c.Close()
	}
	kerneltest.Do(t, in, dial)
	kerneltest.Do(t, out, func() error {
		if err := dial(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("from another namespace: %v, want it refused", err)
		}
		return nil
	})
}

// Addresses with the same port that can be open at the same time, with the kernel and with the Fake.
func TestAddressesThatCanBeOpenTogether(t *testing.T) {
	for name, listen := range map[string]func(context.Context, string, netip.AddrPort) (net.Listener, error){
		"kernel": listen.Opener{NetNS: kerneltest.Namespace(t)}.Listen,
		"fake":   listentest.New().Listen,
	} {
		for _, tt := range []struct {
			network, at string
			want        error
		}{
			{"tcp4", "0.0.0.0:1", nil},
			{"tcp4", "0.0.0.0:1", syscall.EADDRINUSE},
			{"tcp4", "127.0.0.1:1", syscall.EADDRINUSE},
			{"tcp6", "[::]:1", nil},
			{"tcp6", "[::1]:1", syscall.EADDRINUSE},
			{"tcp", "[::]:1", syscall.EADDRINUSE},
			{"tcp", "[::]:2", nil},
			{"tcp4", "127.0.0.1:2", syscall.EADDRINUSE},
			{"tcp4", "127.0.0.1:3", nil},
			{"tcp4", "127.0.0.2:3", nil},
			{"tcp6", "[::1]:3", nil},
			{"tcp4", "0.0.0.0:3", syscall.EADDRINUSE},
			{"tcp", "0.0.0.0:4", nil},
			{"tcp6", "[::]:4", syscall.EADDRINUSE},
			{"tcp4", "192.0.2.1:1", syscall.EADDRNOTAVAIL},
			{"tcp4", "192.0.2.1:5", syscall.EADDRNOTAVAIL},
		} {
			l, err := listen(t.Context(), tt.network, netip.MustParseAddrPort(tt.at))
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: %s %s: got %v, want %v", name, tt.network, tt.at, err, tt.want)
			}
		}
	}
}

func TestAFileThatIsNotANamespace(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	err = open(t, listen.Opener{NetNS: int(f.Fd())}, "tcp", "127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "enter network namespace") {
		t.Errorf("got %v, want the failed operation in it", err)
	}
}
