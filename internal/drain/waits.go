package drain

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

const (
	// Longest is the longest wait.
	Longest = 10 * time.Minute

	// mostWaits bounds the memory and the time that clients of the endpoint can take.
	mostWaits = 64
)

// Errors of waits.
var (
	ErrMany = errors.New("too many waits for pods of this node; try again")
	ErrNode = errors.New("the pod has the address of its node, so its connections are not known from others of the node")
)

// Pod is a pod of this node. It has no Name if only an address is known.
type Pod struct {
	Name  cluster.Name
	Addrs []netip.Addr
}

// String returns the name, or the address of a pod without one.
func (p Pod) String() string {
	if p.Name == (cluster.Name{}) && len(p.Addrs) > 0 {
		return p.Addrs[0].String()
	}
	return p.Name.String()
}

// Running is a wait that runs.
type Running struct {
	Pod   Pod
	Since time.Time
	Until time.Time // when it ends at the latest
	Live  int       // flows, as far as it is known
}

// Outcome is how a wait ended, as metrics spell it.
type Outcome string

// The outcomes.
const (
	Drained Outcome = "drained"
	TimeUp  Outcome = "time_up" // or the client has gone
	Failed  Outcome = "failed"
)

// Waits are the waits of a daemon. It is safe for concurrent use.
type Waits struct {
	waiter Waiter
	lists  lists
	ended  func(Outcome, time.Duration)

	mu      sync.Mutex
	running map[*running]struct{}
}

type running struct {
	pod          Pod
	since, until time.Time
	live         atomic.Int64
}

// NewWaits returns Waits without any. It calls ended with the outcome and the duration of each.
func NewWaits(w Waiter, ended func(Outcome, time.Duration)) *Waits {
	return &Waits{waiter: w, lists: newLists(w.Table), ended: ended, running: map[*running]struct{}{}}
}

// Wait waits for a pod until it is drained, for a time up to Longest, or until the context ends.
func (w *Waits) Wait(ctx context.Context, pod Pod, limit time.Duration) (Result, error) {
	now := time.Now()
	r := &running{pod: pod, since: now, until: now.Add(min(limit, Longest))}
	w.mu.Lock()
	if len(w.running) >= mostWaits {
		w.mu.Unlock()
		return Result{}, ErrMany
	}
	w.running[r] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.running, r)
	}()
	ctx, cancel := context.WithDeadline(ctx, r.until)
	defer cancel()
	result, err := w.wait(ctx, pod.Addrs, func(live int) { r.live.Store(int64(live)) })
	outcome := TimeUp
	switch {
	case err != nil:
		outcome = Failed
	case result.Drained:
		outcome = Drained
	}
	w.ended(outcome, time.Since(now))
	return result, err
}

// Running lists the waits, sorted by pod and time.
func (w *Waits) Running() []Running {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]Running, 0, len(w.running))
	for r := range w.running {
		list = append(list, Running{r.pod, r.since, r.until, int(r.live.Load())})
	}
	slices.SortFunc(list, func(a, b Running) int {
		return cmp.Or(cmp.Compare(a.Pod.String(), b.Pod.String()), a.Since.Compare(b.Since))
	})
	return list
}
