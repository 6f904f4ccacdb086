package host_test

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// stateCloseWait is TCP_CONNTRACK_CLOSE_WAIT of linux/netfilter/nf_conntrack_tcp.h.
const stateCloseWait = 5

// A connection that the server closed and the client keeps stays in conntrack for an
// hour, not for the kernel's minute (S-215).
func TestHalfClosedConnectionStaysTracked(t *testing.T) {
	netns := kerneltest.Namespace(t)
	h := host.New(host.Options{NetNS: netns})
	c := &config.Config{Conntrack: config.Conntrack{TCPCloseWait: time.Hour, TCPEstablished: 24 * time.Hour}}
	if err := h.Apply(host.Lasting(c, 0)); err != nil {
		t.Fatal(err)
	}
	effects := h.Effects()
	if effects[1].Was != "60" || effects[1].Is != "3600" {
		t.Errorf("effect %+v", effects[1])
	}
	kerneltest.Do(t, netns, func() error {
		const tracked = "add table ip t; add chain ip t c { type filter hook output priority 0; }; " +
			"add rule ip t c ct state new accept"
		if out, err := exec.Command("nft", tracked).CombinedOutput(); err != nil {
			return fmt.Errorf("switch connection tracking on: %w: %s", err, out)
		}
		client, err := halfClosed()
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		left, err := closeWaitLeft()
		if err == nil && (left < 3540 || left > 3600) {
			t.Errorf("forgotten in %d s, want 3600 (or up to a minute less)", left)
		}
		return err
	})
}

// halfClosed returns a connection that its server has closed.
func halfClosed() (net.Conn, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	client, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		return nil, err
	}
	server, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return client, server.Close()
}

// closeWaitLeft waits for the one flow to be in CLOSE_WAIT, and returns the seconds that are left of it.
func closeWaitLeft() (uint32, error) {
	for range 100 {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil {
			return 0, err
		}
		for _, f := range flows {
			if tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP); ok && tcp.State == stateCloseWait {
				return f.TimeOut, nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 0, errors.New("no flow is in CLOSE_WAIT after a second")
}
