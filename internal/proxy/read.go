package proxy

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Reading the kernel takes seconds where there is much in it. For a while changes
// that arrive meanwhile are written first, and the read begins anew.
const (
	undisturbedRead = 50 * time.Millisecond // a read is given this time in any case
	repairYields    = time.Second           // for how long a repair yields to changes
	auditYields     = 30 * time.Second      // the same of a comparison without a known fault
)

// read has the plane read the kernel for a comparison. If a change can be written
// before, s becomes that of a change, and the comparison is tried again afterwards.
func (l *Loop) read(ctx context.Context, s *Sync, change *route.Change) {
	limit := l.yieldTime()
	if time.Since(l.doubted) >= limit {
		s.Err = l.opt.Plane.Refresh(ctx)
		return
	}
	if limit == auditYields && (!change.Empty() || !l.queue.Empty()) {
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
		l.believes = false // the next attempt reads to the end
	}
}

// yieldTime returns for how long a comparison yields to changes: not at all if the
// plane may be wrong about what it wrote itself.
func (l *Loop) yieldTime() time.Duration {
	switch {
	case !l.believes:
		return 0
	case l.doubt == ForeignEdit:
		return repairYields
	case l.doubt.patient():
		return auditYields
	}
	return 0
}

// readUntilChange has the plane read the kernel, and stops it if a change arrives
// and it has taken its time.
func (l *Loop) readUntilChange(ctx context.Context) (arrived bool, err error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan bool, 1)
	go func() { ended <- l.arrival(reading, stop) }()
	err = l.opt.Plane.Refresh(reading)
	stop()
	return <-ended, err
}

// arrival waits for a change, then stops the read; false: the read ended before.
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
