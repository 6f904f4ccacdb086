package proxy

import "context"

// earlyRead is a read of the kernel that runs while the feeds of the store deliver, so that a start does not wait first
// for them and then for the kernel. Meanwhile nothing else uses the plane.
type earlyRead struct {
	stop  context.CancelFunc
	ended chan struct{} // closed when it has ended
	err   error         // its result, once it has ended
}

// readEarly begins the early read.
func (l *Loop) readEarly(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	r := &earlyRead{stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = l.opt.Plane.Refresh(ctx)
	}()
	l.early = r
}

// ready waits until the store is complete; false: the context ended. An edit by another
// program makes it drop the early read.
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
			l.dropEarlyRead()
		}
	}
}

// useEarlyRead waits for the end of the early read, and reports whether the plane knows the
// kernel from it. It returns true only once.
func (l *Loop) useEarlyRead() bool {
	if l.early == nil {
		return false
	}
	select {
	case <-l.early.ended:
	case <-l.edited:
		l.dropEarlyRead()
		return false
	}
	select {
	case <-l.edited:
		l.dropEarlyRead()
		return false
	default:
	}
	r := l.early
	l.early = nil
	r.stop()
	return r.err == nil
}

// dropEarlyRead ends the early read, unless it was used.
func (l *Loop) dropEarlyRead() {
	if l.early != nil {
		l.early.stop()
		<-l.early.ended
		l.early = nil
	}
}
