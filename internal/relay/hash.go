package relay

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
)

// tree chooses members by the address of the client. A client goes to the member with the highest
// score, a hash of both that is scaled by the weight (rendezvous hashing): if a member comes or goes, only
// clients of this member move. To compare few scores in a large pool, the members are in two levels of
// groups by their own hash, which are chosen in the same way by their total weight. So a change moves up
// to three times as many clients as necessary. The choice depends on addresses only: a restart and other
// nodes come to the same one.
type tree struct {
	count  int
	groups [fanOut]*branch
}

// branch is a group of groups of members.
type branch struct {
	weight float64
	groups [fanOut]*twig
}

// twig is a group of members.
type twig struct {
	weight  float64
	members []leaf
}

// leaf is a member.
type leaf struct {
	index  int
	hash   uint64
	weight float64
}

// fanOut is how many groups a group has.
const fanOut = 32

func newTree(m members) *tree {
	t := &tree{count: len(m.backends)}
	for i, b := range m.backends {
		l := leaf{index: i, hash: hashMember(b.Addr), weight: float64(b.Weight)}
		first, second := l.path()
		if t.groups[first] == nil {
			t.groups[first] = &branch{}
		}
		g := t.groups[first]
		if g.groups[second] == nil {
			g.groups[second] = &twig{}
		}
		w := g.groups[second]
		g.weight += l.weight
		w.weight += l.weight
		w.members = append(w.members, l)
	}
	return t
}

// path returns the groups of a member.
func (l *leaf) path() (first, second uint64) { return l.hash % fanOut, l.hash / fanOut % fanOut }

// pick implements scheduler.
func (t *tree) pick(client netip.Addr, skip []int) int {
	if len(skip) > 0 {
		return t.without(skip).pick(client, nil)
	}
	h := hashClient(client)
	first, best := highest{}, highest{}
	for i, g := range t.groups {
		if g != nil {
			first.offer(i, score(h, uint64(i), g.weight))
		}
	}
	second := highest{}
	branch := t.groups[first.index]
	for i, w := range branch.groups {
		if w != nil {
			second.offer(i, score(h, uint64(fanOut*(first.index+1)+i), w.weight))
		}
	}
	for _, l := range branch.groups[second.index].members {
		best.offer(l.index, score(h, l.hash, l.weight))
	}
	return best.index
}

// without returns the tree without some members: a retry goes where the client would go if they were
// not there. It costs as much as the whole tree, but retries are few.
func (t *tree) without(skip []int) *tree {
	out := map[int]bool{}
	for _, i := range skip {
		out[i] = true
	}
	smaller := &tree{count: t.count}
	for i, g := range t.groups {
		if g == nil {
			continue
		}
		h := &branch{}
		for j, w := range g.groups {
			if w == nil {
				continue
			}
			v := &twig{}
			for _, l := range w.members {
				if !out[l.index] {
					v.weight += l.weight
					v.members = append(v.members, l)
				}
			}
			if v.members != nil {
				h.weight += v.weight
				h.groups[j] = v
			}
		}
		if h.weight > 0 {
			smaller.groups[i] = h
		}
	}
	return smaller
}

// changed implements scheduler.
func (*tree) changed(int) {}

// shares implements scheduler.
func (t *tree) shares(client netip.Addr) []float64 {
	shares := make([]float64, t.count)
	if t.count > 0 {
		shares[t.pick(client, nil)] = 1
	}
	return shares
}

// highest is the index with the highest score, or the only one.
type highest struct {
	index   int
	score   float64
	offered bool
}

func (h *highest) offer(index int, score float64) {
	if !h.offered || score > h.score {
		*h = highest{index, score, true}
	}
}

// score returns the score of a member or group for a client: the higher, the greater the weight. The
// highest of several belongs to each with a probability in proportion to its weight.
func score(client, id uint64, weight float64) float64 {
	const unit = 1 << 52 // with one bit more, the largest number would be rounded to 1
	uniform := (float64(mix(client^mix(id))>>12) + 0.5) / unit
	return weight / -math.Log(uniform)
}

// hashClient returns a hash of the address of a client.
func hashClient(a netip.Addr) uint64 {
	b := a.As16()
	return mix(mix(binary.BigEndian.Uint64(b[:8])) + binary.BigEndian.Uint64(b[8:]))
}

// hashMember returns a hash of the address of a backend.
func hashMember(a netip.AddrPort) uint64 {
	return mix(bits.RotateLeft64(hashClient(a.Addr()), 17) + uint64(a.Port()))
}

// mix spreads the bits of a number (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
