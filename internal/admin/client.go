package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// UnansweredError means that a process holds the lock but did not answer in
// time.
type UnansweredError struct {
	Socket string // nobody listens here, as the daemon may be in a container; "" if unknown
}

// Error returns the message.
func (e *UnansweredError) Error() string {
	if e.Socket == "" {
		return "the daemon has not answered in time"
	}
	return "the daemon has not answered in time: nobody listens at " + e.Socket + " here; " +
		"if it runs in a container, run the command there, for example with kubectl exec"
}

// Unwrap returns context.DeadlineExceeded.
func (*UnansweredError) Unwrap() error { return context.DeadlineExceeded }

// Client queries a daemon.
type Client struct {
	dial      func(context.Context) (net.Conn, error)
	maxAnswer int64 // bytes that Get decodes
}

// Limits of an answer in bytes.
const (
	maxHeader  = 64 << 10
	maxRefusal = 64 << 10  // the body of an error
	maxWhole   = 128 << 20 // the answer that Get decodes
	maxStream  = 1 << 30   // the answer that a caller of Ask reads
)

// Dial returns a Client for the daemon of a network namespace, or of this user. Each query opens a
// connection.
func Dial(o Options) *Client { return &Client{o.scope().dial, maxWhole} }

// DialNearest returns a Client for the daemon that this user may query: the daemon of the network namespace, or else
// the user's own daemon.
func DialNearest() *Client { return &Client{nearest().dial, maxWhole} }

// Ask sends a query and returns the answer, which the caller closes. If the
// daemon refuses, the error has its message. Reading more than 1 GiB is an error.
func (c *Client) Ask(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	u := url.URL{Scheme: "http", Host: "sluice", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask the daemon: %w", err)
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, cause(err)
	}
	resp, err := over(conn).Do(req)
	if err != nil {
		_ = conn.Close() // it may not have been used
		return nil, cause(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }() // it is only read
		return nil, refusal(resp)
	}
	return &bounded{resp.Body, maxStream}, nil
}

// over returns a client for one query over a connection, with limits for a faulty daemon.
func over(conn net.Conn) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}}
}

// Get sends a query and decodes the JSON answer into out. An answer longer than
// 128 MiB is an error.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	body, err := c.Ask(ctx, path, query)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // it is only read
	if err := json.NewDecoder(&bounded{body, c.maxAnswer}).Decode(out); err != nil {
		return fmt.Errorf("read the answer of the daemon: %w", inTime(err))
	}
	return nil
}

// bounded is a reader that returns an error after left bytes.
type bounded struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("it is too long; ask for less, for example for one namespace")
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// cause returns an error without the URL, which means nothing to people.
func cause(err error) error {
	if sent, is := errors.AsType[*url.Error](err); is {
		err = sent.Err
	}
	err = inTime(err)
	_, unanswered := errors.AsType[*UnansweredError](err)
	if unanswered || errors.Is(err, ErrNotRunning) || errors.Is(err, errNotRoot) {
		return err
	}
	return fmt.Errorf("ask the daemon: %w", err)
}

// inTime returns an UnansweredError in place of one that the time is over.
func inTime(err error) error {
	if _, is := errors.AsType[*UnansweredError](err); is || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &UnansweredError{}
}

// refusal returns the message of a daemon that does not answer.
func refusal(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		return fmt.Errorf("read the answer of the daemon: %w", err)
	}
	message := cmp.Or(strings.TrimSpace(string(body)), resp.Status)
	if resp.StatusCode == http.StatusNotImplemented {
		return fmt.Errorf("%s (the daemon is Sluice %s; is this another version?)", message, resp.Header.Get(versionHeader))
	}
	return errors.New(message)
}
