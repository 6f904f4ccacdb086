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
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/unixsock"
)

// ErrNobody says that no daemon serves the network namespace.
var ErrNobody = errors.New("no Sluice is running in this network namespace; " +
	"on a node, ask in the host's (a shell on the node, or kubectl exec into the Sluice pod), " +
	"for another one with ip netns exec NAME sluice COMMAND")

// Client asks the daemon of a network namespace.
type Client struct{ http *http.Client }

// Dial returns a Client. It connects with the first question.
func Dial(o Options) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialTrusted(ctx, o) }
	return &Client{&http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// dialTrusted connects, and makes sure that it is not just anybody who has
// taken the name. One who has no number in our user namespace may be root
// outside of it; it will tell us that we may not ask.
func dialTrusted(ctx context.Context, o Options) (net.Conn, error) {
	c, err := unixsock.Dial(ctx, o.socket())
	if errors.Is(err, unixsock.ErrNobody) {
		return nil, ErrNobody
	}
	if err != nil {
		return nil, err
	}
	peer, err := unixsock.PeerOf(c)
	if err == nil && !trusted(peer) && peer.UID != overflow {
		err = &OccupiedError{PID: peer.PID, UID: peer.UID}
	}
	if err != nil {
		_ = c.Close() // nothing was said
		return nil, err
	}
	return c, nil
}

// Ask asks a question and returns the answer, which the caller closes. Where
// the daemon cannot answer, its words are the error.
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
	return resp.Body, nil
}

// Get asks a question and decodes the JSON answer into out.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	body, err := c.Ask(ctx, path, query)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // it is only read
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("read the answer of the daemon: %w", explain(err))
	}
	return nil
}

// explain leaves out what only says how we asked.
func explain(err error) error {
	occupied, isOccupied := errors.AsType[*OccupiedError](err)
	switch {
	case errors.Is(err, ErrNobody):
		return ErrNobody
	case isOccupied:
		return occupied
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the daemon has not answered in time: %w", context.DeadlineExceeded)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("ask the daemon: %w", u.Err)
	}
	return err
}

const wordsBytes = 64 << 10

// refusal is what a daemon says that does not answer.
func refusal(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, wordsBytes))
	if err != nil {
		return fmt.Errorf("read the answer of the daemon: %w", err)
	}
	words := strings.TrimSpace(string(text))
	switch resp.StatusCode {
	case http.StatusForbidden:
		return fmt.Errorf("%s: run as root, for example with sudo", words)
	case http.StatusNotImplemented:
		return fmt.Errorf("%s (the daemon is Sluice %s; is this another version?)", words, resp.Header.Get(versionHeader))
	}
	if words == "" {
		words = resp.Status
	}
	return errors.New(words)
}
