package admin

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// UnansweredError means that a process holds the lock but did not answer in time.
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

// NotFoundError means that the daemon knows no object of the name in a query.
type NotFoundError string

// Error returns the message of the daemon.
func (e NotFoundError) Error() string { return string(e) }

// RefusedError means that the daemon does not answer a query, in most cases only for the moment.
type RefusedError string

// Error returns the message of the daemon.
func (e RefusedError) Error() string { return string(e) }

// Client queries a daemon.
type Client struct {
	dial func(context.Context) (net.Conn, error)
	most int64 // bytes of an answer that it reads
}

// Limits in bytes.
const (
	maxHeader  = 64 << 10
	maxRefusal = 64 << 10 // the body of an error
	maxLine    = 16 << 20
	maxAnswer  = 1 << 30
)

// Dial returns a Client for the daemon of a network namespace, or of this user. Each query opens a connection.
func Dial(o Options) *Client { return &Client{o.dial, maxAnswer} }

// DialNearest returns a Client for the daemon that this user may ask: that of the network namespace,
// or else one of the user's own.
func DialNearest() *Client { return &Client{Options{}.dialNearest, maxAnswer} }

// Ask sends a query and yields the lines of the answer, which are JSON and valid until the next one, or an error as the
// last. If the daemon refuses, the error has its message.
func (c *Client) Ask(ctx context.Context, path string, query url.Values) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		body, err := c.open(ctx, path, query)
		if err != nil {
			yield(nil, err)
			return
		}
		defer func() { _ = body.Close() }() // it is only read
		lines := bufio.NewScanner(body)
		lines.Buffer(nil, maxLine)
		lines.Split(wholeLines)
		left := c.most
		for lines.Scan() && left >= int64(len(lines.Bytes())) {
			left -= int64(len(lines.Bytes()))
			if !yield(lines.Bytes(), nil) {
				return
			}
		}
		switch err := lines.Err(); {
		case errors.Is(err, bufio.ErrTooLong), err == nil && left < int64(len(lines.Bytes())):
			yield(nil, errors.New("the answer of the daemon is too long; ask for less, for example for one namespace"))
		case err != nil:
			yield(nil, fmt.Errorf("read the answer of the daemon: %w", inTime(err)))
		}
	}
}

// wholeLines is a bufio.SplitFunc for lines that have an end.
func wholeLines(data []byte, atEOF bool) (advance int, line []byte, err error) {
	advance, line, err = bufio.ScanLines(data, atEOF)
	if advance > 0 && data[advance-1] != '\n' {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return advance, line, err
}

// All decodes all lines of an answer.
func All[T any](answer iter.Seq2[json.RawMessage, error]) (all []T, err error) {
	for line, err := range answer {
		if err != nil {
			return nil, err
		}
		var v T
		if err := Decode(line, &v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// Decode reads the fields of a line that this version knows.
func Decode(line json.RawMessage, out any) error {
	if err := json.Unmarshal(line, out); err != nil {
		return fmt.Errorf("read the answer of the daemon (does it have another version?): %w", err)
	}
	return nil
}

// Get decodes the first line of an answer.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	for line, err := range c.Ask(ctx, path, query) {
		if err != nil {
			return err
		}
		return Decode(line, out)
	}
	return errors.New("the answer of the daemon is empty")
}

// open sends a query and returns the body of the answer.
func (c *Client) open(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	u := url.URL{Scheme: "http", Host: "sluice", Path: path, RawQuery: query.Encode()}
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil) // the method and the URL are valid
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, cause(err)
	}
	client := http.Client{Transport: &http.Transport{ // with limits for a faulty daemon
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}}
	resp, err := client.Do(req)
	if err != nil {
		_ = conn.Close() // it may not have been used
		return nil, cause(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }() // it is only read
		return nil, refusal(resp)
	}
	return resp.Body, nil
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

// unknownPath is the answer of http.ServeMux for a query that it does not have.
const unknownPath = "404 page not found"

// refusal returns the message of a daemon that does not answer.
func refusal(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		return fmt.Errorf("read the answer of the daemon: %w", err)
	}
	message := cmp.Or(strings.TrimSpace(string(body)), resp.Status)
	switch {
	case resp.StatusCode != http.StatusNotFound:
		return RefusedError(message)
	case message == unknownPath:
		return errors.New("the daemon does not know this query: it has another version; sluice status shows it")
	}
	return NotFoundError(message)
}
