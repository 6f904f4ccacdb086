//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	requestSize  = 64 // bytes of a request, and of its reply
	streamBuffer = 128 << 10
	callTimeout  = 10 * time.Second // of each call of a socket
)

// batch is the result of one way in one round.
type batch struct {
	took []time.Duration // of each call
	rate float64         // of a stream, in bytes per second
}

type measurement struct {
	title       string
	run         func(way, options) (batch, error)
	connections func(options) int // of a batch, and sockets of UDP
}

// perCall and perBatch return how many connections a batch has.
func perCall(o options) int { return o.calls }
func perBatch(options) int  { return 1 }

func measurements() []measurement {
	return []measurement{
		{"connect()", connects, perCall},
		{"socket(), connect(), close()", connections, perCall},
		{"connect(), first request and response", firsts, perCall},
		{"TCP request and response", requests, perBatch},
		{streamTitle, streams, perBatch},
		{"UDP request and response, connected", datagramsConnected, perBatch},
		{"UDP request and response, not connected", datagramsUnconnected, perBatch},
	}
}

const streamTitle = "TCP stream"

// openSocket opens a socket whose calls time out.
func openSocket(kind int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	wait := unix.NsecToTimeval(callTimeout.Nanoseconds())
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// connects times connect(). The backend accepts afterwards, so that no other thread runs meanwhile.
func connects(w way, o options) (batch, error) {
	return eachConnection(w, o.calls, func(to unix.Sockaddr) (time.Duration, error) {
		fd, err := openSocket(unix.SOCK_STREAM)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		err = unix.Connect(fd, to)
		took := time.Since(began)
		return took, errors.Join(err, reset(fd))
	})
}

// connections times a connection from its beginning to its end.
func connections(w way, o options) (batch, error) {
	return eachConnection(w, o.calls, func(to unix.Sockaddr) (time.Duration, error) {
		began := time.Now()
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		err = errors.Join(unix.Connect(fd, to), reset(fd))
		return time.Since(began), err
	})
}

// reset closes a connection without a TIME_WAIT, which would take the port.
func reset(fd int) error {
	return errors.Join(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), unix.Close(fd))
}

func eachConnection(w way, n int, call func(unix.Sockaddr) (time.Duration, error)) (b batch, err error) {
	b.took = make([]time.Duration, n)
	err = w.client(func() error {
		to := sockaddr(w.to)
		for i := range b.took {
			if b.took[i], err = call(to); err != nil {
				return err
			}
		}
		return nil
	})
	return b, errors.Join(err, w.server(func() error { return w.drain(n) }))
}

// drain accepts and closes n connections.
func (s *side) drain(n int) error {
	for range n {
		fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC)
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		_ = unix.Close(fd) // the client has reset it
	}
	return nil
}

// both runs a client and a server at the same time.
func (s *side) both(client, server func() error) error {
	done := make(chan error, 1)
	go func() { done <- s.server(server) }()
	return errors.Join(s.client(client), <-done)
}

// connected runs a client and a server of one TCP connection.
func (w way) connected(client, server func(fd int) error) error {
	return w.both(func() error {
		fd, err := openSocket(unix.SOCK_STREAM)
		if err != nil {
			return err
		}
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.Connect(fd, sockaddr(w.to)))
		if err == nil {
			err = client(fd)
		}
		return errors.Join(err, reset(fd))
	}, func() error {
		fd, _, err := unix.Accept4(w.listener, unix.SOCK_CLOEXEC)
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), server(fd))
		return errors.Join(err, unix.Close(fd))
	})
}

// requests times requests and responses on one connection.
func requests(w way, o options) (b batch, err error) {
	b.took = make([]time.Duration, o.calls)
	return b, w.connected(
		func(fd int) error { return timed(b.took, func(buffer []byte) error { return ask(fd, buffer) }) },
		func(fd int) error { return repeat(o.calls, func(buffer []byte) error { return reply(fd, buffer) }) })
}

// firsts times new connections with one request and its response each.
func firsts(w way, o options) (b batch, err error) {
	b.took = make([]time.Duration, o.calls)
	return b, w.both(func() error {
		to := sockaddr(w.to)
		return timed(b.took, func(buffer []byte) error {
			fd, err := openSocket(unix.SOCK_STREAM)
			if err != nil {
				return err
			}
			if err = unix.Connect(fd, to); err == nil {
				err = ask(fd, buffer)
			}
			return errors.Join(err, reset(fd))
		})
	}, func() error {
		return repeat(o.calls, func(buffer []byte) error {
			fd, _, err := unix.Accept4(w.listener, unix.SOCK_CLOEXEC)
			if err != nil {
				return fmt.Errorf("accept: %w", err)
			}
			return errors.Join(reply(fd, buffer), unix.Close(fd))
		})
	})
}

// repeat calls a function with the same buffer.
func repeat(n int, call func([]byte) error) error {
	buffer := make([]byte, requestSize)
	for range n {
		if err := call(buffer); err != nil {
			return err
		}
	}
	return nil
}

// timed fills a list with the times that calls take.
func timed(took []time.Duration, call func([]byte) error) error {
	i := 0
	return repeat(len(took), func(buffer []byte) error {
		began := time.Now()
		err := call(buffer)
		took[i] = time.Since(began)
		i++
		return err
	})
}

func ask(fd int, buffer []byte) error {
	if _, err := unix.Write(fd, buffer); err != nil {
		return fmt.Errorf("send a request: %w", err)
	}
	if n, err := unix.Read(fd, buffer); err != nil || n != len(buffer) {
		return fmt.Errorf("read a response: %d bytes, %w", n, err)
	}
	return nil
}

func reply(fd int, buffer []byte) error {
	if n, err := unix.Read(fd, buffer); err != nil || n != len(buffer) {
		return fmt.Errorf("read a request: %d bytes, %w", n, err)
	}
	if _, err := unix.Write(fd, buffer); err != nil {
		return fmt.Errorf("send a response: %w", err)
	}
	return nil
}

// streams measures how fast the backend receives.
func streams(w way, o options) (b batch, err error) {
	return b, w.connected(func(fd int) error {
		buffer := make([]byte, streamBuffer)
		began := time.Now()
		for left := o.stream; left > 0; {
			n, err := unix.Write(fd, buffer[:min(left, len(buffer))])
			if err != nil {
				return fmt.Errorf("send: %w", err)
			}
			left -= n
		}
		if _, err := unix.Read(fd, buffer); err != nil {
			return fmt.Errorf("read the confirmation: %w", err)
		}
		b.rate = float64(o.stream) / time.Since(began).Seconds()
		return nil
	}, func(fd int) error {
		buffer := make([]byte, streamBuffer)
		for left := o.stream; left > 0; {
			n, err := unix.Read(fd, buffer)
			if err != nil || n == 0 {
				return fmt.Errorf("receive: %d bytes are missing, %w", left, err)
			}
			left -= n
		}
		_, err := unix.Write(fd, buffer[:1])
		return err
	})
}

// datagramsConnected times requests and responses of a connected UDP socket.
func datagramsConnected(w way, o options) (batch, error) {
	return datagrams(w, o.calls, func(fd int) (func([]byte) error, error) {
		return func(buffer []byte) error { return ask(fd, buffer) }, unix.Connect(fd, sockaddr(w.to))
	})
}

// datagramsUnconnected measures the time of datagrams on a UDP socket without a peer.
func datagramsUnconnected(w way, o options) (batch, error) {
	return datagrams(w, o.calls, func(fd int) (func([]byte) error, error) {
		to := sockaddr(w.to)
		return func(buffer []byte) error {
			if err := unix.Sendto(fd, buffer, 0, to); err != nil {
				return fmt.Errorf("send a request: %w", err)
			}
			if n, _, err := unix.Recvfrom(fd, buffer, 0); err != nil || n != len(buffer) {
				return fmt.Errorf("read a response: %d bytes, %w", n, err)
			}
			return nil
		}, nil
	})
}

func datagrams(w way, n int, prepare func(fd int) (func([]byte) error, error)) (b batch, err error) {
	b.took = make([]time.Duration, n)
	err = w.both(func() error {
		fd, err := openSocket(unix.SOCK_DGRAM)
		if err != nil {
			return err
		}
		call, err := prepare(fd)
		if err == nil {
			err = timed(b.took, call)
		}
		return errors.Join(err, unix.Close(fd))
	}, func() error {
		return repeat(n, func(buffer []byte) error {
			n, from, err := unix.Recvfrom(w.datagrams, buffer, 0)
			if err != nil {
				return fmt.Errorf("read a request: %w", err)
			}
			return unix.Sendto(w.datagrams, buffer[:n], 0, from)
		})
	})
	return b, err
}
