package eject

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

const (
	// mostClients bounds the clients that a Record remembers. Thresholds are not larger.
	mostClients = 16

	// expiry is how long after the last failure a Record counts.
	expiry = time.Minute
)

// Record collects the failures of connections to one backend of one Service port since the last success. Its memory is
// bounded, whatever clients do. The zero value has none.
type Record struct {
	failures  int
	row       int
	byClient  map[netip.Addr]int
	last      time.Time // failure
	succeeded bool
}

// Fail adds a failure.
func (r *Record) Fail(client netip.Addr, now time.Time) {
	r.failures, r.last = r.failures+1, now
	n, known := r.byClient[client]
	if !known && len(r.byClient) >= mostClients {
		return
	}
	if r.byClient == nil {
		r.byClient = map[netip.Addr]int{}
	}
	r.byClient[client] = n + 1
	r.row = max(r.row, n+1)
}

// Succeed forgets the failures, as a connection succeeded after them.
func (r *Record) Succeed() { *r = Record{succeeded: true} }

// Forget forgets everything, after a decision that changed the standing of the backend.
func (r *Record) Forget() { *r = Record{} }

// Failures returns how many failures count.
func (r *Record) Failures() int { return r.failures }

// Take returns the evidence for a decision, and forgets a success. known is whether a success would have been noticed.
func (r *Record) Take(known bool) Evidence {
	e := Evidence{
		Failures: r.failures, Clients: len(r.byClient), Row: r.row, Succeeded: r.succeeded && r.failures == 0, Known: known,
	}
	r.succeeded = false
	return e
}

// Expired reports whether nothing counts any more.
func (r *Record) Expired(now time.Time) bool { return r.failures == 0 || now.Sub(r.last) >= expiry }

// Near reports whether the failures reach the limits.
func (r *Record) Near(limits cluster.Ejection) bool {
	return Evidence{Clients: len(r.byClient), Row: r.row}.Reaches(limits)
}
