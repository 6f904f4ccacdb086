package control

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"time"
)

const (
	successorPath = "/successor"

	// successorTime bounds the question and the answer. The daemon may first wait for a write that is in progress.
	successorTime = 30 * time.Second
)

// Succeed asks the daemon to hand over to this process, and returns a connection to it.
func Succeed(ctx context.Context, o Options) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, successorTime)
	defer cancel()
	i := newInvitation()
	i.uid = os.Geteuid()
	l, err := i.socket(o).listen(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // it is used once
	accepting, refuse := context.WithCancel(ctx)
	asked := make(chan error, 1)
	go func() {
		err := Dial(o).Get(ctx, successorPath, url.Values{"invitation": {i.text()}}, new(struct{}))
		if err != nil {
			refuse()
		}
		asked <- err
	}()
	var strangers refusedPeers
	c, err := i.accept(accepting, l, &strangers)
	refuse()
	if refusal := <-asked; refusal != nil {
		if err == nil {
			_ = c.Close() // nothing was sent
		}
		return nil, refusal
	}
	if err != nil && strangers.count > 0 {
		err = errors.Join(err, &UnansweredError{strangers.count, strangers.last.pid, strangers.last.uid})
	}
	return c.UnixConn, err
}

// meet connects to the process that asked.
func meet(ctx context.Context, o Options, text string) (*net.UnixConn, error) {
	i, ok := parseInvitation(text)
	if !ok {
		return nil, errors.New("there is no invitation in the question")
	}
	i.uid = os.Geteuid()
	return i.follow(ctx, o)
}
