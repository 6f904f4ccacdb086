package drain

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
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
	Pod   string    `json:"pod"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`           // its deadline
	Live  int       `json:"liveConnections"` // at the last poll
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
	running map[*Running]bool
}

// NewWaits returns Waits. It calls ended with the outcome and the duration of each wait.
func NewWaits(o Options, ended func(Outcome, time.Duration)) *Waits {
	return &Waits{opt: o, lister: newLister(o.Table), ended: ended, running: map[*Running]bool{}}
}

// Wait blocks until the pod is drained, the limit (at most MaxWait) has passed, or the context ends. It returns
// ErrTooMany if too many waits run.
func (w *Waits) Wait(ctx context.Context, pod Pod, limit time.Duration) (Result, error) {
	now := time.Now()
	r := &Running{Pod: pod.String(), Since: now, Until: now.Add(min(limit, MaxWait))}
	w.mu.Lock()
	if len(w.running) >= maxWaits {
		w.mu.Unlock()
		return Result{}, ErrTooMany
	}
	w.running[r] = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.running, r)
	}()
	ctx, cancel := context.WithDeadline(ctx, r.Until)
	defer cancel()
	result, err := w.wait(ctx, pod.Addrs, func(live int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		r.Live = live
	})
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
		list = append(list, *r)
	}
	slices.SortFunc(list, func(a, b Running) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), a.Since.Compare(b.Since))
	})
	return list
}
