package socket

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A connected socket has nothing that others have sent to it while it was bound only.
func TestConnectDiscardsOthers(t *testing.T) {
	kerneltest.Do(t, kerneltest.Namespace(t), func() error {
		local := netip.MustParseAddr("127.0.0.1")
		stranger, err := open(unix.SOCK_DGRAM, local, bind(netip.AddrPortFrom(local, 0)))
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(stranger) }()
		fd, err := open(unix.SOCK_DGRAM, local, bind(netip.AddrPortFrom(local, 0)), func(fd int) error {
			at, err := Addr(fd)
			if err != nil {
				return err
			}
			return errors.Join(unix.Sendto(stranger, []byte("x"), 0, sockaddr(at)), unix.Sendto(stranger, nil, 0, sockaddr(at)))
		}, connectUDP(netip.AddrPortFrom(local, 9)))
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if n, _, err := unix.Recvfrom(fd, make([]byte, 9), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("received %d bytes, %v, want nothing", n, err)
		}
		return nil
	})
}
