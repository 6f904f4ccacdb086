package control

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/unixsock"
)

// TakenError says that another daemon serves the network namespace.
type TakenError struct {
	PID    int       // as the kernel tells it; 0: in another PID namespace
	Holder *Identity // what it says of itself; nil: nothing, in time
}

// Error names the other daemon.
func (e *TakenError) Error() string {
	who := pidText(e.PID)
	if h := e.Holder; h != nil {
		who = fmt.Sprintf("%s, %s on %s, mode %s, since %s", who, h.Version, h.Host, h.Mode, h.Since.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("another Sluice (%s) already serves this network namespace; stop it first", who)
}

// OccupiedError says that a process has the name of the socket that is neither
// root's nor our own user's, or takes no connections. It is no daemon of ours and
// cannot serve the namespace: there is no reason not to, save that nobody can ask
// us. Of who takes no connections nothing is known: PID and UID are -1.
type OccupiedError struct{ PID, UID int }

// unknown stands for what the kernel does not tell.
const unknown = -1

// Error names the process.
func (e *OccupiedError) Error() string {
	who := fmt.Sprintf("of uid %d (%s)", e.UID, pidText(e.PID))
	if e.UID == unknown {
		who = "that takes no connections"
	}
	return fmt.Sprintf("control socket %s is held by a process %s, which is no Sluice; "+
		"until it ends, sluice get, status, diff and explain do not work", name, who)
}

// patience is for another daemon to say who it is.
const patience = time.Second

// whoHas finds out who has the place: a *TakenError or an *OccupiedError.
func whoHas(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := unixsock.Dial(ctx, o.socket())
	if err != nil {
		return &OccupiedError{PID: unknown, UID: unknown}
	}
	peer, err := unixsock.PeerOf(c)
	_ = c.Close() // nothing was said
	if err != nil {
		return &OccupiedError{PID: unknown, UID: unknown}
	}
	if !trusted(peer) {
		return &OccupiedError{PID: peer.PID, UID: peer.UID}
	}
	taken := &TakenError{PID: peer.PID}
	var id Identity
	if err := Dial(o).Get(ctx, identityPath, nil, &id); err == nil {
		taken.Holder = &id
	}
	return taken
}
