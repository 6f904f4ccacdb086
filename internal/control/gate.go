package control

import (
	"net"
	"sync"

	"github.com/sluice-proxy/sluice/internal/kernel/unixsock"
)

// maxStrangers is how many connections of those who may not ask are kept, just
// to tell them so. Root is not limited.
const maxStrangers = 8

// gate accepts connections and finds out whose they are.
type gate struct {
	*net.UnixListener
	strangers chan struct{}
}

func newGate(l *net.UnixListener) *gate {
	return &gate{l, make(chan struct{}, maxStrangers)}
}

// known is a connection of a known peer.
type known struct {
	*net.UnixConn
	peer unixsock.Peer
	gone func()
}

// Close implements net.Conn.
func (k *known) Close() error {
	k.gone()
	return k.UnixConn.Close()
}

// Accept implements net.Listener. Strangers beyond the limit are hung up on.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.AcceptUnix()
		if err != nil {
			return nil, err
		}
		peer, err := unixsock.PeerOf(c)
		if err != nil {
			_ = c.Close() // it is gone already
			continue
		}
		if trusted(peer) {
			return &known{c, peer, func() {}}, nil
		}
		select {
		case g.strangers <- struct{}{}:
			return &known{c, peer, sync.OnceFunc(func() { <-g.strangers })}, nil
		default:
			_ = c.Close()
		}
	}
}
