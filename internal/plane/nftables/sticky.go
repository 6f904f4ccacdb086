package nftables

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Session affinity. All Services keep their clients in one map, clients, by id of
// the Service port and client address; an element holds the number of a backend. What a
// number means, the rows of a frontend say. A backend keeps its number as long as it
// lives, so the numbers in use have gaps.
//
// One statement serves known and new clients: an update draws a number for a client
// that is not in the map, and renews the time of one that is, without changing its
// number. If the number leads to no backend, the client is forgotten and the next
// update draws again. See docs/decisions/0020-session-affinity-in-one-map.md.

// maxClients bounds the memory of a table. A client beyond it is served, but not
// remembered.
const maxClients = 1 << 20

func clientMap() nft.Set {
	return nft.Set{
		Name: "clients", Key: []nft.Type{nft.ClassID, nft.Addr}, Data: []nft.Type{nft.Index},
		Dynamic: true, Size: maxClients,
	}
}

// attempts is how often a connection draws for a client to remember, and, if the map
// is full, how often without. Four in ten draws find a backend at least, so that one
// connection in 10^5 needs more attempts, at most.
const attempts = 24

// maxSticky is how many backends of a pool can have numbers.
const maxSticky = 1 << 14

// drawn returns among how many numbers clients of n backends draw: some more than there
// are backends, so that some may go before others need another number; a power of two,
// so that few changes need another chain.
func drawn(n int) int {
	n = min(n, maxSticky)
	return 1 << bits.Len(uint(n+(n+3)/4-1))
}

// Numbers of the pool Cluster are 1, 2 and so on; those of Local lie above them.
const localNumbers = 1 << 16

// number returns the number of a slot of a pool.
func number(pool, slot int) uint32 { return uint32(pool*localNumbers + slot + 1) }

// slotOf is the reverse of number.
func slotOf(number uint32) (pool, slot int, ok bool) {
	pool, slot = int(number/localNumbers), int(number%localNumbers)-1
	return pool, slot, pool < len(pools{}) && slot >= 0
}

// An action that remembers clients has all that its chain depends on: from the lowest bit
// on, the timeout in seconds, the kind, the pool, and the logarithm of drawn.
// The space is where other actions have it.
const (
	timeoutBits        = 17
	kindAt             = 17
	poolAt             = 19
	stickyBit   action = 1 << 23
	drawnAt            = 26
)

func (s *space) stickyAction(kind uint16, timeout time.Duration, pool route.Pool, backends int) action {
	seconds := min(action(timeout/time.Second), 1<<timeoutBits-1)
	exponent := action(bits.Len(uint(drawn(backends) - 1)))
	return stickyBit | action(s.base)<<16 | seconds | action(kind-kindPlain)<<kindAt | action(pool)<<poolAt | exponent<<drawnAt
}

func (a action) sticky() bool           { return a&stickyBit != 0 }
func (a action) stickyKind() uint16     { return kindPlain + uint16(a>>kindAt&3) }
func (a action) timeout() time.Duration { return time.Duration(a&(1<<timeoutBits-1)) * time.Second }
func (a action) pool() route.Pool       { return route.Pool(a >> poolAt & 1) }
func (a action) drawn() int             { return 1 << (a >> drawnAt & 15) }

// stickyChain names the chain of an action without its space.
func (a action) stickyChain() string {
	name := map[uint16]string{kindPlain: "sticky", kindMasquerade: "sticky-masquerade", kindOffPod: "sticky-off-pod", kindOutside: "sticky-outside"}[a.kind()]
	if a.pool() == route.Local {
		name += "-local"
	}
	return fmt.Sprintf("%s-%d-%ds", name, a.drawn(), a.timeout()/time.Second)
}

// keeps names the chain in which clients of an action are remembered.
func keeps(chain string) string { return "draw-and-keep-" + chain }

// draws names the chain that serves clients of an action when the map of clients is full.
func draws(chain string) string { return "draw-" + chain }

// sticky returns the chain of an action that remembers clients, and the two it uses. All
// look-ups are in chains that are always there; see draw.
func (b builder) sticky(s *space, a action, chain nft.Chain) []nft.Chain {
	backends := s.backends
	if a.kind() == kindOutside {
		backends = s.outsideBackends
	}
	const inner = 4
	first, n := int(number(int(a.pool()), 0)), a.drawn()
	recall := nft.NewRule(nft.Jump(recalls(backends)))
	keep := nft.Chain{Name: keeps(chain.Name), Rules: slices.Repeat([]nft.Rule{
		nft.NewRule(nft.Remember(b.clients.Name, a.timeout(), nft.Random(first, n), b.client()...)), recall,
	}, inner)}
	draw := nft.Chain{Name: draws(chain.Name), Rules: slices.Repeat([]nft.Rule{nft.NewRule(nft.Draw(first, n)), recall}, inner)}
	chain.Rules = append(b.before(a.kind()), nft.NewRule(nft.Jump(s.affinity.Name)))
	for _, c := range []nft.Chain{keep, draw} {
		chain.Rules = append(chain.Rules, slices.Repeat([]nft.Rule{nft.NewRule(nft.Jump(c.Name))}, attempts/inner)...)
	}
	chain.Rules = orDrop(chain.Rules)
	return []nft.Chain{draw, keep, chain}
}

// client is what a client is found by, once the priority is the id of the port. In
// this order nft 1.0.6 can load what it lists of IPv6.
func (b builder) client() []nft.Field { return []nft.Field{nft.Priority(), nft.Source(b.table.Family)} }

// identification is the chain that makes the priority the id of the port.
func (b builder) identification(s *space) nft.Chain {
	return nft.Chain{Name: s.affinity.Name, Rules: []nft.Rule{b.identify(s)}}
}

func (b builder) identify(s *space) nft.Rule {
	return nft.NewRule(nft.SetPriority(s.affinity.Name, s.key(b.table.Family)...))
}

// recollection is the chain that sends a client to the backend it keeps, or, if the
// priority is a number and no id, to the one with that number. It returns if there is
// none, after it has forgotten the client and made the priority the id again.
func (b builder) recollection(s *space, backends nft.Set) nft.Chain {
	f := b.table.Family
	return nft.Chain{Name: recalls(backends), Rules: []nft.Rule{
		nft.NewRule(nft.SetPriority(b.clients.Name, b.client()...)),
		nft.NewRule(nft.TranslateFrom(f, backends.Name, append(s.key(f), nft.Priority())...)),
		b.identify(s),
		nft.NewRule(nft.Forget(b.clients.Name, b.client()...)),
	}}
}

// recalls names the chain that looks clients up, and then a map of backends.
func recalls(backends nft.Set) string { return "at-clients-of-" + backends.Name }
