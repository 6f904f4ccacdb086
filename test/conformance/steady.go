//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// together is several steps in one, the first that fails ends it.
func together(steps ...step) step {
	return func(e *env) error {
		for _, s := range steps {
			if err := s(e); err != nil {
				return err
			}
		}
		return nil
	}
}

// unbroken has a client connect again and again while the steps go on, from before
// the first. Each of the connections must be answered, by any backend.
func unbroken(from, to string, steps ...step) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		var probing sync.WaitGroup
		var broken error
		over, begun := make(chan struct{}), make(chan struct{})
		probing.Go(func() {
			began := sync.OnceFunc(func() { close(begun) })
			defer began() // or it is broken from the start
			broken = probeUntil(over, client, probe, began)
		})
		<-begun
		err = together(steps...)(e)
		close(over)
		probing.Wait()
		if broken != nil {
			broken = fmt.Errorf("%s to %s: %w", from, to, broken)
		}
		return errors.Join(err, broken)
	}
}

// probeUntil connects until over, and gives up at the first that fails. It calls
// answered after each that does not.
func probeUntil(over <-chan struct{}, client *lab.Host, p lab.Probe, answered func()) error {
	for n := 0; ; n++ {
		select {
		case <-over:
			if n == 0 {
				return errors.New("never connected")
			}
			return nil
		case <-time.After(time.Millisecond):
		}
		if r := client.Try(p); r.Outcome != lab.Answered {
			return fmt.Errorf("%s after %d connections that were answered", r, n)
		}
		answered()
	}
}

// cut has a pod take no new TCP connections, without a word, as when it is gone;
// those it has it may end. What was sent to it before has the time to arrive.
func cut(pod string) step {
	return func(e *env) error {
		time.Sleep(lab.Soon / 3)
		h, err := e.host(pod)
		if err != nil {
			return err
		}
		h.Nft("table inet gone { chain input { type filter hook input priority 0; tcp flags & (syn | ack) == syn drop; }; }")
		return nil
	}
}
