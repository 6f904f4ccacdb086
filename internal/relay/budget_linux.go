package relay

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/fair"
)

// rate is how many ICMP errors may be sent a second, and at once.
type rate struct{ perSecond, atOnce float64 }

// Limits of ICMP errors for each loop, and for each client, whose address may be a forged one: then its
// owner gets the errors. The kernel's limits (icmp_msgs_per_sec, icmp_ratelimit) do not apply to raw sockets.
const (
	refusalsPerSecond, refusalsAtOnce             = 1000, 50
	clientRefusalsPerSecond, clientRefusalsAtOnce = 10, 20
)

// budgets limits how many ICMP errors are sent. Clients with the same hash share a budget, so that memory
// is bounded.
type budgets struct {
	all     budget
	clients [1024]budget
	seed    maphash.Seed
}

func newBudgets() *budgets { return &budgets{seed: maphash.MakeSeed()} }

// take reports whether one more may be sent to a client.
func (b *budgets) take(client netip.Addr, now time.Time) bool {
	slot := maphash.Comparable(b.seed, fair.Network(client)) % uint64(len(b.clients))
	return b.clients[slot].take(rate{clientRefusalsPerSecond, clientRefusalsAtOnce}, now) &&
		b.all.take(rate{refusalsPerSecond, refusalsAtOnce}, now)
}

// budget is the unused part of a rate.
type budget struct {
	left float64
	last time.Time
}

// take reports whether one more may be sent.
func (b *budget) take(r rate, now time.Time) bool {
	b.left = min(r.atOnce, b.left+now.Sub(b.last).Seconds()*r.perSecond)
	b.last = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
