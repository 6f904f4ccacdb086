package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"time"
)

// answer serves TCP and UDP at an address until it is killed. It answers a name and what it gets:
//
//	exec answer ADDRESS NAME
func answer() {
	check("answer", answerAt(os.Args[1], os.Args[2]))
}

func answerAt(at, name string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	conn, err := net.ListenPacket("udp", at)
	if err != nil {
		return err
	}
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(b)
			check("answer", err)
			_, err = fmt.Fprintf(toAddr{conn, from}, "%s got %s", name, b[:n])
			check("answer", err)
		}
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintf(c, "%s got ", name)
			_, _ = io.Copy(c, c)
		}()
	}
}

// toAddr writes datagrams to an address.
type toAddr struct {
	conn net.PacketConn
	to   net.Addr
}

func (t toAddr) Write(b []byte) (int, error) { return t.conn.WriteTo(b, t.to) }

// request sends a text and prints the answer. TCP answers end when the client has ended its half:
//
//	exec ask tcp|udp ADDRESS TEXT
func request() {
	reply, err := send(os.Args[1], os.Args[2], os.Args[3])
	check("ask", err)
	fmt.Println(reply)
}

func send(network, to, text string) (string, error) {
	const timeout = 30 * time.Second
	c, err := net.DialTimeout(network, to, timeout)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	tcp, is := c.(*net.TCPConn)
	if !is {
		b := make([]byte, 1500)
		n, err := c.Read(b)
		return string(b[:n]), err
	}
	if err := tcp.CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// keep holds a TCP connection open until it is killed:
//
//	exec keep ADDRESS &
func keep() {
	c, err := net.Dial("tcp", os.Args[1])
	check("keep", err)
	_, _ = io.Copy(io.Discard, c)
}

// check ends a program after an error.
func check(program string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(1)
	}
}

// says runs a program of a script, and succeeds if its output matches:
//
//	await says REGEXP PROGRAM ARG...
func says() {
	out, err := exec.Command(os.Args[2], os.Args[3:]...).CombinedOutput()
	fmt.Printf("%s", out)
	if err != nil || !regexp.MustCompile("(?m)"+os.Args[1]).Match(out) {
		os.Exit(1)
	}
}

// closed succeeds if nothing listens at a TCP address.
func closed() {
	if _, err := net.Dial("tcp", os.Args[1]); !errors.Is(err, syscall.ECONNREFUSED) {
		os.Exit(1)
	}
}
