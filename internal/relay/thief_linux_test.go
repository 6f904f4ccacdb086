package relay

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A user of this host who opens sockets on the port of a flow, connected to its backend, gets none of the replies:
// neither with SO_REUSEADDR nor with SO_REUSEPORT.
func TestPortsOfFlowsAreNotShared(t *testing.T) {
	kerneltest.NeedUsers(t)
	for name, option := range map[string]int{"SO_REUSEADDR": unix.SO_REUSEADDR, "SO_REUSEPORT": unix.SO_REUSEPORT} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.Namespace(t)
			var backend *net.UDPConn
			kerneltest.Do(t, ns, func() (err error) {
				backend, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(loopback))
				return err
			})
			t.Cleanup(func() { _ = backend.Close() })
			at := address(backend.LocalAddr())
			r := epollUDP(t, ns, Options{}, Spec{Addr: loopback, Balancer: NewBalancer(pools(at))})
			c := dialUDP(t, ns, r.at)
			if _, err := c.Write([]byte("question")); err != nil {
				t.Fatal(err)
			}
			_ = backend.SetReadDeadline(time.Now().Add(30 * time.Second))
			_, flow, err := backend.ReadFromUDPAddrPort(make([]byte, 100))
			if err != nil {
				t.Fatal(err)
			}
			steal(t, ns, option, [2]netip.AddrPort{flow, at})
			if _, err := backend.WriteToUDPAddrPort([]byte("answer"), flow); err != nil {
				t.Fatal(err)
			}
			if got, err := answer(c); got != "answer" || err != nil {
				t.Errorf("the client got %q, %v, want the answer", got, err)
			}
		})
	}
}

// steal opens a socket as another user, from one address to another, if the kernel allows it.
func steal(t *testing.T, ns, option int, addrs [2]netip.AddrPort) {
	t.Helper()
	const nobody = 65534
	from, to := addrs[0], addrs[1]
	kerneltest.Do(t, ns, func() error { // on a thread that ends after this
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
			return e
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.Addr().As4(), Port: int(from.Port())}); err != nil {
			t.Log("bind:", err)
			return nil
		}
		return os.NewSyscallError("connect",
			unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}))
	})
}
