package handover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// format is the version of what the values of a Handover mean. Change it when a value can no longer be read by
// an older or newer program: such a program adopts the Files only.
const format = 1

const (
	batch            = 250              // descriptors in one message; the kernel allows 253
	maxText          = 1 << 30          // bytes of a parcel
	maxFiles         = 4 << 20          // descriptors of a parcel
	stepTime         = 5 * time.Second  // for the receiver, at each step: nothing is forwarded meanwhile
	receiveTime      = 60 * time.Second // for everything; the sender ends its parts first
	commit      byte = 'c'              // from the sender: the receiver has everything, and goes on
	ready       byte = 'r'              // from the receiver: it has everything so far
)

// parcel is a Handover on a socket. Its descriptors follow: those of Files, then Descriptors.
type parcel struct {
	Format      int                        `json:"format"`
	Files       []string                   `json:"files"`
	Values      map[string]json.RawMessage `json:"values"`
	Descriptors []int                      `json:"descriptors,omitempty"`
}

// Send sends the Handover to the process at the other end of To. Without an error that process goes on with
// everything, and this one must not. After an error it does not, and this process has everything still.
func (h *Handover) Send() error {
	p := parcel{Format: format, Files: slices.Sorted(maps.Keys(h.Files)), Values: h.Values, Descriptors: h.Descriptors}
	var fds []int
	for _, name := range p.Files {
		fd, err := number(h.Files[name])
		if err != nil {
			return fmt.Errorf("hand over %s: %w", name, err)
		}
		fds = append(fds, fd)
	}
	fds = append(fds, h.Descriptors...)
	if err := p.send(h.To, fds); err != nil {
		return errors.Join(fmt.Errorf("hand over to another process: %w", err), h.To.Close())
	}
	for _, f := range h.Files {
		_ = f.Close() // the receiver has it
	}
	closeAll(h.TakeDescriptors()) // a copy would keep a connection open that the receiver closes
	_ = h.To.Close()              // the receiver has everything
	return nil
}

func (p *parcel) send(c *net.UnixConn, fds []int) error {
	step := func() error { return c.SetDeadline(time.Now().Add(stepTime)) }
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := step(); err != nil {
		return err
	}
	if _, err := c.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text)))); err != nil {
		return err
	}
	if _, err := c.Write(text); err != nil {
		return err
	}
	for part := range slices.Chunk(fds, batch) {
		if err := step(); err != nil {
			return err
		}
		if _, _, err := c.WriteMsgUnix([]byte{ready}, unix.UnixRights(part...), nil); err != nil {
			return err
		}
		if err := expect(c, ready); err != nil { // the kernel limits how many descriptors are on their way
			return err
		}
	}
	if err := errors.Join(step(), expect(c, ready)); err != nil {
		return err
	}
	_, err = c.Write([]byte{commit})
	return err
}

// expect reads one byte.
func expect(c io.Reader, want byte) error {
	var got [1]byte
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return err
	}
	if got[0] != want {
		return fmt.Errorf("received %q, want %q", got[0], want)
	}
	return nil
}

// number returns the descriptor of a file, which stays non-blocking.
func number(f *os.File) (n int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = raw.Control(func(fd uintptr) { n = int(fd) })
	return n, err
}

// ErrFormat means that another version of the program sent a Handover: only its Files are in it.
var ErrFormat = errors.New("another version of the program handed over; connections that it forwarded itself end")

// Accept returns the Handover that the other end sends. Without an error, or with ErrFormat, the sender does not
// go on with it. Accept closes the connection.
func Accept(c *net.UnixConn) (*Handover, error) {
	defer func() { _ = c.Close() }() // everything was read
	if err := c.SetDeadline(time.Now().Add(receiveTime)); err != nil {
		return nil, err
	}
	p, fds, err := receive(c)
	if err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("the running Sluice did not finish the handover: it still serves, or has ended: %w", err)
	}
	h := &Handover{Files: map[string]*os.File{}}
	for i, name := range p.Files {
		h.Files[name] = os.NewFile(uintptr(fds[i]), name)
	}
	fds = fds[len(p.Files):]
	if p.Format != format {
		h.Descriptors = fds
		h.Discard() // connections are reset: their peers must not take the end for that of the data
		return h, ErrFormat
	}
	h.Values, h.Descriptors, h.Numbers = p.Values, fds, map[int]int{}
	for i, n := range p.Descriptors {
		h.Numbers[n] = fds[i]
	}
	return h, nil
}

// receive reads a parcel and its descriptors, and the word of the sender that it does not go on.
func receive(c *net.UnixConn) (p parcel, fds []int, err error) {
	var size [8]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return p, nil, err
	}
	n := binary.BigEndian.Uint64(size[:])
	if n > maxText {
		return p, nil, fmt.Errorf("%d bytes are too many", n)
	}
	text, err := io.ReadAll(io.LimitReader(c, int64(n)))
	if err != nil {
		return p, nil, err
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, nil, err
	}
	want := len(p.Files) + len(p.Descriptors)
	if want > maxFiles {
		return p, nil, fmt.Errorf("%d descriptors are too many", want)
	}
	for len(fds) < want {
		part, err := receiveBatch(c)
		fds = append(fds, part...)
		if err == nil {
			_, err = c.Write([]byte{ready})
		}
		if err != nil {
			return p, fds, err
		}
	}
	if len(fds) != want {
		return p, fds, fmt.Errorf("received %d descriptors, want %d", len(fds), want)
	}
	if _, err := c.Write([]byte{ready}); err != nil {
		return p, fds, err
	}
	return p, fds, expect(c, commit)
}

// receiveBatch reads the descriptors of one message.
func receiveBatch(c *net.UnixConn) (fds []int, err error) {
	space := make([]byte, unix.CmsgSpace(batch*4))
	_, n, flags, _, err := c.ReadMsgUnix(make([]byte, 1), space) // with MSG_CMSG_CLOEXEC
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(space[:n])
	if err != nil {
		return nil, err
	}
	for i := range messages {
		part, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, part...)
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return fds, fmt.Errorf("the limit of open files is too low, or a security module refuses them: %w", unix.EMFILE)
	}
	if len(fds) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // the sender has it, or it ends
	}
}

// check removes the Descriptors that are not open. A new run would take another file for them.
func (h *Handover) check() error {
	var bad []int
	h.Descriptors = slices.DeleteFunc(h.Descriptors, func(fd int) bool {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			bad = append(bad, fd)
		}
		return err != nil
	})
	if len(bad) > 0 {
		return fmt.Errorf("descriptors %v are not open", bad)
	}
	return nil
}

// reset closes a descriptor. The peer of a connection gets a reset, not an end that looks like the end of its data.
func reset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // it may be no socket
	_ = unix.Close(fd)
}
