package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
)

// ErrNobody means that no daemon serves the network namespace.
var ErrNobody = errors.New("no Sluice is running in this network namespace; " +
	"on a node, ask in the host's (a shell on the node, or kubectl exec into the Sluice pod), " +
	"for another one with ip netns exec NAME sluice COMMAND")

// errNotRoot means that this process may not ask.
var errNotRoot = errors.New("only root may ask the daemon, with CAP_NET_ADMIN in its network namespace: " +
	"run as root, for example with sudo, or with kubectl exec in the Sluice pod")

// UnansweredError means that a process holds the lock but did not answer in
// time. Other processes may have tried to answer in its place.
type UnansweredError struct {
	Refused  int // connections of processes that are not the daemon
	PID, UID int // of the last of them
}

// Error says so.
func (e *UnansweredError) Error() string {
	s := "the daemon has not answered in time"
	if e.Refused > 0 {
		s += fmt.Sprintf("; %d connections of processes that are not the daemon were refused, the last of %s, uid %d",
			e.Refused, pidText(e.PID), e.UID)
	}
	return s
}

// Unwrap returns context.DeadlineExceeded.
func (*UnansweredError) Unwrap() error { return context.DeadlineExceeded }

// Client asks the daemon of a network namespace.
type Client struct {
	http *http.Client
	opts Options
	pid  atomic.Int64 // of the daemon that last connected

	maxAnswer int64 // bytes that are decoded as a whole
}

// Limits of an answer.
const (
	maxHeader = 64 << 10
	maxWords  = 64 << 10  // of a refusal
	maxWhole  = 128 << 20 // that is decoded as a whole
	maxStream = 1 << 30   // that is read in pieces
)

// Dial returns a Client. It connects with the first question.
func Dial(o Options) *Client {
	c := &Client{opts: o, maxAnswer: maxWhole}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		// One question for each connection, and limits for a faulty daemon.
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}}
	return c
}

const (
	attemptTime = 2 * time.Second        // for the daemon to follow an invitation
	fullPause   = 100 * time.Millisecond // before another one if its mailbox is full
)

// dial invites the daemon until it connects or the context ends.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	if os.Geteuid() != 0 {
		return nil, errNotRoot
	}
	var refused strangers
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTime)
		conn, peer, err := invite(attempt, c.opts, &refused)
		cancel()
		switch {
		case err == nil:
			c.pid.Store(int64(peer.PID))
			return conn, nil
		case errors.Is(err, netlock.ErrFree):
			return nil, ErrNobody
		case errors.Is(err, netlock.ErrPrivilege):
			return nil, errNotRoot
		case !errors.Is(err, errNoGuest) && !errors.Is(err, syscall.EAGAIN):
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, &UnansweredError{refused.count, refused.last.PID, refused.last.UID}
		case <-time.After(pauseAfter(err)):
		}
	}
}

// pauseAfter returns how long to wait after a failed invitation.
func pauseAfter(err error) time.Duration {
	if errors.Is(err, syscall.EAGAIN) {
		return fullPause
	}
	return 0
}

// Ask asks a question and returns the answer, which the caller closes. If the
// daemon refuses, its words are the error. An answer that is longer than 1 GiB
// fails with an error.
func (c *Client) Ask(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	u := url.URL{Scheme: "http", Host: "sluice", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask the daemon: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, explain(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }() // it is only read
		return nil, refusal(resp)
	}
	return &bounded{resp.Body, maxStream}, nil
}

// Get asks a question and decodes the JSON answer into out. An answer that is
// longer than 128 MiB is an error.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	body, err := c.Ask(ctx, path, query)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // it is only read
	if err := json.NewDecoder(&bounded{body, c.maxAnswer}).Decode(out); err != nil {
		return fmt.Errorf("read the answer of the daemon: %w", explain(err))
	}
	return nil
}

// bounded is an answer that fails when it is longer than left bytes.
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

// explain leaves out how the question was sent.
func explain(err error) error {
	unanswered, isUnanswered := errors.AsType[*UnansweredError](err)
	switch {
	case errors.Is(err, ErrNobody):
		return ErrNobody
	case errors.Is(err, errNotRoot):
		return errNotRoot
	case isUnanswered:
		return unanswered
	case errors.Is(err, context.DeadlineExceeded):
		return &UnansweredError{}
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("ask the daemon: %w", u.Err)
	}
	return err
}

// refusal returns the words of a daemon that does not answer.
func refusal(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxWords))
	if err != nil {
		return fmt.Errorf("read the answer of the daemon: %w", err)
	}
	words := strings.TrimSpace(string(text))
	if resp.StatusCode == http.StatusNotImplemented {
		return fmt.Errorf("%s (the daemon is Sluice %s; is this another version?)", words, resp.Header.Get(versionHeader))
	}
	if words == "" {
		words = resp.Status
	}
	return errors.New(words)
}
