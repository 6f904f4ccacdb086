package listen_test

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A client that connects while a program is replaced is accepted by the next run, on the same listener.
func TestPortsStayOpenWhileTheProgramIsReplaced(t *testing.T) {
	opener := listen.Opener{NetNS: kerneltest.Namespace(t)}
	at := netip.MustParseAddrPort("127.0.0.1:10256")
	before := listen.NewPorts(opener, nil)
	l, err := before.Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	closed, err := before.Listen(t.Context(), "tcp", netip.MustParseAddrPort("127.0.0.1:10249"))
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	files, err := before.Files()
	if err != nil || len(files) != 1 {
		t.Fatalf("%d ports are passed on (%v), want the one that is open", len(files), err)
	}
	_ = l.Close()
	client, err := opener.Dial(t.Context(), "tcp", at.String())
	if err != nil {
		t.Fatalf("a client is refused between the runs: %v", err)
	}
	defer func() { _ = client.Close() }()

	after := listen.NewPorts(opener, files)
	l, err = after.Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(c, "hello")
	_ = c.Close()
	if text, err := bufio.NewReader(client).ReadString('\n'); text != "hello\n" {
		t.Errorf("the client got %q, %v", text, err)
	}
}

// Ports that the next run does not need are closed: at once if they prevent a port
// that it needs, otherwise after a while.
func TestPortsThatAreNotNeededAreClosed(t *testing.T) {
	opener := listen.Opener{NetNS: kerneltest.Namespace(t)}
	before := listen.NewPorts(opener, nil)
	var open []net.Listener
	for _, at := range []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.2:3"} {
		l, err := before.Listen(t.Context(), "tcp4", netip.MustParseAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, l)
	}
	files, err := before.Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range open {
		_ = l.Close()
	}
	after := listen.NewPorts(opener, files)
	for _, at := range []string{"0.0.0.0:1", "127.0.0.1:3"} {
		l, err := after.Listen(t.Context(), "tcp4", netip.MustParseAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
	}
	synctest.Test(t, func(t *testing.T) { // Run waits
		if err := after.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	for at, want := range map[string]bool{
		"127.0.0.1:1": true, "127.0.0.1:2": false, "127.0.0.1:3": true, "127.0.0.2:3": false,
	} {
		c, err := opener.Dial(t.Context(), "tcp", at)
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v, want it open: %t", at, err, want)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}
