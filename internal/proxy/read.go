package proxy

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Reading many rules from the kernel takes seconds. Changes that arrive during the read of a
// comparison without a known fault are written first, for a limited time, and the read is repeated.
const (
	undisturbedRead = 50 * time.Millisecond // a read is not interrupted before
	auditYields     = 30 * time.Second      // for how long a comparison lets changes pass
)

// read has the plane read the kernel for a comparison. If a change is written first, the
// cause in s becomes Change, and the comparison is tried again afterwards.
func (l *Loop) read(ctx context.Context, s *Sync, change *route.Change) {
	// The plane must know what it wrote itself if changes are to pass.
	if !l.known || !l.compare.audit() || time.Since(l.compareSince) >= auditYields {
		if !l.useEarlyRead() {
			s.Err = l.opt.Plane.Refresh(ctx)
		}
		return
	}
	if !change.Empty() || !l.queue.Empty() {
		s.Cause = Change
		return
	}
	arrived, err := l.readUntilChange(ctx)
	switch {
	case arrived && err != nil && ctx.Err() == nil:
		s.Cause = Change
		l.enqueue(*change)
		*change = l.compile(s)
	case arrived:
		l.opt.Store.Wake() // the signal was consumed
		s.Err = err
	default:
		s.Err = err
	}
	if s.Err != nil {
		l.known = false // the next attempt is not interrupted
	}
}

// readUntilChange has the plane read the kernel. If a change arrives, it interrupts the
// read, but not before undisturbedRead.
func (l *Loop) readUntilChange(ctx context.Context) (arrived bool, err error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan bool, 1)
	go func() { ended <- l.arrival(reading, stop) }()
	err = l.opt.Plane.Refresh(reading)
	stop()
	return <-ended, err
}

// arrival waits for a change and stops the read; false: the read ended before.
func (l *Loop) arrival(reading context.Context, stop context.CancelFunc) bool {
	timer := time.NewTimer(undisturbedRead)
	defer timer.Stop()
	select {
	case <-reading.Done():
		return false
	case <-timer.C:
	}
	select {
	case <-reading.Done():
		return false
	case <-l.opt.Store.Changed():
		stop()
		return true
	}
}
