package nl

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
)

// perSend is how many requests ExecuteAll sends at once. Some 20 KB of them fit into any send buffer.
const perSend = 128

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
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	return c.conn.Execute(r.message())
}

// ExecuteAll sends requests that have no answer, many at once, and waits only for the last of
// them: the kernel carries out one after the other, and reports those that fail. If there is an
// error, the kernel may have carried out any of the requests, and the socket must be closed.
func (c *Conn) ExecuteAll(ctx context.Context, requests []Request) error {
	for some := range slices.Chunk(requests, perSend) {
		if err := c.executeSome(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) executeSome(ctx context.Context, requests []Request) error {
	messages := make([]netlink.Message, len(requests))
	for i, r := range requests {
		messages[i] = r.message()
	}
	messages[len(messages)-1].Header.Flags |= netlink.Acknowledge
	if err := c.prepare(ctx); err != nil {
		return err
	}
	if _, err := c.conn.SendMessages(messages); err != nil {
		return err
	}
	_, err := c.conn.Receive() // the first failure, or the acknowledgement
	return err
}

// prepare sets the deadline of one answer.
func (c *Conn) prepare(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return fmt.Errorf("set deadline of netlink socket: %w", err)
	}
	return nil
}

// message encodes the request.
func (r Request) message() netlink.Message {
	header := r.Header
	if header == nil {
		header = make([]byte, headerLen)
	}
	return netlink.Message{
		Header: netlink.Header{Type: r.Type, Flags: netlink.Request | r.Flags},
		Data:   slices.Concat(header, r.Attributes),
	}
}
