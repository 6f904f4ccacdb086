package relay

import (
	"hash/maphash"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluice-proxy/sluice/internal/fair"
)

// Limits of ICMP errors, in all and for each client, whose address may be a forged one: then its owner gets the
// errors. The kernel's limits (icmp_msgs_per_sec, icmp_ratelimit) do not apply to raw sockets.
const (
	refusalsPerSecond, refusalsAtOnce             = 1000, 50
	clientRefusalsPerSecond, clientRefusalsAtOnce = 10, 20
)

// budgets limits how many ICMP errors are sent. Clients with the same hash share a budget, so that memory is bounded.
type budgets struct {
	all     *rate.Limiter
	clients [1024]*rate.Limiter
	seed    maphash.Seed
}

func newBudgets() *budgets {
	b := &budgets{all: rate.NewLimiter(refusalsPerSecond, refusalsAtOnce), seed: maphash.MakeSeed()}
	for i := range b.clients {
		b.clients[i] = rate.NewLimiter(clientRefusalsPerSecond, clientRefusalsAtOnce)
	}
	return b
}

// take reports whether one more may be sent to a client.
func (b *budgets) take(client netip.Addr, now time.Time) bool {
	slot := maphash.Comparable(b.seed, fair.Network(client)) % uint64(len(b.clients))
	return b.clients[slot].AllowN(now, 1) && b.all.AllowN(now, 1)
}
