//go:build linux

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Way is a client and a target of connections.
type Way struct {
	From *Host
	To   netip.AddrPort

	// Check returns an error for an unexpected answer to a new connection; nil accepts any answer.
	Check func(Result) error
}

// String names both ends.
func (w Way) String() string { return fmt.Sprintf("%s to %s", w.From.Name(), w.To) }

// answerTimeout is how long an answer may take. It is long because the machine may be busy; a
// lost first packet is detected by its retransmission.
const answerTimeout = 30 * time.Second

// Steady is continuous traffic that must not fail: on each way it sends on one open connection, and opens new ones,
// at a constant rate.
type Steady struct {
	pace        time.Duration
	over        chan struct{}
	stop        func()
	wait        sync.WaitGroup
	ways        int
	messages    atomic.Int64
	connections atomic.Int64
	mayReset    bool
	resets      atomic.Int64

	mu     sync.Mutex
	broken []error
}

// StartSteady opens a TCP connection on each way and keeps all of them busy until End, or the end of t.
func StartSteady(t T, pace time.Duration, ways ...Way) *Steady {
	t.Helper()
	s := newSteady(t, pace)
	s.ways = len(ways)
	for _, w := range ways {
		flow, r := w.From.Open(Probe{Protocol: TCP, To: w.To, Timeout: answerTimeout})
		if r.Outcome != Answered {
			t.Fatalf("%s: %s", w, r)
		}
		s.wait.Go(func() {
			defer flow.Close()
			s.repeat(func() error { return s.sendOn(w, flow) })
		})
		s.wait.Go(func() { s.repeat(func() error { return s.connect(w) }) })
	}
	return s
}

// StartConnecting is StartSteady without open connections. It counts new connections that are reset during their
// handshake or their first answer: a change of the rules may break those that are open at that moment, which is one on
// each way.
func StartConnecting(t T, pace time.Duration, ways ...Way) *Steady {
	s := newSteady(t, pace)
	s.mayReset = true
	for _, w := range ways {
		s.wait.Go(func() { s.repeat(func() error { return s.connect(w) }) })
	}
	return s
}

// Resets returns the number of new connections that were reset.
func (s *Steady) Resets() int { return int(s.resets.Load()) }

func newSteady(t T, pace time.Duration) *Steady {
	s := &Steady{pace: pace, over: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.over) })
	t.Cleanup(func() { _ = s.End() })
	return s
}

// repeat calls do until the end, or until it fails.
func (s *Steady) repeat(do func() error) {
	for {
		select {
		case <-s.over:
			return
		case <-time.After(s.pace):
		}
		if err := do(); err != nil {
			s.mu.Lock()
			s.broken = append(s.broken, fmt.Errorf("at %s: %w", time.Now().Format(time.TimeOnly+".000"), err))
			s.mu.Unlock()
			return
		}
	}
}

func (s *Steady) sendOn(w Way, flow *Flow) error {
	r := flow.AskWithin([]byte("ping"), answerTimeout)
	if r.Outcome != Answered || !r.Echoed {
		return fmt.Errorf("%s: a connection broke after %d messages: %s", w, s.messages.Load(), r)
	}
	s.messages.Add(1)
	return nil
}

func (s *Steady) connect(w Way) error {
	flow, r := w.From.Open(Probe{Protocol: TCP, To: w.To, Timeout: answerTimeout})
	if flow == nil && s.mayReset && errors.Is(r.Err, unix.ECONNRESET) {
		s.resets.Add(1)
		return nil
	}
	if flow == nil {
		return fmt.Errorf("%s: a connection failed after %d new connections: %s", w, s.connections.Load(), r)
	}
	defer flow.Close()
	err := flow.checkNoRetransmission()
	if err == nil && w.Check != nil {
		err = w.Check(r)
	}
	if err != nil {
		return fmt.Errorf("%s: a wrong answer after %d new connections: %w", w, s.connections.Load(), err)
	}
	s.connections.Add(1)
	return nil
}

// checkNoRetransmission verifies that no packet of a new connection was retransmitted.
func (f *Flow) checkNoRetransmission() error {
	info, err := unix.GetsockoptTCPInfo(f.socket.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return fmt.Errorf("read TCP_INFO: %w", err)
	}
	if info.Total_retrans > 0 {
		return fmt.Errorf("its first packet was retransmitted %d times", info.Total_retrans)
	}
	return nil
}

// Await returns after n more messages and n more new connections, or when something has failed.
func (s *Steady) Await(n int) {
	messages, connections := s.messages.Load()+int64(n), s.connections.Load()+int64(n)
	if s.ways == 0 {
		messages = 0
	}
	for s.Broken() == nil && (s.messages.Load() < messages || s.connections.Load() < connections) {
		time.Sleep(s.pace)
	}
}

// Broken returns the failures so far.
func (s *Steady) Broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.broken...)
}

// End stops the traffic and returns the failures. No traffic at all is an error too.
func (s *Steady) End() error {
	s.stop()
	s.wait.Wait()
	if s.ways > 0 && s.messages.Load() == 0 || s.connections.Load() == 0 {
		return errors.Join(s.Broken(), errors.New("no traffic"))
	}
	return s.Broken()
}

// String returns the number of messages and connections.
func (s *Steady) String() string {
	return fmt.Sprintf("%d messages on %d open connections, %d new connections",
		s.messages.Load(), s.ways, s.connections.Load())
}
