package iptables_test

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A client on the host has a connection to a cluster IP, and keeps it when the rule that translated it is removed; new
// connections are not translated. Another rule uses conntrack as well, as the kernel stops tracking with its last user.
func TestConnectionsOutliveTheirRules(t *testing.T) {
	for _, variant := range []string{"legacy", "nft"} {
		for family, address := range map[string]string{"iptables": "127.0.0.1", "ip6tables": "::1"} {
			program := family + "-" + variant
			t.Run(program, func(t *testing.T) {
				h := newHost(t)
				kerneltest.Do(t, h.netns, func() error { return testConnection(t, h, program, address) })
			})
		}
	}
}

// testConnection runs in the namespace.
func testConnection(t *testing.T, h host, program, address string) error {
	server, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = server.Close() }()
	go echo(server)
	h.run(fmt.Sprintf(`*nat
:OUTPUT ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A OUTPUT -j KUBE-SERVICES
-A OUTPUT -m conntrack --ctstate INVALID -j ACCEPT
-A KUBE-SERVICES -d %s -p tcp --dport 80 -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -j DNAT --to-destination %s
COMMIT
`, address, server.Addr()), program+"-restore")

	service := net.JoinHostPort(address, "80")
	conn, err := net.DialTimeout("tcp", service, 30*time.Second)
	if err != nil {
		return fmt.Errorf("connect to the service: %w", err)
	}
	defer func() { _ = conn.Close() }()
	exchange := func(word string) error {
		if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(conn, word); err != nil {
			return fmt.Errorf("send %q: %w", word, err)
		}
		answer, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || answer != word+"\n" {
			return fmt.Errorf("the reply to %q is %q: %w", word, answer, err)
		}
		return nil
	}
	if err := exchange("before"); err != nil {
		return err
	}
	if err := h.kernel().Remove(t.Context(), removals(h.outlines())...); err != nil {
		return err
	}
	if other, err := net.DialTimeout("tcp", service, 30*time.Second); err == nil {
		_ = other.Close()
		t.Error("a new connection is still translated")
	}
	return exchange("after")
}

// echo sends each line back.
func echo(server net.Listener) {
	for {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				if _, err := fmt.Fprintln(conn, lines.Text()); err != nil {
					return
				}
			}
		}()
	}
}
