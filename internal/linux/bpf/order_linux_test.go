package bpf

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Programs that translate answers and track closed sockets are attached before those that choose backends.
func TestOrderOfPrograms(t *testing.T) {
	got, want := (&Conn{opt: Options{Durations: true}}).attachOrder(), []string{
		"sluice_getpeer4", "sluice_getpeer6", "sluice_recvmsg4", "sluice_recvmsg6", "sluice_release",
		"sluice_sockops", "sluice_connect4", "sluice_connect6", "sluice_sendmsg4", "sluice_sendmsg6",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A datagram that a socket sent before the programs were removed is answered from the address of the Service.
func TestAnswersDuringARemoval(t *testing.T) {
	n := newNode(t)
	var backend net.PacketConn
	kerneltest.Do(t, n.opt.NetNS, func() (err error) {
		backend, err = net.ListenPacket("udp", "127.0.0.1:53")
		return err
	})
	t.Cleanup(func() { _ = backend.Close() })
	n.write(service("10.96.0.10:53", 17, OfNode, "127.0.0.1:53")...)
	to := netip.MustParseAddrPort("10.96.0.10:53")
	var client net.PacketConn
	n.run(func() (err error) {
		if client, err = net.ListenPacket("udp4", ":0"); err == nil {
			_, err = client.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(to))
		}
		return err
	})
	t.Cleanup(func() { _ = client.Close() })
	removed := make(chan error, 1)
	go func() {
		_, err := Remove(t.Context(), Options{Dir: n.opt.Dir}) // as another mode does
		removed <- err
	}()
	b := make([]byte, 1)
	_, from, err := backend.ReadFrom(b)
	if err != nil {
		t.Fatal(err)
	}
	waitDetached(t, n.conn, "sluice_sendmsg4")
	if _, err := backend.WriteTo([]byte("!"), from); err != nil {
		t.Fatal(err)
	}
	if err := client.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, from, err = client.ReadFrom(b); err != nil || from.String() != to.String() {
		t.Errorf("the answer seems to come from %s, want %s: %v", from, to, err)
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
	if names, err := n.conn.names("links"); err != nil || len(names) > 0 {
		t.Errorf("links are left: %v, %v", names, err)
	}
}

// waitDetached waits until a program is detached.
func waitDetached(t *testing.T, c *Conn, program string) {
	t.Helper()
	eventually(t, func() error {
		names, err := c.names("links")
		if err == nil && slices.Contains(names, program) {
			err = fmt.Errorf("attached are %v", names)
		}
		return err
	})
}
