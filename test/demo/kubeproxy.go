//go:build linux

package main

import (
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// recorded has the rules that a real kube-proxy left in the kernel for the Services of examples/: a transaction of
// nf_tables with one netlink message per line, in base64. TestRecord writes the file; testdata/kube-proxy.nft has the
// same rules in readable form.
//
//go:embed testdata/kube-proxy.rules
var recorded string

// loadRules loads the recorded rules on a host, which needs no program nft.
func loadRules(on *lab.Host) error {
	return on.Do(func() error { return sendAll(recorded) })
}

// sendAll sends recorded messages to the kernel of this thread's namespace.
func sendAll(recorded string) error {
	var transaction []byte
	for line := range strings.Lines(recorded) {
		message, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err != nil {
			return fmt.Errorf("read the recorded rules: %w", err)
		}
		transaction = append(transaction, message...)
	}
	return send(transaction)
}

// send returns the first error of a transaction. The kernel has answered when
// Sendto returns; the transaction asks for a confirmation of its last message.
func send(transaction []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Sendto(fd, transaction, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("write rules: %w", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
	if err != nil || n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("read the answer of nf_tables (%d bytes): %w", n, err)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return fmt.Errorf("load rules: %w", unix.Errno(-code))
	}
	return nil
}
