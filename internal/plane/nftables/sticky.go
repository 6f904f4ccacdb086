package nftables

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Session affinity. All Services keep their clients in one map, clients: id of the Service port and client
// address -> number of a backend. The rows of a frontend map the number to the backend. A backend keeps its
// number for its whole life, so the numbers in use have gaps.
//
// An update of the map draws a number for a new client; of a known one it renews the timeout. If no backend
// has the number, the client is deleted from the map and the next update draws again (docs/decisions/0020).

// maxClients bounds the memory of a table. A client beyond it is served, but not remembered.
const maxClients = 1 << 20

// attempts is how often a connection draws a number to remember, and again without remembering if the map is
// full. At least four in ten draws find a backend, so at most one connection in 10^5 needs more.
const attempts = 24

// drawn returns the number of slots from which clients of n backends draw: more than n, so that some backends can
// be deleted before the others need new numbers; a power of two, so that few changes need another chain.
func drawn(n int) int {
	return 1 << bits.Len(uint(n+(n+3)/4-1))
}

// The pool Cluster has the numbers from 1 on; those of the pool Local are above them.
const localNumbers = 1 << 16

// number returns the number of a slot of a pool.
func number(pool, slot int) uint32 { return uint32(pool*localNumbers + slot + 1) }

// idOf returns an id for a port, the n-th that is given: a hash, odd and larger than all numbers, so that an id is
// not a number in either byte order. Two ports with the same one share the numbers of their clients, so that a
// client of both may change its backend: with 1,000 ports, there are two in one of 2,000 clusters.
func idOf(port route.PortID, n uint32) uint32 {
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, port, n) // it returns no error
	return h.Sum32() | isID
}

const isID = 1<<20 | 1 // bits that are set in each id

// An action that remembers clients has all that its chain depends on: from the lowest bit on the timeout in
// seconds, the kind, the pool, and the logarithm of drawn; the space has the same bits as in other actions.
const (
	timeoutBits        = 17
	kindAt             = 17
	poolAt             = 19
	stickyBit   action = 1 << 23
	drawnAt            = 26
)

func (s space) stickyAction(kind uint16, timeout time.Duration, pool route.Pool, backends int) action {
	seconds := action(timeout / time.Second) // Kubernetes allows a day
	exponent := action(bits.Len(uint(drawn(backends) - 1)))
	return stickyBit | s.base() | seconds | action(kind-kindPlain)<<kindAt | action(pool)<<poolAt | exponent<<drawnAt
}

func (a action) sticky() bool           { return a&stickyBit != 0 }
func (a action) stickyKind() uint16     { return kindPlain + uint16(a>>kindAt&3) }
func (a action) timeout() time.Duration { return time.Duration(a&(1<<timeoutBits-1)) * time.Second }
func (a action) pool() route.Pool       { return route.Pool(a >> poolAt & 1) }
func (a action) drawn() int             { return 1 << (a >> drawnAt & 15) }

// What the names of chains begin with.
const (
	keeps   = "draw-and-keep-" // adds clients of an action to the map
	draws   = "draw-"          // serves clients of an action while the map is full
	lookups = "at-clients-of-" // looks up clients, and then a map of backends
)

// sticky returns the chain of an action that remembers clients, behind the two that it uses.
func (b builder) sticky(s space, a action, chain nft.Chain) []nft.Chain {
	backends := b.name(backendElement.in(s))
	if a.kind() == kindOutside {
		backends = b.name(outsideBackendElement.in(s))
	}
	const inner = 4
	first, n, name := int(number(int(a.pool()), 0)), a.drawn(), (a &^ guardBit).chain()
	lookup := nft.NewRule(nft.Jump(lookups + backends))
	keep := nft.Chain{Name: keeps + name, Rules: slices.Repeat([]nft.Rule{
		nft.NewRule(nft.Remember(b.name(clientElement), a.timeout(), nft.Random(first, n), b.client()...)), lookup,
	}, inner)}
	draw := nft.Chain{
		Name: draws + name, Rules: slices.Repeat([]nft.Rule{nft.NewRule(nft.Draw(first, n)), lookup}, inner),
	}
	chain.Rules = append(append(chain.Rules, b.before(a.kind())...), nft.NewRule(nft.Jump(b.name(affinityElement.in(s)))))
	for _, c := range []nft.Chain{keep, draw} {
		chain.Rules = append(chain.Rules, slices.Repeat([]nft.Rule{nft.NewRule(nft.Jump(c.Name))}, attempts/inner)...)
	}
	chain.Rules = orDrop(chain.Rules)
	return []nft.Chain{draw, keep, chain}
}

// client returns the key of a client. In this order nft 1.0.6 can load its own listing of IPv6 clients.
func (b builder) client() []nft.Field { return []nft.Field{nft.Priority(), nft.Source(b.f)} }

// identify sets the priority to the id of the port.
func (b builder) identify(s space) nft.Rule {
	return nft.NewRule(nft.SetPriority(b.name(affinityElement.in(s)), s.key(b.f)...))
}

// recollection returns the chain that sends a client to its backend, or, if the priority is a number instead
// of an id, to the backend with that number. If there is none, it forgets the client and restores the id.
func (b builder) recollection(backends object) nft.Chain {
	rules := []nft.Rule{nft.NewRule(nft.SetPriority(b.name(clientElement), b.client()...))}
	return nft.Chain{Name: lookups + b.name(backends), Rules: append(append(rules, b.translate(backends)...),
		b.identify(backends.space()), nft.NewRule(nft.Forget(b.name(clientElement), b.client()...)))}
}
