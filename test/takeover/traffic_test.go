//go:build linux

package takeover

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Each way has a connection over which something is sent all the time, and sees
// new ones made at this pace.
const (
	everyMessage    = 10 * time.Millisecond
	everyConnection = 10 * time.Millisecond
)

// traffic is what must not notice the take-over.
type traffic struct {
	over        chan struct{}
	wait        sync.WaitGroup
	messages    atomic.Int64
	connections atomic.Int64

	mu     sync.Mutex
	broken []error
}

// start opens a connection on each way and keeps all busy until end.
func (w *world) start() *traffic {
	w.Helper()
	t := &traffic{over: make(chan struct{})}
	for _, v := range w.ways() {
		flow, r := v.from.Open(lab.Probe{Protocol: lab.TCP, To: v.to, Timeout: patience})
		if r.Outcome != lab.Answered {
			w.Fatalf("%s: %s", v, r)
		}
		t.wait.Go(func() { t.repeat(everyMessage, func() error { return t.talk(v, flow) }) })
		t.wait.Go(func() { t.repeat(everyConnection, func() error { return t.connect(v) }) })
	}
	w.Cleanup(func() { _ = t.end() })
	return t
}

// repeat does something until the end, or until it fails.
func (t *traffic) repeat(every time.Duration, do func() error) {
	for {
		select {
		case <-t.over:
			return
		case <-time.After(every):
		}
		if err := do(); err != nil {
			t.mu.Lock()
			t.broken = append(t.broken, err)
			t.mu.Unlock()
			return
		}
	}
}

func (t *traffic) talk(v way, flow *lab.Flow) error {
	r := flow.AskWithin([]byte("still there?"), 2*time.Second)
	if r.Outcome != lab.Answered || !r.Echoed {
		return fmt.Errorf("%s: a connection broke: %s", v, r)
	}
	t.messages.Add(1)
	return nil
}

// connect fails also if the first packet was lost: then it takes a second.
func (t *traffic) connect(v way) error {
	r := v.from.Try(lab.Probe{Protocol: lab.TCP, To: v.to, Timeout: 900 * time.Millisecond})
	if r.Outcome != lab.Answered {
		return fmt.Errorf("%s: a new connection failed: %s", v, r)
	}
	t.connections.Add(1)
	return nil
}

var errIdle = errors.New("no traffic")

// end stops and says what broke.
func (t *traffic) end() error {
	t.mu.Lock()
	select {
	case <-t.over:
	default:
		close(t.over)
	}
	t.mu.Unlock()
	t.wait.Wait()
	if t.messages.Load() == 0 || t.connections.Load() == 0 {
		t.broken = append(t.broken, errIdle)
	}
	return errors.Join(t.broken...)
}
