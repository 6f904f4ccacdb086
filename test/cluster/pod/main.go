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
       pod serve AGE       the same until SIGTERM; answers on older connections ask the client to close them
       pod drain           wait for WAIT until the Sluice of NODE says that this pod is drained: a preStop hook
       pod load HOST:PORT  ask such a server all the time, serve counts at port 8081, and print them at the end
`

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 0:
		<-ctx.Done()
	case args[0] == "serve" && len(args) == 1:
		err = serve(ctx, server{grace: grace})
	case args[0] == "serve" && len(args) == 2:
		var age time.Duration
		if age, err = time.ParseDuration(args[1]); err == nil {
			err = serve(ctx, server{age: age})
		}
	case args[0] == "drain" && len(args) == 1:
		err = drain(ctx)
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

// server answers each line with the name of the host, the client's address, and whether to close the connection.
type server struct {
	name  string
	grace time.Duration
	age   time.Duration // of connections that are to be closed; 0: none
}

func serve(ctx context.Context, s server) error {
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	if s.name, err = os.Hostname(); err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		time.Sleep(s.grace)
		os.Exit(0)
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go s.answer(conn)
	}
}

// answer answers one client until it closes the connection.
func (s server) answer(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	began := time.Now()
	for question := make([]byte, 1); ; {
		if _, err := conn.Read(question); err != nil {
			return
		}
		toClose := s.age > 0 && time.Since(began) >= s.age
		if _, err := fmt.Fprintf(conn, "%s %s %t\n", s.name, host, toClose); err != nil {
			return
		}
	}
}

// drain is the hook of docs/drain.md. It fails if the pod is not drained.
func drain(ctx context.Context) error {
	url := fmt.Sprintf("http://%s:10261/drain?wait=%s", os.Getenv("NODE"), os.Getenv("WAIT"))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
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
	Kept        string        // the error of a connection that was kept open, "" while it answers
	Closed      int           // connections that were kept open until the server asked to close them
}

// client asks a server.
type client struct {
	to string
	mu sync.Mutex
	counts
}

// load asks a server from now on, over a new connection every 10 ms and over one that it keeps, until the
// server asks to close it.
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
	answer, err := c.ask(ctx)
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
	c.Backends[answer.name]++
	c.Sources[answer.source]++
}

func (c *client) ask(ctx context.Context) (reply, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return reply{}, err
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

// reply is the answer of a server.
type reply struct {
	name, source string
	toClose      bool
}

// question asks once over a connection.
func question(conn net.Conn) (r reply, err error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return reply{}, err
	}
	if _, err := conn.Write([]byte("?")); err != nil {
		return reply{}, err
	}
	_, err = fmt.Fscanln(conn, &r.name, &r.source, &r.toClose)
	return r, err
}

// keep keeps a connection open, and opens another when it was to be closed.
func (c *client) keep(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.keepOne(ctx)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if err != nil {
			c.Kept = err.Error()
		} else {
			c.Closed++
		}
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// keepOne keeps one connection open until it is to be closed.
func (c *client) keepOne(ctx context.Context) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for ctx.Err() == nil {
		if r, err := question(conn); err != nil || r.toClose {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return ctx.Err()
}
