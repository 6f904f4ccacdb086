package bpf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// clientArg is the first argument of a process that Try starts. The Services follow it.
	clientArg = "connect-to-test-services"

	// greeting is the answer of backends. A report has a line for each error, which begins with noProof if the error does not prove that
	// the process is not balanced, and clientEnd as its last line.
	greeting  = "balanced"
	noProof   = "no result: "
	clientEnd = "done"

	clientTimeout = time.Second // for each call
)

// IsClient reports whether Try has started a process with this command line.
func IsClient(args []string) bool { return len(args) > 1 && args[1] == clientArg }

// Client connects to the Services of a command line, and prints the errors.
func Client(args []string, out io.Writer) error {
	results := make(chan error)
	for _, text := range args[2:] {
		go func() { results <- visit(text) }()
	}
	for range args[2:] {
		err := <-results
		if err == nil {
			continue
		}
		prefix := ""
		if !isProof(err) {
			prefix = noProof
		}
		if _, err := fmt.Fprint(out, prefix, err, "\n"); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(out, clientEnd)
	return err
}

// isProof reports whether an error proves that a process is not balanced: not if the machine is slow, or if other programs have taken all
// ports, descriptors or memory.
func isProof(err error) bool {
	if timed, is := errors.AsType[net.Error](err); is && timed.Timeout() {
		return false
	}
	return !slices.ContainsFunc([]error{unix.EADDRINUSE, unix.EADDRNOTAVAIL, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM},
		func(lacking error) bool { return errors.Is(err, lacking) })
}

// The ways to reach a Service.
const (
	byTCP          = "tcp"
	byUDP          = "udp"
	byConnectedUDP = "connected-udp"
)

// visit connects or sends to a Service, such as "tcp/192.0.0.8:8", and verifies that the answer comes from its address.
func visit(text string) error {
	way, at, _ := strings.Cut(text, "/")
	service, err := netip.ParseAddrPort(at)
	if err != nil {
		return err
	}
	switch way {
	case byUDP:
		err = exchange(service)
	case byConnectedUDP:
		err = connect("udp", service)
	default:
		err = connect("tcp", service)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}

// connect connects to a Service, and verifies the peer and the answer. It sends a request, which TCP does not need.
func connect(network string, service netip.AddrPort) error {
	conn, err := (&net.Dialer{Timeout: clientTimeout, Control: stayNear}).Dial(network, service.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is read
	if got := conn.RemoteAddr().String(); got != service.String() {
		return fmt.Errorf("the peer seems to be %s", got)
	}
	if _, err := conn.Write([]byte("?")); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(clientTimeout)); err != nil {
		return err
	}
	return verifyAnswer(conn.Read)
}

// exchange sends a datagram, and verifies the answer and its source.
func exchange(service netip.AddrPort) error {
	network := "udp4"
	if service.Addr().Is6() {
		network = "udp6"
	}
	conn, err := (&net.ListenConfig{Control: stayNear}).ListenPacket(context.Background(), network, "")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is read
	if _, err := conn.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(service)); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(clientTimeout)); err != nil {
		return err
	}
	var wrong error
	for { // other programs may send datagrams to the port
		var from net.Addr
		err := verifyAnswer(func(b []byte) (n int, err error) { n, from, err = conn.ReadFrom(b); return n, err })
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && wrong != nil:
			return wrong
		case errors.Is(err, os.ErrDeadlineExceeded), err == nil && from.String() == service.String():
			return err
		case err == nil:
			err = fmt.Errorf("the reply seems to come from %s", from)
		}
		wrong = err
	}
}

// stayNear sets the options of a socket whose packets reach the first router at most if the socket is not balanced.
func stayNear(network, _ string, raw syscall.RawConn) error {
	level, hops := unix.IPPROTO_IP, unix.IP_TTL
	if strings.HasSuffix(network, "6") {
		level, hops = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	var err error
	failed := raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DONTROUTE, 1), unix.SetsockoptInt(int(fd), level, hops, 1))
	})
	return errors.Join(failed, err)
}

// verifyAnswer reads the reply of a backend.
func verifyAnswer(read func([]byte) (int, error)) error {
	b := make([]byte, 2*len(greeting))
	n, err := read(b)
	if err != nil {
		return err
	}
	if got := string(b[:n]); got != greeting {
		return fmt.Errorf("another program replies %q", got)
	}
	return nil
}
