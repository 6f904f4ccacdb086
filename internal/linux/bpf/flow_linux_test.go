package bpf

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// flowPod is a pod with a backend of a Service for DNS.
func flowPod(n *node) (pod int, inside func(func() error) error) {
	n.t.Helper()
	pod = kerneltest.Namespace(n.t)
	address4(n.t, pod, "10.1.0.1/32")
	serve(n.t, pod, "127.0.0.1:53")
	n.write(service(dns4, 17, OfPods, "127.0.0.1:53")...)
	return pod, lab.Inside(n.t, n.opt.Cgroup, pod)
}

// An unconnected UDP socket stays with the packet plane if its first datagrams were for packets: the packet plane has
// chosen its backend.
func TestFlowsOfUnknownPodsStayWithPackets(t *testing.T) {
	n := newNode(t)
	pod, inside := flowPod(n)
	err := inside(func() error {
		return withSocket(unix.AF_INET, func(s *socket) error {
			if _, _, err := s.ask(dns4); err == nil {
				return fmt.Errorf("an unknown pod is balanced")
			}
			n.know(pod, "10.1.0.1")
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

// An unconnected UDP socket stays on its backend when its pod is not known any more.
func TestFlowsStayOnTheirBackend(t *testing.T) {
	n := newNode(t)
	pod, inside := flowPod(n)
	n.know(pod, "10.1.0.1")
	var s *socket
	err := inside(func() (err error) {
		if s, err = openSocket(unix.AF_INET); err != nil {
			return err
		}
		_, _, err = s.ask(dns4)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	n.know(pod)
	err = inside(func() error {
		_, _, err := s.ask(dns4)
		return err
	})
	if err != nil {
		t.Errorf("the flow leaves its backend, which serves: %v", err)
	}
}
