package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// exchange sends requests, most of them about one table, and receives the answers into the same
// memory. The library allocates memory for each and asks the kernel for its size before.
type exchange struct {
	table   Table
	sock    *nl.Socket
	number  uint32 // of the last request
	request []byte
	last    int // where the last message of the request begins

	interrupted bool // another program changed what is listed
	loose       bool // which does not matter

	large int // see the constant of this name
}

// exchange returns the exchange of the socket, for requests about a table.
func (c *Conn) exchange(t Table) *exchange {
	c.x.table = t
	return c.x
}

// begin begins a request of one message. The caller appends further attributes.
func (x *exchange) begin(kind, flags uint16) {
	x.request = x.request[:0]
	x.number++
	x.about(x.table, kind, flags)
}

// about begins a further message, about a table.
func (x *exchange) about(t Table, kind, flags uint16) {
	x.message(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, [nfgenHeader]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0})
	if t.Name != "" { // otherwise about all
		x.text(unix.NFTA_TABLE_NAME, t.Name) // the same number in all kinds
	}
}

// text appends an attribute with a text to the last message.
func (x *exchange) text(typ uint16, text string) { x.request = nl.AppendString(x.request, typ, text) }

func (x *exchange) uint32(typ uint16, n uint32) { x.request = nl.AppendUint32(x.request, typ, n) }

// message ends the last message, and begins a further one with struct nfgenmsg.
func (x *exchange) message(typ, flags uint16, header [nfgenHeader]byte) {
	x.end()
	x.last = len(x.request)
	b := append(x.request, 0, 0, 0, 0) // the length
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, x.number)
	b = append(b, 0, 0, 0, 0) // the port: that of the socket
	x.request = append(b, header[:]...)
}

// end stores the length of the last message.
func (x *exchange) end() {
	if len(x.request) > 0 {
		binary.NativeEndian.PutUint32(x.request[x.last:], uint32(len(x.request)-x.last))
	}
}

// do sends the request, and calls answer with each message of the answer. Its last message, or the one before the end
// of a transaction, has the flag NLM_F_ACK or NLM_F_DUMP. If the kernel refuses the request, the error is a
// netlink.OpError. The error is EINTR if the kernel notices that another program changed what is listed.
func (x *exchange) do(answer func(netlink.Message) error) error {
	x.interrupted = false
	x.end()
	if err := x.sock.Write(x.request); err != nil {
		return fmt.Errorf("send netlink request: %w", err)
	}
	for {
		part, err := x.sock.Wait()
		if err != nil {
			return fmt.Errorf("receive netlink answer: %w", err)
		}
		for m := range nl.Messages(part) {
			if done, err := x.read(m, answer); done || err != nil {
				return err
			}
		}
	}
}

// readNumber does the request, and returns a number of 32 bits in the answer; 0 if it has none.
func (x *exchange) readNumber(attribute uint16) (n uint32, err error) {
	err = x.do(func(m netlink.Message) error {
		return nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == attribute {
				n = ad.Uint32()
			}
		})
	})
	return n, err
}

// read reads a message; done: it ends the answer.
func (x *exchange) read(m netlink.Message, answer func(netlink.Message) error) (done bool, err error) {
	if m.Header.Sequence != x.number {
		return false, fmt.Errorf("the kernel answers request %d, want %d", m.Header.Sequence, x.number)
	}
	x.interrupted = x.interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 && !x.loose
	done, err = nl.Ends(m)
	switch {
	case err != nil:
		return true, &netlink.OpError{Op: "receive", Err: err}
	case x.interrupted && done:
		return true, unix.EINTR
	case x.interrupted || done:
		return done, nil
	}
	return false, answer(m)
}

// nfgenHeader is the size of struct nfgenmsg, with which each message begins.
const nfgenHeader = 4

// nothing is the answer to a request that is carried out or refused.
func nothing(netlink.Message) error { return nil }
