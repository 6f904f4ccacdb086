package control

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
	"github.com/sluice-proxy/sluice/internal/kernel/process"
	"github.com/sluice-proxy/sluice/internal/text"
)

// TakenError says that another daemon serves the network namespace.
type TakenError struct {
	PID    int       // as this PID namespace numbers it; 0: in another one
	Holder *Identity // its answer; nil: none in time
}

// Error names the other daemon.
func (e *TakenError) Error() string {
	who := pidText(e.PID)
	if h := e.Holder; h != nil {
		who = fmt.Sprintf("%s, %s on %s, mode %s, since %s", who,
			text.Short(h.Version), text.Short(h.Host), text.Short(h.Mode), h.Since.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("another Sluice (%s) already serves this network namespace; stop it first", who)
}

// identityTime bounds the wait for another daemon to say who it is.
const identityTime = time.Second

// askHolder asks the holder of the lock who it is. It returns false if there is
// no holder any more.
func askHolder(ctx context.Context, o Options) (*TakenError, bool) {
	ctx, cancel := context.WithTimeout(ctx, identityTime)
	defer cancel()
	var id Identity
	c := Dial(o)
	if err := c.Get(ctx, identityPath, nil, &id); err == nil {
		return &TakenError{PID: int(c.pid.Load()), Holder: &id}, true
	}
	inode, err := netlock.Socket(o.lock())
	if err != nil {
		return &TakenError{}, false
	}
	pid, _ := process.New(process.Options{}).WithSocket(inode) // 0 if it is not found
	return &TakenError{PID: pid}, true
}
