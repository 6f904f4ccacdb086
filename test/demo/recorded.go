//go:build linux

package main

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// recorded are the rules of a real kube-proxy for the Services of examples/, as
// it left them in the kernel: one message of nf_tables on a line, with its number,
// family and attributes. TestRecord writes the file; testdata/kube-proxy.nft is
// the same for people.
//
//go:embed testdata/kube-proxy.rules
var recorded string

// message is what nf_tables is told about one object.
type message struct {
	number     uint16 // NFT_MSG_NEWTABLE and so on
	family     uint8
	attributes []byte
}

func (m message) String() string {
	return fmt.Sprintf("%d %d %s", m.number, m.family, base64.StdEncoding.EncodeToString(m.attributes))
}

// parseMessages reads what message.String writes.
func parseMessages(text string) ([]message, error) {
	var out []message
	for line := range strings.Lines(text) {
		m, err := parseMessage(strings.Fields(line))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", len(out)+1, err)
		}
		out = append(out, m)
	}
	return out, nil
}

func parseMessage(words []string) (message, error) {
	if len(words) != 3 {
		return message{}, fmt.Errorf("%d words, want number, family and attributes", len(words))
	}
	number, err := strconv.ParseUint(words[0], 10, 8)
	if err != nil {
		return message{}, fmt.Errorf("number: %w", err)
	}
	family, err := strconv.ParseUint(words[1], 10, 8)
	if err != nil {
		return message{}, fmt.Errorf("family: %w", err)
	}
	attributes, err := base64.StdEncoding.DecodeString(words[2])
	if err != nil {
		return message{}, fmt.Errorf("attributes: %w", err)
	}
	return message{uint16(number), uint8(family), attributes}, nil
}

// load has the kernel take messages in one transaction.
func load(netns int, messages []message) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetWriteBuffer(1 << 20); err != nil {
		return fmt.Errorf("make room for messages: %w", err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("limit the time of nf_tables: %w", err)
	}
	if _, err := conn.SendMessages(transaction(messages)); err != nil {
		return fmt.Errorf("write %d messages: %w", len(messages), err)
	}
	if _, err := conn.Receive(); err != nil {
		return fmt.Errorf("load %d messages: %w", len(messages), err)
	}
	return nil
}

// transaction is what is sent to the kernel. It confirms the last message; an
// error of any comes before that.
func transaction(messages []message) []netlink.Message {
	begin := netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request}
	end := netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request}
	whose := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	out := []netlink.Message{{Header: begin, Data: whose}}
	for i, m := range messages {
		head := netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | m.number),
			Flags: netlink.Request | netlink.Create | netlink.Append,
		}
		if i == len(messages)-1 {
			head.Flags |= netlink.Acknowledge
		}
		out = append(out, netlink.Message{Header: head, Data: append([]byte{m.family, unix.NFNETLINK_V0, 0, 0}, m.attributes...)})
	}
	return append(out, netlink.Message{Header: end, Data: whose})
}
