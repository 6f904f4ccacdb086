package forward

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/stream"
)

// sctp is a test of SCTP, which needs a kernel with it.
type sctp struct {
	*bench
	balancer *Balancer
	front    netip.AddrPort
}

// withSCTP runs a test with a Listener whose backends are at some ports of 127.0.0.1.
func withSCTP(t *testing.T, ports []uint16, test func(s *sctp)) {
	t.Helper()
	if !HasSCTP() {
		t.Skip("this kernel has no SCTP; test/uml runs this test on a kernel that has it")
	}
	var backends []netip.AddrPort
	for _, p := range ports {
		backends = append(backends, netip.AddrPortFrom(loopback.Addr(), p))
	}
	run(t, Options{NetNS: kerneltest.Namespace(t)}, newSystem, func(b *bench) {
		s := &sctp{bench: b, balancer: NewBalancer(one(backends...))}
		s.balancer.random = func(uint64) uint64 { return 0 }
		l, err := b.engine.Listen(Spec{Protocol: SCTP, Addr: loopback, Balancer: s.balancer})
		if err != nil {
			t.Fatal(err)
		}
		s.front = l.Addr()
		test(s)
	})
}

// listen opens a backend.
func (s *sctp) listen(port uint16) (fd int) {
	s.Helper()
	kerneltest.Do(s, s.ns, func() (err error) {
		fd, err = stream.Listen(stream.SCTP, netip.AddrPortFrom(loopback.Addr(), port))
		return err
	})
	s.Cleanup(func() { stream.Close(fd) })
	return fd
}

// await waits until a socket has an event.
func (s *sctp) await(fd int, events int16) {
	s.Helper()
	const limit = 10_000
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, limit); n != 1 || err != nil {
		s.Fatalf("no event: %d, %v", n, err)
	}
}

// pair connects a client. It returns its socket and the one of the backend.
func (s *sctp) pair(listener int) (client, backend int) {
	s.Helper()
	kerneltest.Do(s, s.ns, func() (err error) {
		client, err = stream.Connect(stream.SCTP, s.front)
		return err
	})
	s.await(client, unix.POLLOUT)
	s.await(listener, unix.POLLIN)
	backend, _, err := stream.Accept(listener)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { stream.Close(client); stream.Close(backend) })
	return client, backend
}

// send sends a message, when the socket can take it.
func (s *sctp) send(fd int, data []byte, i stream.Info) {
	s.Helper()
	e := stream.Send(fd, data, i)
	for ; e == unix.EAGAIN; e = stream.Send(fd, data, i) {
		s.await(fd, unix.POLLOUT)
	}
	if e != 0 {
		s.Fatal(e)
	}
}

// receive receives a whole message; an empty one: the peer has shut the association down.
func (s *sctp) receive(fd int) (data []byte, i stream.Info, e error) {
	s.Helper()
	buffer := make([]byte, 4096)
	for {
		n, info, last, e := stream.Receive(fd, buffer)
		switch {
		case e == unix.EAGAIN:
			s.await(fd, unix.POLLIN)
			continue
		case e != 0:
			return nil, info, e
		}
		data = append(data, buffer[:n]...)
		if last || n == 0 {
			return data, info, nil
		}
	}
}

// On a kernel without SCTP a Listener says so.
func TestNoSCTP(t *testing.T) {
	if HasSCTP() {
		t.Skip("this kernel has SCTP")
	}
	run(t, Options{NetNS: kerneltest.Namespace(t)}, newSystem, func(b *bench) {
		_, err := b.engine.Listen(Spec{Protocol: SCTP, Addr: loopback, Balancer: NewBalancer(&Target{})})
		if !errors.Is(err, errNoSCTP) {
			t.Errorf("error %v, want %v", err, errNoSCTP)
		}
	})
}

// Messages arrive whole, with their stream, order and payload protocol identifier, in both directions.
func TestSCTPMessages(t *testing.T) { withSCTP(t, []uint16{7001}, (*sctp).messages) }

func (s *sctp) messages() {
	client, backend := s.pair(s.listen(7001))
	messages := []struct {
		size int
		info stream.Info
	}{
		{1, stream.Info{}},
		{100, stream.Info{Stream: 7, PPID: [4]byte{0, 0, 0, 60}}},
		{1000, stream.Info{Stream: 3, Unordered: true, PPID: [4]byte{1, 2, 3, 4}}},
		{bufferSize, stream.Info{Stream: stream.Streams - 1}},
		{100_000, stream.Info{Stream: 1, PPID: [4]byte{0, 0, 0, 18}}},
	}
	for _, ends := range [][2]int{{client, backend}, {backend, client}} {
		for _, m := range messages {
			data := bytes.Repeat([]byte{byte(m.size)}, m.size)
			s.send(ends[0], data, m.info)
			got, info, err := s.receive(ends[1])
			if !bytes.Equal(got, data) || info != m.info || err != nil {
				s.Errorf("%d bytes, %+v: received %d, %+v, %v", m.size, m.info, len(got), info, err)
			}
		}
	}
}

// A receiver that is slower than the sender loses nothing.
func TestSCTPBackPressure(t *testing.T) { withSCTP(t, []uint16{7001}, (*sctp).backpressure) }

func (s *sctp) backpressure() {
	client, backend := s.pair(s.listen(7001))
	const count = 500
	message := func(i int) []byte { return fmt.Appendf(nil, "%8000d", i) }
	go func() {
		for i := range count {
			s.send(client, message(i), stream.Info{Stream: 5})
		}
	}()
	for i := range count {
		if i == 0 {
			s.eventually("the client is blocked", func() bool {
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(client), Events: unix.POLLOUT}}, 0)
				return n == 0 && err == nil
			})
		}
		if got, _, err := s.receive(backend); !bytes.Equal(got, message(i)) || err != nil {
			s.Fatalf("message %d: %d bytes, %v", i, len(got), err)
		}
	}
}

// A backend that refuses is passed over; the end of an association, and an ABORT, are passed on.
func TestSCTPEnds(t *testing.T) { withSCTP(t, []uint16{7000, 7001}, (*sctp).ends) }

func (s *sctp) ends() {
	listener := s.listen(7001)
	for _, tt := range []struct {
		name string
		end  func(fd int)
		want error
	}{
		{"shutdown", stream.Close, nil},
		{"abort", func(fd int) { stream.SetReset(fd); stream.Close(fd) }, unix.ECONNRESET},
	} {
		for _, by := range []string{"client", "backend"} {
			client, backend := s.pair(listener)
			from, to := client, backend
			if by == "backend" {
				from, to = backend, client
			}
			s.send(client, []byte("x"), stream.Info{})
			if got, _, err := s.receive(backend); string(got) != "x" || err != nil {
				s.Fatalf("received %q, %v", got, err)
			}
			dup, err := unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				s.Fatal(err)
			}
			null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				s.Fatal(err)
			}
			if err := unix.Dup3(null, from, unix.O_CLOEXEC); err != nil { // Cleanup closes it
				s.Fatal(err)
			}
			_ = unix.Close(null)
			tt.end(dup)
			if got, _, err := s.receive(to); len(got) > 0 || !errors.Is(err, tt.want) {
				s.Errorf("%s by the %s: received %q, %v, want %v", tt.name, by, got, err, tt.want)
			}
		}
	}
	s.eventually("all closed", func() bool { return s.balancer.Counts().Open == 0 })
	if n := s.balancer.Counts().Retries; n == 0 {
		s.Error("no attempt was made with the backend that refuses")
	}
}

// Without a backend the association is aborted.
func TestSCTPWithoutBackend(t *testing.T) { withSCTP(t, nil, (*sctp).withoutbackend) }

func (s *sctp) withoutbackend() {
	var client int
	kerneltest.Do(s, s.ns, func() (err error) {
		client, err = stream.Connect(stream.SCTP, s.front)
		return err
	})
	defer stream.Close(client)
	s.await(client, unix.POLLIN)
	if _, _, err := s.receive(client); !errors.Is(err, unix.ECONNRESET) {
		s.Errorf("the client receives %v", err)
	}
}

// An association goes on in the next run of the program, with the messages that wait in memory.
func TestSCTPOutlivesTheEngine(t *testing.T) { withSCTP(t, []uint16{7001}, (*sctp).handedOver) }

func (s *sctp) handedOver() {
	client, backend := s.pair(s.listen(7001))
	const count = 300
	message := func(i int) []byte { return fmt.Appendf(nil, "%8000d", i) }
	info := stream.Info{Stream: 5, PPID: [4]byte{1, 2, 3, 4}}
	go func() {
		for i := range count {
			s.send(client, message(i), info)
		}
	}()
	s.eventually("the client is blocked", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(client), Events: unix.POLLOUT}}, 0)
		return n == 0 && err == nil
	})
	s.handOver(Options{}, Spec{Protocol: SCTP, Addr: s.front, Balancer: NewBalancer(one(netip.AddrPortFrom(loopback.Addr(), 7001)))}, nothing)
	for i := range count {
		if got, is, err := s.receive(backend); !bytes.Equal(got, message(i)) || is != info || err != nil {
			s.Fatalf("message %d: %d bytes, %+v, %v", i, len(got), is, err)
		}
	}
	s.send(backend, []byte("reply"), info)
	if got, _, err := s.receive(client); string(got) != "reply" || err != nil {
		s.Errorf("the client received %q, %v", got, err)
	}
}
