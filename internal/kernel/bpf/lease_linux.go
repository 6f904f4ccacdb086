package bpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// LeaseKey identifies a lease: programs may send the connections of a client to the backend of the lease, at all frontends of a Service port.
type LeaseKey struct {
	Port   Pool       // with 0 as its last byte
	Client netip.Addr // a pod; for the node the address of the frontend
}

// Request reports a connection to a frontend with session affinity whose client has no lease. The packet plane handles the connection.
type Request struct {
	LeaseKey
	Frontend netip.AddrPort
	Protocol uint8
	Clients  Clients
}

func (l LeaseKey) key() []byte { return append(append([]byte{}, l.Port[:]...), address(l.Client)...) }

// requestSize is the size of a struct request of sock.c.
const requestSize = 56

// Requests calls a function with the requests of programs until the context ends, and then returns nil. It includes requests from before
// the call. If programs make many requests at once, some are lost.
func (c *Conn) Requests(ctx context.Context, do func(Request)) error {
	return c.reading(ctx, sockMapRequests, func(r *ringbuf.Reader) error {
		for {
			record, err := r.Read()
			if err != nil {
				return err
			}
			if b := record.RawSample; len(b) >= requestSize {
				do(Request{
					LeaseKey: LeaseKey{Pool(b[:16]), addressIn(b[16:])},
					Frontend: endpointIn(b[32:]), Protocol: b[52], Clients: Clients(b[53]),
				})
			}
		}
	})
}

// reading calls a function with a reader of a ring buffer. The reader is closed when the context ends; reading returns nil then.
func (c *Conn) reading(ctx context.Context, name string, do func(*ringbuf.Reader) error) error {
	r, err := c.reader(name)
	if err != nil {
		return fmt.Errorf("open map %s: %w", name, err)
	}
	defer func() { _ = r.Close() }() // it was only read from
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	if err := do(r); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("read map %s: %w", name, err)
	}
	return nil
}

// reader returns a reader of a ring buffer.
func (c *Conn) reader(name string) (*ringbuf.Reader, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		return nil, err
	}
	return ringbuf.NewReader(c.maps[name])
}

// Lease lets programs send the connections of a client to a backend for some time.
func (c *Conn) Lease(l LeaseKey, backend netip.AddrPort, length time.Duration) error {
	now, err := clock()
	if err != nil {
		return err
	}
	value := append(endpoint(backend), 0, 0, 0, 0)
	value = binary.NativeEndian.AppendUint64(value, now+uint64(length))
	return c.withMap(sockMapLeases, func(m *ebpf.Map) error {
		err := put(m, l.key(), value)
		if isFull(err) {
			return ErrFull
		}
		return err
	})
}

// EndLeases deletes leases. It ignores those that do not exist.
func (c *Conn) EndLeases(list []LeaseKey) error {
	return c.withMap(sockMapLeases, func(m *ebpf.Map) error {
		for _, l := range list {
			if err := remove(m, l.key()); err != nil {
				return err
			}
		}
		return nil
	})
}

// Leases lists all leases, also expired ones.
func (c *Conn) Leases() (list []LeaseKey, err error) {
	err = c.withMap(sockMapLeases, func(m *ebpf.Map) error {
		return each(m, func(k, _ []byte) { list = append(list, LeaseKey{Pool(k[:16]), addressIn(k[16:])}) })
	})
	return list, err
}
