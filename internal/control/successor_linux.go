package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"time"
)

const (
	successorPath   = "/successor"
	successorPrefix = namePrefix + "successor-"
	successorTime   = 10 * time.Second // for the daemon to connect
)

// successorName is the random part of the name of a socket on which a successor listens.
var successorName = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// errStranger means that a process of another user is at the other end.
var errStranger = errors.New("the other process belongs to another user")

// Succeed asks the daemon to hand over to this process, and returns a connection to it.
func Succeed(ctx context.Context, o Options) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, successorTime)
	defer cancel()
	name := rand.Text()
	l, err := socket{successorPrefix + name, o.NetNS}.listen(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // it is used once
	var answer struct{}
	if err := Dial(o).Get(ctx, successorPath, url.Values{"at": {name}}, &answer); err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := l.SetDeadline(deadline); err != nil {
		return nil, err
	}
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, fmt.Errorf("wait for the daemon to connect: %w", err)
		}
		if sameUser(c) == nil {
			return c, nil
		}
	}
}

// meet connects to a successor.
func meet(ctx context.Context, o Options, name string) (*net.UnixConn, error) {
	if !successorName.MatchString(name) {
		return nil, fmt.Errorf("%q is not the name of a successor", name)
	}
	c, err := socket{successorPrefix + name, o.NetNS}.dial(ctx)
	if err != nil {
		return nil, err
	}
	return c, sameUser(c)
}

// sameUser closes a connection to a process of another user.
func sameUser(c *net.UnixConn) error {
	p, err := peerOf(c)
	if err == nil && p.uid != os.Geteuid() {
		err = errStranger
	}
	if err != nil {
		_ = c.Close() // nothing was sent
	}
	return err
}
