package bpf

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The programs learn the address of a pod without TCP connections from its connected UDP sockets: when it calls getpeername, as Go does, or
// receives a datagram with the address of the sender, as the resolver of glibc does.
func TestConnectedUDPShowsTheAddressOfAPod(t *testing.T) {
	for name, use := range map[string]func(fd int) error{
		"getpeername": func(fd int) error { _, err := unix.Getpeername(fd); return err },
		"recvfrom": func(fd int) error {
			if _, err := unix.Write(fd, []byte("?")); err != nil {
				return err
			}
			_, _, err := unix.Recvfrom(fd, make([]byte, 64), 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			pod := kerneltest.Namespace(t)
			address4(t, pod, "10.1.0.1/32")
			serve(t, pod, "10.1.0.1:8080")
			serve(t, pod, "127.0.0.1:8080")
			inside := lab.Inside(t, n.opt.Cgroup, pod)
			n.write(append(service("10.96.0.1:80", 6, OfPods, "127.0.0.1:8080"), PodPrefix(netip.MustParsePrefix("10.1.0.0/24")))...)
			try := func() error { return inside(func() error { _, _, err := ask("10.96.0.1:80"); return err }) }
			connect := func(use func(fd int) error) error {
				return inside(func() error {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					err = unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{10, 1, 0, 1}, Port: 8080})
					return errors.Join(err, use(fd), unix.Close(fd))
				})
			}
			if err := connect(func(int) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if err := try(); err == nil {
				t.Error("a connection is balanced before the address of the pod is known")
			}
			if err := connect(use); err != nil {
				t.Fatal(err)
			}
			if err := try(); err != nil {
				t.Error(err)
			}
		})
	}
}
