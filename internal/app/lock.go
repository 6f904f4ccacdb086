package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// lock acquires the lock of a network namespace. Only the Sluice that holds it writes
// rules there.
type lock struct {
	options admin.Options
	listen  func(context.Context) (*admin.Server, error)
	log     *slog.Logger
}

func newLock(from Options) lock {
	return lockOf(from.control(), from.Log)
}

// control returns the options of the control socket.
func (o Options) control() admin.Options {
	return admin.Options{NetNS: o.NetNS, User: o.Config.Unprivileged()}
}

func lockOf(o admin.Options, log *slog.Logger) lock {
	o.MaxConns = budget(log).Control
	return lock{o, func(ctx context.Context) (*admin.Server, error) { return admin.Listen(ctx, o) }, log}
}

// adopt returns the lock that the previous run of this program passed on.
func (l lock) adopt(file *os.File) (*admin.Server, error) { return admin.Adopt(file, l.options) }

const (
	stopTimeout = 10 * time.Second       // for a daemon to stop after a signal
	killTimeout = 3 * time.Second        // of a daemon that was killed, also on a busy machine
	lockPeriod  = 100 * time.Millisecond // between attempts to acquire the lock
)

// acquire acquires the lock without waiting. It returns nil if the kernel has no lock:
// the node is served all the same.
func (l lock) acquire(ctx context.Context) (*admin.Server, error) {
	held, err := l.listen(ctx)
	if errors.Is(err, admin.ErrUnsupported) {
		l.log.Warn("Going on without a lock against a second Sluice; sluice get, status, diff and explain do not work",
			"error", err)
		return nil, nil
	}
	return held, err
}

// release releases the lock, if it was acquired.
func release(held *admin.Server) {
	if held != nil {
		_ = held.Close() // the end of the process does it as well
	}
}

// holderTimeout returns how long to wait for the holder of the lock to end.
type holderTimeout func(*admin.TakenError) time.Duration

// afterStop is the timeout for a daemon to stop after a signal.
func afterStop(wait time.Duration) holderTimeout {
	return func(*admin.TakenError) time.Duration { return wait }
}

// afterKill is the timeout for a daemon that was killed: it does not identify itself, and
// holds the lock until the kernel has closed its files. There is no wait for another one.
func afterKill(holder *admin.TakenError) time.Duration {
	if holder.Holder != nil {
		return 0
	}
	return killTimeout
}

// acquireWithin acquires the lock, and waits for its holder to end.
func (l lock) acquireWithin(ctx context.Context, timeout holderTimeout) (*admin.Server, error) {
	began := time.Now() // before the holder is asked for its identity, which takes time
	for logged := false; ; logged = true {
		held, err := l.acquire(ctx)
		holder, taken := errors.AsType[*admin.TakenError](err)
		if !taken || time.Since(began) >= timeout(holder) {
			return held, err
		}
		if !logged {
			l.logWait(ctx, holder)
		}
		if rest(ctx, lockPeriod) != nil {
			return nil, fmt.Errorf("wait for another Sluice to end: %w", ctx.Err())
		}
	}
}

// logWait logs which process is waited for, and the network namespace that it serves.
func (l lock) logWait(ctx context.Context, holder *admin.TakenError) {
	attrs := []slog.Attr{slog.Int("pid", holder.PID)}
	if holder.PID == 0 { // it is in another PID namespace
		attrs[0] = slog.String("pid", "unknown")
	}
	if name, err := netns.Name(l.options.NetNS); err == nil {
		attrs = append(attrs, slog.String("netns", name))
	}
	l.log.LogAttrs(ctx, slog.LevelInfo, "Waiting for a Sluice that may be about to end", attrs...)
}
