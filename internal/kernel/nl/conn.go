package nl

import (
	"context"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
)

// Conn is an open socket, for many requests. One goroutine uses it at a time.
type Conn struct{ conn *netlink.Conn }

// Dial opens a socket in the network namespace of a file descriptor; 0: the current one.
func Dial(netns, protocol int) (*Conn, error) {
	conn, err := netlink.Dial(protocol, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &Conn{conn}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.conn.Close() }

// Execute sends a request and returns the answers. It ignores NetNS and Protocol of the
// request, which are those of the socket.
func (c *Conn) Execute(ctx context.Context, r Request) ([]netlink.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	attributes := netlink.NewAttributeEncoder()
	if r.Encode != nil {
		r.Encode(attributes)
	}
	data, err := attributes.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode netlink request: %w", err)
	}
	if err := c.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, fmt.Errorf("set deadline of netlink socket: %w", err)
	}
	return c.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: r.Type, Flags: netlink.Request | r.Flags},
		Data:   append(r.Header[:], data...),
	})
}
