package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The unspecified address is a name of the own host: a NodePort does not divert connections to it, neither of pods
// nor of the node.
func TestUnspecifiedAddressIsNoNodePort(t *testing.T) {
	n := newNode(t)
	pod := kerneltest.Namespace(t)
	address4(t, pod, "10.1.0.1/32")
	serve(t, pod, "10.1.0.1:8080")
	inside := map[string]func(func() error) error{"node": n.inside, "pod": lab.Inside(t, n.opt.Cgroup, pod)}
	for _, ns := range []int{n.opt.NetNS, pod} {
		for _, at := range []string{"127.0.0.1:30080", "[::1]:30080", "127.0.0.2:8080", "[::1]:8080"} {
			serve(t, ns, at)
		}
	}
	for _, clients := range []Clients{OfPods, OfNode} {
		four := service("0.0.0.0:30080", 6, clients, "127.0.0.2:8080")
		n.write(slices.Concat(four, service("[::]:30080", 6, clients, "[::1]:8080"))...)
	}
	n.know(pod, "10.1.0.1")
	for name, run := range inside {
		for to, want := range map[string]string{"0.0.0.0:30080": "127.0.0.1:30080", "[::]:30080": "[::1]:30080"} {
			err := run(func() error {
				answered, err := askRaw(netip.MustParseAddrPort(to))
				if err == nil && answered != want {
					err = fmt.Errorf("%s answers, want %s", answered, want)
				}
				return err
			})
			if err != nil {
				t.Errorf("the %s connects to %s: %v", name, to, err)
			}
		}
	}
}

// A pod reaches itself at its own address, even if a Service has that as an external address.
func TestOwnAddressStaysInThePod(t *testing.T) {
	n := newNode(t)
	pod := kerneltest.Namespace(t)
	inside := lab.Inside(t, n.opt.Cgroup, pod)
	address4(t, pod, "10.1.0.1/32")
	address4(t, pod, "10.1.0.2/32")
	for _, at := range []string{"10.1.0.1:53", "10.1.0.1:8080", "127.0.0.1:8080"} {
		serve(t, pod, at)
	}
	for _, at := range []string{"10.1.0.1:53", "10.1.0.2:53"} {
		n.write(slices.Concat(service(at, 6, OfPods, "127.0.0.1:8080"), service(at, 17, OfPods, "127.0.0.1:8080"))...)
	}
	n.know(pod, "10.1.0.1")
	for to, want := range map[string]string{"10.1.0.1:53": "10.1.0.1:53", "10.1.0.2:53": "127.0.0.1:8080"} {
		err := inside(func() error {
			by, err := askRaw(netip.MustParseAddrPort(to))
			if err != nil {
				return err
			}
			return withSocket(unix.AF_INET, func(s *socket) error {
				answered, _, err := s.ask(to)
				return errors.Join(err, differs("the backend of a connection", by, want),
					differs("the backend of a datagram", answered, want))
			})
		})
		if err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
}

// askRaw connects by TCP to exactly this address, and returns the backend that answered: package net replaces
// unspecified addresses.
func askRaw(to netip.AddrPort) (string, error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer func() { _ = f.Close() }() // all is read
	if err := unix.Connect(fd, lab.Sockaddr(to)); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(f).ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}
