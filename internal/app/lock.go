package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// lock acquires the lock of a network namespace. Only the Sluice that holds it writes rules there.
type lock struct {
	options admin.Options
	listen  func(context.Context) (*admin.Server, error)
	log     *slog.Logger
}

func newLock(o admin.Options, log *slog.Logger) lock {
	o.MaxConns = budget(log).Control
	return lock{o, func(ctx context.Context) (*admin.Server, error) { return admin.Listen(ctx, o) }, log}
}

// control returns the options of the lock and the control socket.
func (o Options) control() admin.Options {
	return admin.Options{NetNS: o.NetNS, User: o.Config.Unprivileged()}
}

const (
	stopTimeout = 10 * time.Second       // for a daemon to stop after a signal, before a cleanup
	killTimeout = 3 * time.Second        // for the kernel to close the files of a daemon that was killed
	lockPeriod  = 100 * time.Millisecond // between attempts to acquire the lock
)

// acquire acquires the lock without waiting. It returns nil if the kernel has no lock: the node is served all the same.
func (l lock) acquire(ctx context.Context) (*admin.Server, error) {
	held, err := l.listen(ctx)
	if errors.Is(err, admin.ErrUnsupported) {
		l.log.Warn("Serving without a lock that keeps other Sluices away; sluice get, status, diff and explain do not work",
			"error", err)
		return nil, nil
	}
	return held, err
}

func release(held *admin.Server) {
	if held != nil {
		_ = held.Close() // the end of the process does it as well
	}
}

// acquireWithin acquires the lock, and waits up to a timeout for its holder to end.
func (l lock) acquireWithin(ctx context.Context, timeout time.Duration) (*admin.Server, error) {
	began := time.Now() // before the holder is asked for its identity, which takes time
	for logged := false; ; logged = true {
		held, err := l.acquire(ctx)
		holder, taken := errors.AsType[*admin.TakenError](err)
		if !taken || time.Since(began) >= timeout {
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
	l.log.LogAttrs(ctx, slog.LevelInfo, "Waiting for another Sluice, which may be stopping", attrs...)
}
