package bpf

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
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

// learningPod is a pod with a backend of the Service, and a server at its own address.
type learningPod struct {
	n      *node
	own    string
	inside func(func() error) error
}

func newLearningPod(n *node, own string) *learningPod {
	n.t.Helper()
	netns := kerneltest.Namespace(n.t)
	address4(n.t, netns, own+"/32")
	serve(n.t, netns, own+":8080")
	serve(n.t, netns, "127.0.0.1:8080")
	return &learningPod{n, own, lab.Inside(n.t, n.opt.Cgroup, netns)}
}

// connects reports whether the pod reaches an address.
func (p *learningPod) connects(to string) bool {
	return p.inside(func() error { _, _, err := ask(to); return err }) == nil
}

// isLearning reports whether the program that learns is attached.
func (n *node) isLearning() bool {
	n.t.Helper()
	fd, err := unix.Open(n.opt.Cgroup, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only read from
	found, err := link.QueryPrograms(link.QueryOptions{Target: fd, Attach: ebpf.AttachCGroupSockOps})
	if err != nil {
		n.t.Fatal(err)
	}
	return len(found.Programs) > 0
}

// becomes waits until something is true.
func becomes(t testing.TB, what string, is func() bool) {
	t.Helper()
	eventually(t, func() error {
		if !is() {
			return errors.New("never: " + what)
		}
		return nil
	})
}

// Addresses are learned for a while after the start, and again when an unknown client connects to a Service.
func TestLearn(t *testing.T) {
	n := newNode(t)
	n.write(append(service(vip, 6, OfPods, "127.0.0.1:8080"), PodPrefix(netip.MustParsePrefix("10.1.0.0/24")))...)
	first, second := newLearningPod(n, "10.1.0.1"), newLearningPod(n, "10.1.0.2")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.conn.Learn(ctx, 300*time.Millisecond, func(err error) { t.Error(err) }) }()
	becomes(t, "the first pod is known", func() bool { return first.connects("10.1.0.1:8080") && first.connects(vip) })
	becomes(t, "nothing is learned", func() bool { return !n.isLearning() })
	if !second.connects("10.1.0.2:8080") || second.connects(vip) {
		t.Error("a pod is known that has connected while nothing was learned")
	}
	becomes(t, "the second pod is known", func() bool { return second.connects("10.1.0.2:8080") && second.connects(vip) })
	if !first.connects(vip) {
		t.Error("the first pod is unknown again")
	}
	becomes(t, "nothing is learned again", func() bool { return !n.isLearning() })
	second.connects(vip)
	if n.isLearning() {
		t.Error("a known pod makes programs learn")
	}
	third := newLearningPod(n, "10.2.0.3") // pods have other addresses, and it may have one of these too
	for range 2 {
		becomes(t, "a client that is no known pod makes programs learn", func() bool { return !third.connects(vip) && n.isLearning() })
		if !third.connects("10.2.0.3:8080") {
			t.Error("no server")
		}
		becomes(t, "nothing is learned", func() bool { return !n.isLearning() })
	}
	cancel()
	if err := <-ended; err != nil || n.isLearning() {
		t.Errorf("Learn returns %v, and programs learn: %t", err, n.isLearning())
	}
}
