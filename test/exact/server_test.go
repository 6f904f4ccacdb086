//go:build linux

package exact

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"

	"github.com/sluice-proxy/sluice/test/lab"
)

// answer makes a host answer each line and each datagram with its own name, the name of the client, and the question.
func (n *node) answer(name string, h *lab.Host) {
	n.must(h.Do(func() error {
		stream, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			return err
		}
		n.Cleanup(func() { _ = stream.Close() })
		go n.answerStreams(name, stream)
		for _, family := range []string{"4", "6"} {
			for _, p := range []int{port, dns} {
				datagrams, err := net.ListenPacket("udp"+family, fmt.Sprint(":", p))
				if err != nil {
					return err
				}
				n.Cleanup(func() { _ = datagrams.Close() })
				go n.answerDatagrams(name, datagrams.(*net.UDPConn))
			}
		}
		return nil
	}))
}

func (n *node) answerStreams(name string, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }() // the client sees errors
			client := n.called(conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				if _, err := fmt.Fprintf(conn, "%s %s sees %s\n", lines.Text(), name, client); err != nil {
					return
				}
			}
		}()
	}
}

func (n *node) answerDatagrams(name string, l *net.UDPConn) {
	b := make([]byte, 1500)
	for {
		size, from, err := l.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		// If this fails, the client times out.
		_, _ = l.WriteToUDPAddrPort(fmt.Appendf(nil, "%s %s sees %s", b[:size], name, n.called(from.Addr())), from)
	}
}

func at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}
