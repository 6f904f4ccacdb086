//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// The model. A backend works on a few requests at a time, and others wait there. Each client makes
// one request after another, each over a new connection, with pauses.
const (
	backends    = 8
	atOnce      = 4 // requests that a backend works on
	clients     = 64
	requestTime = 10 * time.Millisecond // the mean; exponentially distributed, as are pauses
	pauseTime   = 20 * time.Millisecond
	slowness    = 5 // how much longer the slow backend takes
	port        = 80
)

// scenario has the settings in which tables differ.
type scenario struct {
	title string
	slow  float64 // how much longer the last backend takes for each request
	// weight is the weight of all backends but the last one, which has 1.
	weight uint32
}

func scenarios() []scenario {
	return []scenario{
		{"All backends are alike", 1, 1},
		{fmt.Sprintf("The last backend takes %d times as long, and all weights are 1", slowness), slowness, 1},
		{
			fmt.Sprintf("The last backend takes %d times as long, and the others have weight %[1]d", slowness),
			slowness, slowness,
		},
	}
}

// backend serves requests. The first eight bytes of a connection are the duration of its request
// on a backend that is not slow.
type backend struct {
	listener net.Listener
	workers  chan struct{}
	slow     float64

	served     atomic.Int64
	open, most atomic.Int64 // connections
}

func serve(at netip.AddrPort) (*backend, error) {
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return nil, err
	}
	b := &backend{listener: l, workers: make(chan struct{}, atOnce), slow: 1}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if n := b.open.Add(1); n > b.most.Load() { // only this goroutine stores it
				b.most.Store(n)
			}
			go b.answer(conn)
		}
	}()
	return b, nil
}

// reset prepares a backend without connections for a run.
func (b *backend) reset(slow float64) {
	b.slow = slow
	b.served.Store(0)
	b.most.Store(0)
}

func (b *backend) answer(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	defer b.open.Add(-1)
	var request [8]byte
	if _, err := io.ReadFull(conn, request[:]); err != nil {
		return
	}
	b.workers <- struct{}{}
	time.Sleep(time.Duration(b.slow * float64(binary.BigEndian.Uint64(request[:]))))
	<-b.workers
	b.served.Add(1)
	_, _ = conn.Write(request[:1]) // the client notices an error
}

// client makes requests from an address of its own.
type client struct {
	from   netip.Addr
	to     netip.AddrPort
	random interface{ ExpFloat64() float64 }

	took    []time.Duration
	refused int
}

func (c *client) run(requests int) error {
	for range requests {
		c.sleep(pauseTime)
		work := time.Duration(c.random.ExpFloat64() * float64(requestTime))
		began := time.Now()
		switch err := c.request(work); {
		case errors.Is(err, errRefused):
			c.refused++
		case err != nil:
			return err
		default:
			c.took = append(c.took, time.Since(began))
		}
	}
	return nil
}

func (c *client) sleep(mean time.Duration) {
	time.Sleep(time.Duration(c.random.ExpFloat64() * float64(mean)))
}

var errRefused = errors.New("the connection is refused")

func (c *client) request(work time.Duration) error {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.from, 0))}
	conn, err := d.Dial("tcp", c.to.String())
	if err != nil {
		return errors.Join(errRefused, err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, uint64(work))); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// runAll runs clients at the same time.
func runAll(all []*client, requests int) error {
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, c := range all {
		running.Go(func() { errs[i] = c.run(requests / len(all)) })
	}
	running.Wait()
	return errors.Join(errs...)
}
