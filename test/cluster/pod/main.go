// Command pod is what containers of the test cluster run: the process that keeps a pod's namespaces, a server, and a
// client that opens a connection to a Service again and again.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

const usage = `usage: pod                 wait for SIGTERM
       pod serve           answer at port 8080 with the name of the host, for 5 s longer after SIGTERM
       pod load HOST:PORT  ask such a server all the time, serve counts at port 8081, and print them at the end
`

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 0:
		<-ctx.Done()
	case args[0] == "serve":
		err = serve(ctx)
	case args[0] == "load" && len(args) == 2:
		err = load(ctx, args[1])
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

// grace is how long a server answers after SIGTERM, until each node has left it out.
const grace = 5 * time.Second

// serve answers each line with the name of the host and the client's address.
func serve(ctx context.Context) error {
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		time.Sleep(grace)
		os.Exit(0)
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go answer(conn, name)
	}
}

// answer answers one client until it closes the connection.
func answer(conn net.Conn, name string) {
	defer func() { _ = conn.Close() }()
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	for question := make([]byte, 1); ; {
		if _, err := conn.Read(question); err != nil {
			return
		}
		if _, err := fmt.Fprintf(conn, "%s %s\n", name, host); err != nil {
			return
		}
	}
}

// counts are the results of a client.
type counts struct {
	Connections int
	Lost        []string       // errors of those without an answer
	Backends    map[string]int // connections by the name of the server
	Sources     map[string]int // connections by the address that it saw
	Unanswered  int            // questions to the name server
	Slowest     time.Duration
	Stalled     time.Duration // for which the client itself did not run, at most
	Kept        string        // the error of a connection that was kept open from the start, "" while it answers
}

// client asks a server.
type client struct {
	to string
	mu sync.Mutex
	counts
}

// load asks a server from now on, over a new connection every 10 ms and over one that it keeps.
func load(ctx context.Context, to string) error {
	c := &client{to: to, counts: counts{Backends: map[string]int{}, Sources: map[string]int{}}}
	go c.keep(ctx)
	go func() {
		last := time.Now()
		for every := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; <-every.C {
			c.tick(time.Since(last))
			last = time.Now()
			go c.once(ctx)
		}
	}()
	server := &http.Server{Addr: ":8081", Handler: c, ReadHeaderTimeout: time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return json.NewEncoder(os.Stdout).Encode(c.counts)
}

// ServeHTTP answers with the counts as JSON.
func (c *client) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = json.NewEncoder(w).Encode(c.counts) // an error means that the reader is gone
}

// tick records the time since the last connection was begun.
func (c *client) tick(since time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Stalled = max(c.Stalled, since)
}

// patience is when a connection without an answer counts as lost. A busy machine may stop a client or a server for some
// 20 s, and nothing that a proxy drops gets an answer later.
const patience = time.Minute

// once opens one connection.
func (c *client) once(ctx context.Context) {
	start := time.Now()
	name, source, err := c.ask(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		return // it ended with the client
	}
	c.Connections++
	c.Slowest = max(c.Slowest, time.Since(start))
	if err != nil {
		c.Lost = append(c.Lost, fmt.Sprintf("%s, %v: %v", start.UTC().Format(time.TimeOnly), time.Since(start), err))
		c.Lost = slices.Delete(c.Lost, 0, max(0, len(c.Lost)-20))
		return
	}
	c.Backends[name]++
	c.Sources[source]++
}

func (c *client) ask(ctx context.Context) (name, source string, err error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = conn.Close() }()
	return question(conn)
}

// dial opens a connection. It looks up each name again.
func (c *client) dial(ctx context.Context) (net.Conn, error) {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, server string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, server)
		if u, is := conn.(*net.UDPConn); is {
			return &lookup{UDPConn: u, client: c}, err
		}
		return conn, err
	}}
	dialer := &net.Dialer{Timeout: patience, Resolver: resolver}
	return dialer.DialContext(ctx, "tcp", c.to)
}

// lookup is a question to a name server.
type lookup struct {
	*net.UDPConn
	client   *client
	answered bool
}

func (l *lookup) Read(b []byte) (int, error) {
	n, err := l.UDPConn.Read(b)
	l.answered = l.answered || err == nil
	return n, err
}

func (l *lookup) Close() error {
	if !l.answered {
		l.client.mu.Lock()
		defer l.client.mu.Unlock()
		l.client.Unanswered++
	}
	return l.UDPConn.Close()
}

// question asks once over a connection.
func question(conn net.Conn) (name, source string, err error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", "", err
	}
	if _, err := conn.Write([]byte("?")); err != nil {
		return "", "", err
	}
	_, err = fmt.Fscanln(conn, &name, &source)
	return name, source, err
}

// keep keeps a connection open.
func (c *client) keep(ctx context.Context) {
	conn, err := c.dial(ctx)
	for err == nil && ctx.Err() == nil {
		if _, _, err = question(conn); err == nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
	if ctx.Err() == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.Kept = err.Error()
	}
}
