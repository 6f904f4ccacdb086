//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
)

const (
	requestSize    = 64 // bytes of a request, and of its reply
	streamBuffer   = 256 << 10
	maxConnections = 4000
	patience       = 10 * time.Second // for a connection, and for a reply
)

// kind is the action of clients.
type kind string

const (
	requests kind = "requests" // one request after another on kept connections
	streams  kind = "streams"  // read without end
	connects kind = "connects" // a new connection for each request
)

// work is one measurement: its kind and the number of connections at a time.
type work struct {
	Kind        kind
	Connections int
}

// load is a process of clients.
type load struct {
	work
	Target string
	Time   time.Duration
}

// outcome is the result of a load.
type outcome struct {
	Done     int64 // requests, connections or bytes
	Failed   int64
	Took     time.Duration
	P50, P99 time.Duration // of a request, or of a connection with its request
}

// readyLine is the line that a load prints when its connections are open.
const readyLine = "ready"

// run opens the connections, prints readyLine, waits for a line of in, measures, and prints the
// outcome as JSON. Its connections are open until in ends.
func (l load) run(in io.Reader, out io.Writer) error {
	clients, err := l.open()
	if err != nil {
		return err
	}
	commands := bufio.NewReader(in)
	fmt.Fprintln(out, readyLine)
	if _, err := commands.ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}
	if err := json.NewEncoder(out).Encode(l.measure(clients)); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, commands) // an error is an end, too
	for _, c := range clients {
		c.close()
	}
	return nil
}

// client uses one connection, or one after another.
type client struct {
	load
	conn   net.Conn // nil for connects
	buffer []byte

	done, failed int64
	took         []time.Duration
}

// open returns clients whose connections, if they are kept, have reached the backend.
func (l load) open() ([]*client, error) {
	clients := make([]*client, l.Connections)
	for i := range clients {
		c := &client{load: l, buffer: make([]byte, requestSize)}
		clients[i] = c
		if l.Kind == connects {
			continue
		}
		var err error
		if c.conn, err = net.DialTimeout("tcp", l.Target, patience); err != nil {
			return nil, err
		}
		if l.Kind == streams {
			c.buffer = make([]byte, streamBuffer)
			continue
		}
		if err := exchange(c.conn, c.buffer); err != nil {
			return nil, fmt.Errorf("connection %d: %w", i, err)
		}
	}
	return clients, nil
}

func (l load) measure(clients []*client) outcome {
	began := time.Now()
	end := began.Add(l.Time)
	var working sync.WaitGroup
	for _, c := range clients {
		working.Go(func() { c.work(end) })
	}
	working.Wait()
	o := outcome{Took: l.Time}
	var all []time.Duration
	for _, c := range clients {
		o.Done += c.done
		o.Failed += c.failed
		all = append(all, c.took...)
	}
	o.P50, o.P99 = harness.Quantile(all, 0.5), harness.Quantile(all, 0.99)
	return o
}

// work counts the operations before end.
func (c *client) work(end time.Time) {
	switch c.Kind {
	case streams:
		c.read(end)
	case requests:
		_ = c.conn.SetDeadline(end.Add(patience))
		c.repeat(end, func() error { return exchange(c.conn, c.buffer) })
	case connects:
		c.repeat(end, c.connect)
	}
}

func (c *client) repeat(end time.Time, try func() error) {
	for began := time.Now(); began.Before(end); {
		err := try()
		now := time.Now()
		switch {
		case err != nil:
			c.failed++
			time.Sleep(time.Millisecond) // a refused client must not take the CPU from others
		case !now.After(end):
			c.done++
			c.took = append(c.took, now.Sub(began))
		}
		began = now
	}
}

func (c *client) connect() error {
	conn, err := net.DialTimeout("tcp", c.Target, patience)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	return errors.Join(exchange(conn, c.buffer), conn.Close())
}

func (c *client) read(end time.Time) {
	_ = c.conn.SetReadDeadline(end)
	for {
		n, err := c.conn.Read(c.buffer)
		c.done += int64(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			c.failed++
			return
		}
	}
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
}
