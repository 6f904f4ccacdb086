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
		if !l.useFirstRead() {
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

// readUntilChange reads the kernel. A change interrupts the read, but not before undisturbedRead.
func (l *Loop) readUntilChange(ctx context.Context) (arrived bool, err error) {
	r := l.startReading(ctx)
	select {
	case <-r.ended:
	case <-time.After(undisturbedRead):
		select {
		case <-r.ended:
		case <-l.opt.Store.Changed():
			arrived = true
		}
	}
	r.stop()
	return arrived, r.err
}

// reading is a read of the kernel in the background. Meanwhile nothing else uses the plane.
type reading struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when it has ended
	err    error         // its result, once it has ended
}

func (l *Loop) startReading(ctx context.Context) *reading {
	ctx, cancel := context.WithCancel(ctx)
	r := &reading{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = l.opt.Plane.Refresh(ctx)
	}()
	return r
}

// stop cancels the read, and returns when it has ended.
func (r *reading) stop() {
	r.cancel()
	<-r.ended
}

// ready waits until the store is complete, and drops the first read after an edit. False: the context ended.
func (l *Loop) ready(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-l.opt.Store.Ready():
			return true
		case do := <-l.requests:
			do()
		case <-l.edited:
			l.dropFirstRead()
		}
	}
}

// useFirstRead waits for the first read, and reports whether the plane knows the kernel from it: once at most.
func (l *Loop) useFirstRead() bool {
	r := l.firstRead
	if r == nil {
		return false
	}
	defer l.dropFirstRead()
	select {
	case <-r.ended:
		return r.err == nil && len(l.edited) == 0
	case <-l.edited:
		return false
	}
}

// dropFirstRead ends the first read, unless it was used.
func (l *Loop) dropFirstRead() {
	if l.firstRead != nil {
		l.firstRead.stop()
		l.firstRead = nil
	}
}
