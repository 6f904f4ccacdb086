package bpf

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// flowPod is a pod with a backend of a Service for DNS, and two addresses, of which the second is not that of a pod.
func flowPod(n *node) (inside func(func() error) error) {
	n.t.Helper()
	pod := kerneltest.Namespace(n.t)
	for _, at := range []string{"10.1.0.1", "10.9.0.1"} {
		address4(n.t, pod, at+"/32")
		serve(n.t, pod, at+":8080")
	}
	serve(n.t, pod, "127.0.0.1:53")
	n.write(append(service(dns4, 17, OfPods, "127.0.0.1:53"), PodPrefix(netip.MustParsePrefix("10.1.0.0/24")))...)
	n.learn()
	return lab.Inside(n.t, n.opt.Cgroup, pod)
}

// reaches connects by TCP, which shows the address of a pod.
func reaches(at string) error {
	_, _, err := ask(at)
	return err
}

// An unconnected UDP socket stays with the packet plane if its first datagrams were for packets: the packet plane has chosen its backend.
func TestFlowsOfUnknownPodsStayWithPackets(t *testing.T) {
	n := newNode(t)
	inside := flowPod(n)
	err := inside(func() error {
		return withSocket(unix.AF_INET, func(s *socket) error {
			if _, _, err := s.ask(dns4); err == nil {
				return fmt.Errorf("an unknown pod is balanced")
			}
			if err := reaches("10.1.0.1:8080"); err != nil {
				return err
			}
			if _, _, err := s.ask(dns4); err == nil {
				return fmt.Errorf("the flow moves from the backend of the packet plane to that of a program")
			}
			return withSocket(unix.AF_INET, func(s *socket) error { // another one is balanced
				_, _, err := s.ask(dns4)
				return err
			})
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// An unconnected UDP socket stays on its backend when the address of its pod is not known any more.
func TestFlowsStayOnTheirBackend(t *testing.T) {
	n := newNode(t)
	inside := flowPod(n)
	var s *socket
	err := inside(func() (err error) {
		if err = reaches("10.1.0.1:8080"); err != nil {
			return err
		}
		if s, err = openSocket(unix.AF_INET); err != nil {
			return err
		}
		if _, _, err = s.ask(dns4); err != nil {
			return err
		}
		return reaches("10.9.0.1:8080")
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	n.write() // any change of the tables
	err = inside(func() error {
		_, _, err := s.ask(dns4)
		return err
	})
	if err != nil {
		t.Errorf("the flow leaves its backend, which serves: %v", err)
	}
}
