package userspace

import (
	"net/netip"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/relay"
)

// retryPeriod is the least time between two attempts to open absent sockets.
const retryPeriod = 10 * time.Second

// absent is the Listener in place of a socket that cannot be opened. The caller of its methods holds the lock of
// sockets.
type absent struct{ spec relay.Spec }

// Set implements Listener.
func (a *absent) Set(b *relay.Balancer, admit func(client netip.Addr) relay.Admission) {
	a.spec.Balancer, a.spec.Admit = b, admit
}

// Close implements Listener.
func (*absent) Close() {}

// Addr implements Listener.
func (a *absent) Addr() netip.AddrPort { return a.spec.Addr }

// File implements Listener.
func (*absent) File() (*os.File, error) { return nil, os.ErrNotExist }

// retryAbsent opens absent sockets whose addresses are free now.
func (s *sockets) retryAbsent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.absent) == 0 || time.Since(s.retried) < retryPeriod {
		return
	}
	s.retried = time.Now()
	for k, a := range s.absent {
		l, err := s.listen(a.spec)
		if err != nil {
			s.failures.Add(1)
			continue
		}
		s.open[k] = l
		delete(s.absent, k)
	}
}
