package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// bench runs a Loop, and records when it calls the function.
type bench struct {
	*Loop
	t     *testing.T
	began time.Time

	mu          sync.Mutex
	takes, next time.Duration
	err         error
	calls       []time.Duration // since the start
	failures    []string
}

func start(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, began: time.Now()}
	b.Loop = New(func(ctx context.Context) (time.Duration, error) {
		b.mu.Lock()
		b.calls = append(b.calls, time.Since(b.began))
		takes, next, err := b.takes, b.next, b.err
		b.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(takes):
		}
		return next, err
	}, func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.failures = append(b.failures, err.Error())
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	synctest.Wait()
	return b
}

// set sets what the function does from now on.
func (b *bench) set(takes, next time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.takes, b.next, b.err = takes, next, err
}

// want compares the calls since the last want.
func (b *bench) want(what string, calls ...time.Duration) {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.calls, calls) {
		b.t.Errorf("%s: calls at %v, want %v", what, b.calls, calls)
	}
	b.calls = nil
}

func TestTheFunctionIsCalledAtOnceAndAfterAWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.want("at the start", 0)
		time.Sleep(time.Hour)
		b.want("without a Wake")
		b.Wake()
		b.want("after a Wake", time.Hour)
	})
}

func TestWorkThatIsDueLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set(0, time.Minute, nil)
		b.Wake()
		b.want("at the start", 0, 0)
		time.Sleep(time.Second)
		b.Wake() // does not wait for what is due
		b.want("after a Wake", time.Second)
		time.Sleep(2 * time.Minute)
		b.want("later", time.Second+time.Minute, time.Second+2*time.Minute)
	})
}

// The work takes a fifth of the time at most, however often Wake is called.
func TestRest(t *testing.T) {
	for takes, rest := range map[time.Duration]time.Duration{
		100 * time.Millisecond: 400 * time.Millisecond, time.Minute: maxRest,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := start(t)
			b.set(takes, 0, nil)
			b.Wake()
			b.want("at the start", 0, 0)
			for range 10 {
				time.Sleep((takes + rest) / 10)
				b.Wake()
			}
			b.want(fmt.Sprintf("work of %v", takes), takes+rest)
		})
	}
}

// The delay of a retry doubles. A Wake does not wait for it. Each failure is reported once until the function succeeds.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set(0, time.Hour, errors.New("no memory"))
		b.Wake()
		time.Sleep(20 * time.Second)
		const ms = time.Millisecond
		b.want("while it fails", 0, 0, 100*ms, 300*ms, 700*ms, 1500*ms, 3100*ms, 6300*ms, 11300*ms, 16300*ms)
		b.Wake()
		b.want("after a Wake", 20*time.Second)
		b.set(0, 0, errors.New("no kernel"))
		time.Sleep(6 * time.Second)
		b.set(0, 0, nil)
		time.Sleep(5 * time.Second)
		b.want("afterwards", 25*time.Second, 30*time.Second)
		b.set(0, 0, errors.New("no kernel"))
		b.Wake()
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		if want := []string{"no memory", "no kernel", "no kernel"}; !slices.Equal(b.failures, want) {
			t.Errorf("reported %q, want %q", b.failures, want)
		}
	})
}
