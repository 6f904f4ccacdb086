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
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
	"github.com/sluice-proxy/sluice/internal/kernel/unixsock"
)

// invitation asks the holder of the lock to connect to an abstract unix socket.
// Every process of the network namespace can see the name of the socket, and
// connect. Only the holder of the lock knows the proof.
type invitation struct{ name, proof string }

const (
	namePrefix = "@sluice-proxy/"
	greeting   = "sluice-invitation"
	tokenBytes = 16
	tokenText  = 2 * tokenBytes // in hexadecimal
)

// newInvitation returns one with a name and a proof that cannot be guessed.
func newInvitation() invitation {
	token := func() string {
		b := make([]byte, tokenBytes)
		_, _ = rand.Read(b) // it never fails
		return hex.EncodeToString(b)
	}
	return invitation{name: token(), proof: token()}
}

// parseInvitation reads what text wrote.
func parseInvitation(text string) (invitation, bool) {
	f := strings.Split(text, " ")
	if len(f) != 3 || f[0] != greeting || !isToken(f[1]) || !isToken(f[2]) {
		return invitation{}, false
	}
	return invitation{name: f[1], proof: f[2]}, true
}

func isToken(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == tokenBytes
}

func (i invitation) text() string { return greeting + " " + i.name + " " + i.proof }

func (i invitation) socket(o Options) unixsock.Options {
	return unixsock.Options{Name: namePrefix + i.name, NetNS: o.NetNS}
}

// strangers counts connections of processes that are not the daemon.
type strangers struct {
	count int
	last  unixsock.Peer
}

// invite invites the holder of the lock and waits until it connects. Connections
// of other processes are closed unread. The error is netlock.ErrFree if there is
// no holder, and that of the context if it does not connect in time.
func invite(ctx context.Context, o Options, refused *strangers) (*net.UnixConn, unixsock.Peer, error) {
	i := newInvitation()
	l, err := unixsock.Listen(ctx, i.socket(o))
	if err != nil {
		return nil, unixsock.Peer{}, err
	}
	defer func() { _ = l.Close() }()
	if err := netlock.Send(o.lock(), i.text()); err != nil {
		return nil, unixsock.Peer{}, err
	}
	return i.accept(ctx, l, refused)
}

// guest is a connection that gave the proof.
type guest struct {
	conn *net.UnixConn
	peer unixsock.Peer
}

// accept accepts connections until one gives the proof or the context ends. A
// connection that waits for its peer does not hold up the others.
func (i invitation) accept(ctx context.Context, l *net.UnixListener, refused *strangers) (*net.UnixConn, unixsock.Peer, error) {
	found := make(chan guest, 1)
	accepting, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(accepting, func() { _ = l.Close() })()
	var checks sync.WaitGroup
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			break
		}
		peer, err := unixsock.PeerOf(c)
		if err != nil || !trusted(peer) {
			refused.count, refused.last = refused.count+1, peer
			_ = c.Close()
			continue
		}
		checks.Go(func() {
			if !i.proves(accepting, c) {
				_ = c.Close()
				return
			}
			select {
			case found <- guest{c, peer}:
				end()
			default: // another was quicker
				_ = c.Close()
			}
		})
	}
	end()
	checks.Wait()
	select {
	case g := <-found:
		return g.conn, g.peer, nil
	default:
		return nil, unixsock.Peer{}, errors.Join(errNoGuest, ctx.Err())
	}
}

// errNoGuest means that the holder of the lock did not connect.
var errNoGuest = errors.New("the daemon has not connected")

// proves reports whether a peer sends the proof before the context ends.
func (i invitation) proves(ctx context.Context, c net.Conn) bool {
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	got := make([]byte, tokenText)
	_, err := io.ReadFull(c, got)
	return stop() && err == nil && subtle.ConstantTimeCompare(got, []byte(i.proof)) == 1
}

const (
	crowdedPause = 2 * time.Millisecond // between attempts to connect to a socket whose queue is full
	connectTime  = 5 * time.Second      // for all attempts
)

// follow connects to the process that sent the invitation and gives the proof.
func (i invitation) follow(ctx context.Context, o Options) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	for {
		c, err := i.connect(ctx, o)
		if !errors.Is(err, unixsock.ErrBusy) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(crowdedPause):
		}
	}
}

func (i invitation) connect(ctx context.Context, o Options) (*net.UnixConn, error) {
	c, err := unixsock.Dial(ctx, i.socket(o))
	if err != nil {
		return nil, err
	}
	peer, err := unixsock.PeerOf(c)
	if err == nil && !trusted(peer) { // the sender has ended, and another process took the name
		err = fmt.Errorf("socket of the invitation belongs to uid %d", peer.UID)
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
