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

// Way is somebody who connects somewhere.
type Way struct {
	From *Host
	To   netip.AddrPort

	// Check says what is wrong with an answer to a new connection; nil: any is
	// right.
	Check func(Result) error
}

// String names both ends.
func (w Way) String() string { return fmt.Sprintf("%s to %s", w.From.Name(), w.To) }

// within is how long an answer may take: a machine that is busy is no loss. A
// first packet that is lost is seen in another way.
const within = 10 * time.Second

// Steady is traffic that must not notice what goes on meanwhile: on each way one
// connection that is kept and asked, and others that are made, at a steady pace.
type Steady struct {
	pace        time.Duration
	over        chan struct{}
	stop        func()
	wait        sync.WaitGroup
	ways        int
	messages    atomic.Int64
	connections atomic.Int64

	mu     sync.Mutex
	broken []error
}

// StartSteady opens a TCP connection on each way and keeps all of them busy
// until End, or the end of t.
func StartSteady(t T, pace time.Duration, ways ...Way) *Steady {
	t.Helper()
	s := &Steady{pace: pace, over: make(chan struct{}), ways: len(ways)}
	s.stop = sync.OnceFunc(func() { close(s.over) })
	t.Cleanup(func() { _ = s.End() })
	for _, w := range ways {
		flow, r := w.From.Open(Probe{Protocol: TCP, To: w.To, Timeout: within})
		if r.Outcome != Answered {
			t.Fatalf("%s: %s", w, r)
		}
		s.wait.Go(func() {
			defer flow.Close()
			s.repeat(func() error { return s.talk(w, flow) })
		})
		s.wait.Go(func() { s.repeat(func() error { return s.connect(w) }) })
	}
	return s
}

// repeat does something until the end, or until it fails.
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

func (s *Steady) talk(w Way, flow *Flow) error {
	r := flow.AskWithin([]byte("still there?"), within)
	if r.Outcome != Answered || !r.Echoed {
		return fmt.Errorf("%s: a connection broke after %d messages: %s", w, s.messages.Load(), r)
	}
	s.messages.Add(1)
	return nil
}

func (s *Steady) connect(w Way) error {
	flow, r := w.From.Open(Probe{Protocol: TCP, To: w.To, Timeout: within})
	if flow == nil {
		return fmt.Errorf("%s: a new connection failed after %d: %s", w, s.connections.Load(), r)
	}
	defer flow.Close()
	err := flow.prompt()
	if err == nil && w.Check != nil {
		err = w.Check(r)
	}
	if err != nil {
		return fmt.Errorf("%s: a new connection is not as it should be after %d: %w", w, s.connections.Load(), err)
	}
	s.connections.Add(1)
	return nil
}

// prompt makes sure that no packet of a connection had to be sent again. It is
// for one over which nothing was asked yet.
func (f *Flow) prompt() error {
	info, err := unix.GetsockoptTCPInfo(f.socket.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return fmt.Errorf("read TCP_INFO: %w", err)
	}
	if info.Total_retrans > 0 {
		return fmt.Errorf("its first packet was lost and sent %d times more", info.Total_retrans)
	}
	return nil
}

// Await returns when there were n more messages and n more new connections since
// it was called, or when something broke.
func (s *Steady) Await(n int) {
	messages, connections := s.messages.Load()+int64(n), s.connections.Load()+int64(n)
	for s.Broken() == nil && (s.messages.Load() < messages || s.connections.Load() < connections) {
		time.Sleep(s.pace)
	}
}

// Broken says what broke so far.
func (s *Steady) Broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.broken...)
}

// End stops the traffic and says what broke. No traffic at all is an error too.
func (s *Steady) End() error {
	s.stop()
	s.wait.Wait()
	if s.messages.Load() == 0 || s.connections.Load() == 0 {
		return errors.Join(s.Broken(), errors.New("no traffic"))
	}
	return s.Broken()
}

// String says how much there was.
func (s *Steady) String() string {
	return fmt.Sprintf("%d messages on %d connections that were open all along, %d new connections",
		s.messages.Load(), s.ways, s.connections.Load())
}
