package eject

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

const (
	// maxClients is the number of clients that a Record counts. Thresholds are not larger.
	maxClients = 16

	// expiry is the time after the last failure at which a Record expires.
	expiry = time.Minute
)

// Record counts failed connections to one backend of one Service port since the last success. Its memory is bounded.
// The zero value is an empty Record.
type Record struct {
	failures  int
	row       int
	byClient  map[netip.Addr]int
	last      time.Time // when the last failure was added
	succeeded bool
}

// Fail adds a failure.
func (r *Record) Fail(client netip.Addr, now time.Time) {
	r.failures, r.last = r.failures+1, now
	n, known := r.byClient[client]
	if !known && len(r.byClient) >= maxClients {
		return
	}
	if r.byClient == nil {
		r.byClient = map[netip.Addr]int{}
	}
	r.byClient[client] = n + 1
	r.row = max(r.row, n+1)
}

// Succeed adds a success, which resets the failures.
func (r *Record) Succeed() { *r = Record{succeeded: true} }

// Take returns the evidence for a decision, and resets the success. observed is Evidence.Observed.
func (r *Record) Take(observed bool) Evidence {
	e := Evidence{
		Failures: r.failures, Clients: len(r.byClient), Row: r.row, Succeeded: r.succeeded && r.failures == 0,
		Observed: observed,
	}
	r.succeeded = false
	return e
}

// Expired reports whether the Record has no failures, or only old ones.
func (r *Record) Expired(now time.Time) bool { return r.failures == 0 || now.Sub(r.last) >= expiry }

// Reaches reports whether the failures reach the limits.
func (r *Record) Reaches(limits cluster.Ejection) bool {
	return Evidence{Clients: len(r.byClient), Row: r.row}.Reaches(limits)
}
