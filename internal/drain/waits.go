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
	// MaxWait is the longest time that a wait may take.
	MaxWait = 10 * time.Minute

	// maxWaits bounds the memory and the CPU time that clients of the endpoint can use.
	maxWaits = 64
)

// Errors of waits.
var (
	ErrTooMany     = errors.New("too many waits for pods of this node; try again")
	ErrHostNetwork = errors.New("the pod uses the network of its node, and its connections have the address of the node")
)

// Pod is a pod of this node. Its Name is empty if only its address is known.
type Pod struct {
	Name  cluster.Name
	Addrs []netip.Addr
}

// String returns the name, or the first address of a pod without a name.
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
	Until time.Time // its deadline
	Live  int       // live flows at the last poll
}

// Outcome is the outcome of a wait, and the value of the label in metrics.
type Outcome string

// The outcomes.
const (
	Drained Outcome = "drained"
	TimeUp  Outcome = "time_up" // or the client has disconnected
	Failed  Outcome = "failed"
)

// Waits are the waits of a daemon. It is safe for concurrent use.
type Waits struct {
	opt    Options
	lister lister
	ended  func(Outcome, time.Duration)

	mu      sync.Mutex
	running map[*running]struct{}
}

type running struct {
	pod          Pod
	since, until time.Time
	live         atomic.Int64
}

// NewWaits returns Waits. It calls ended with the outcome and the duration of each wait.
func NewWaits(o Options, ended func(Outcome, time.Duration)) *Waits {
	return &Waits{opt: o, lister: newLister(o.Table), ended: ended, running: map[*running]struct{}{}}
}

// Wait blocks until the pod is drained, the limit (at most MaxWait) has passed, or the context ends. It returns
// ErrTooMany if too many waits run.
func (w *Waits) Wait(ctx context.Context, pod Pod, limit time.Duration) (Result, error) {
	now := time.Now()
	r := &running{pod: pod, since: now, until: now.Add(min(limit, MaxWait))}
	w.mu.Lock()
	if len(w.running) >= maxWaits {
		w.mu.Unlock()
		return Result{}, ErrTooMany
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

// Running lists the running waits, sorted by pod and start.
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
