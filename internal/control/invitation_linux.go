package control

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
)

// invitation asks the holder of the lock to connect to an abstract unix socket.
// Every process of the network namespace can see the name of the socket and
// connect. Only the holder of the lock receives the proof.
type invitation struct {
	name, proof string
}

const (
	namePrefix = "@sluice-proxy/"
	greeting   = "sluice-invitation"
	tokenBytes = 16
	tokenText  = 2 * tokenBytes // in hexadecimal
)

// newInvitation returns an invitation with a random name and proof.
func newInvitation() invitation {
	token := func() string {
		b := make([]byte, tokenBytes)
		_, _ = rand.Read(b) // it never fails
		return hex.EncodeToString(b)
	}
	return invitation{token(), token()}
}

// parseInvitation is the inverse of text.
func parseInvitation(text string) (invitation, bool) {
	f := strings.Split(text, " ")
	if len(f) != 3 || f[0] != greeting || !isToken(f[1]) || !isToken(f[2]) {
		return invitation{}, false
	}
	return invitation{f[1], f[2]}, true
}

func isToken(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == tokenBytes
}

func (i invitation) text() string { return greeting + " " + i.name + " " + i.proof }

func (i invitation) socket(o Options) socket { return socket{namePrefix + i.name, o.NetNS} }

// refusedPeers counts connections from processes that are not the daemon.
type refusedPeers struct {
	count int
	last  peer
}

// provenConn is a connection whose peer sent the proof.
type provenConn struct {
	*net.UnixConn
	peer peer
}

// invite sends the holder of the lock an invitation and waits until it connects.
// Connections from other processes are closed unread. The error is
// netlock.ErrFree if there is no holder, and the context's error if the holder
// does not connect in time.
func invite(ctx context.Context, o Options, refused *refusedPeers) (provenConn, error) {
	i := newInvitation()
	l, err := i.socket(o).listen(ctx)
	if err != nil {
		return provenConn{}, err
	}
	defer func() { _ = l.Close() }()
	if err := netlock.Send(netlock.Options{NetNS: o.NetNS}, i.text()); err != nil {
		return provenConn{}, err
	}
	return i.accept(ctx, l, refused)
}

// accept accepts connections until one peer sends the proof or the context ends.
// A silent connection does not delay the others.
func (i invitation) accept(ctx context.Context, l *net.UnixListener, refused *refusedPeers) (provenConn, error) {
	proven := make(chan provenConn, 1)
	accepting, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(accepting, func() { _ = l.Close() })()
	var checks sync.WaitGroup
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			break
		}
		from, err := peerOf(c)
		if err != nil || from.uid != root {
			refused.count, refused.last = refused.count+1, from
			_ = c.Close()
			continue
		}
		checks.Go(func() {
			if !i.proves(accepting, c) {
				_ = c.Close()
				return
			}
			select {
			case proven <- provenConn{c, from}:
				end()
			default: // another connection was quicker
				_ = c.Close()
			}
		})
	}
	end()
	checks.Wait()
	select {
	case c := <-proven:
		return c, nil
	default:
		return provenConn{}, errors.Join(errNotConnected, ctx.Err())
	}
}

// errNotConnected means that the holder of the lock did not connect in time.
var errNotConnected = errors.New("the daemon has not connected")

// proves reports whether a peer sends the proof before the context ends.
func (i invitation) proves(ctx context.Context, c net.Conn) bool {
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	got := make([]byte, tokenText)
	_, err := io.ReadFull(c, got)
	return stop() && err == nil && subtle.ConstantTimeCompare(got, []byte(i.proof)) == 1
}

const (
	fullQueuePause = 2 * time.Millisecond // between attempts to connect to a socket whose queue is full
	connectTimeout = 5 * time.Second      // for all attempts
)

// follow connects to the process that sent the invitation and sends the proof.
func (i invitation) follow(ctx context.Context, o Options) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		c, err := i.connect(ctx, o)
		if !errors.Is(err, syscall.EAGAIN) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(fullQueuePause):
		}
	}
}

func (i invitation) connect(ctx context.Context, o Options) (*net.UnixConn, error) {
	c, err := i.socket(o).dial(ctx)
	if err != nil {
		return nil, err
	}
	to, err := peerOf(c)
	if err == nil && to.uid != root { // the sender has ended, and another process has bound the name
		err = fmt.Errorf("socket of the invitation belongs to uid %d", to.uid)
	}
	if err == nil {
		_, err = io.WriteString(c, i.proof)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}
