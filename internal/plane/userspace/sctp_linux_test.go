package userspace_test

import (
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/forward"
	"github.com/sluice-proxy/sluice/internal/kernel/stream"
)

// A message of SCTP from outside reaches a pod by a NodePort, and the answer comes back, in both families.
func TestSCTP(t *testing.T) {
	if !forward.HasSCTP() {
		t.Skip("this kernel has no SCTP; test/uml runs this test on a kernel that has it")
	}
	n := newNode(t)
	for front, backend := range map[string]string{
		"192.168.0.2:30080": "10.180.0.1:8080", "[2001:db8::1]:30080": "[fd00:10:180::1]:8080",
	} {
		var listener, client int
		if err := n.pod.Do(func() (err error) {
			listener, err = stream.Listen(stream.SCTP, netip.MustParseAddrPort(backend))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := n.Outside.Do(func() (err error) {
			client, err = stream.Connect(stream.SCTP, netip.MustParseAddrPort(front))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		await(t, client, unix.POLLOUT)
		await(t, listener, unix.POLLIN)
		pod, peer, err := stream.Accept(listener)
		if err != nil {
			t.Fatal(err)
		}
		if want := netip.MustParseAddrPort(backend).Addr(); peer.Addr().Is4() != want.Is4() {
			t.Errorf("the pod sees client %v", peer)
		}
		for _, ends := range [][2]int{{client, pod}, {pod, client}} {
			want := stream.Info{Stream: 2, PPID: [4]byte{0, 0, 0, 60}}
			if e := stream.Send(ends[0], []byte("hello"), want); e != 0 {
				t.Fatal(e)
			}
			await(t, ends[1], unix.POLLIN)
			buffer := make([]byte, 64)
			got, info, last, e := stream.Receive(ends[1], buffer)
			if string(buffer[:got]) != "hello" || info != want || !last || e != syscall.Errno(0) {
				t.Errorf("received %q, %+v, %v", buffer[:got], info, e)
			}
		}
		for _, fd := range []int{client, pod, listener} {
			stream.Close(fd)
		}
	}
}

// await waits until a socket has an event.
func await(t *testing.T, fd int, events int16) {
	t.Helper()
	const limit = 10_000
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, limit); n != 1 || err != nil {
		t.Fatalf("no event: %d, %v", n, err)
	}
}
