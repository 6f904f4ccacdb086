// Package nl sends requests over netlink, encodes their attributes, and decodes those of answers.
package nl

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/mdlayher/netlink"
)

// headerLen is the size of struct nfgenmsg and of struct genlmsghdr, with which the data of each message begins.
const headerLen = 4

// answerTimeout bounds one answer of the kernel, which may have to load modules.
const answerTimeout = 10 * time.Second

// Request is a request to the kernel.
type Request struct {
	NetNS    int // file descriptor of a network namespace; 0: the current one
	Protocol int // such as unix.NETLINK_NETFILTER
	Type     netlink.HeaderType
	Flags    netlink.HeaderFlags // in addition to netlink.Request
	Header   []byte              // begins the data; nil: four zero bytes, as of struct nfgenmsg or struct genlmsghdr

	Attributes []byte // see Append
}

// ProtocolName returns the name of a transport protocol by its IANA number: "tcp"; the number if it has none here.
func ProtocolName(n uint8) string {
	switch n {
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 132:
		return "sctp"
	}
	return strconv.Itoa(int(n))
}

// Execute sends a request through a socket of its own and returns the answers.
func Execute(ctx context.Context, r Request) ([]netlink.Message, error) {
	conn, err := Dial(r.NetNS, r.Protocol)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // all is answered
	return conn.Execute(ctx, r)
}

// ExecuteAll is Conn.ExecuteAll through a socket of its own, that of the first request.
func ExecuteAll(ctx context.Context, requests []Request) error {
	if len(requests) == 0 {
		return nil
	}
	conn, err := Dial(requests[0].NetNS, requests[0].Protocol)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is answered
	return conn.ExecuteAll(ctx, requests)
}

// Decode calls fn for each attribute of a message, whose numbers have this byte order.
func Decode(m netlink.Message, order binary.ByteOrder, fn func(*netlink.AttributeDecoder)) error {
	if len(m.Data) < headerLen {
		return fmt.Errorf("decode netlink message of %d bytes: too short", len(m.Data))
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[headerLen:])
	if err != nil {
		return fmt.Errorf("decode netlink message: %w", err)
	}
	attributes.ByteOrder = order
	for attributes.Next() {
		fn(attributes)
	}
	if err := attributes.Err(); err != nil {
		return fmt.Errorf("decode netlink message: %w", err)
	}
	return nil
}

// Nested calls fn for each attribute within the current one.
func Nested(attributes *netlink.AttributeDecoder, fn func(*netlink.AttributeDecoder)) {
	attributes.Nested(func(in *netlink.AttributeDecoder) error {
		for in.Next() {
			fn(in)
		}
		return in.Err()
	})
}
