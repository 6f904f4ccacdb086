package ipvs

import (
	"hash/fnv"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/route"
)

// firstMark returns the mark that a port gets unless another port has it. It is the same after a restart.
func firstMark(id route.PortID) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id.String())) // never fails
	mark := shortCut | h.Sum32()&markNumber
	if id.Protocol == cluster.UDP {
		mark |= markUDP
	}
	return mark
}

// next returns the mark after this one, of the same protocol.
func next(mark uint32) uint32 { return mark&^markNumber | (mark+1)&markNumber }

// The parts of a mark besides shortCut.
const (
	markUDP    = 1 << 23
	markNumber = markUDP - 1
)

// marks are the packet marks of ports. Each comparison with the kernel begins with new
// ones, from the marks that it finds.
type marks struct {
	of    map[route.PortID]uint32
	owner map[uint32]route.PortID
}

func newMarks() *marks { return &marks{map[route.PortID]uint32{}, map[uint32]route.PortID{}} }

func (m *marks) set(id route.PortID, mark uint32) { m.of[id], m.owner[mark] = mark, id }

// mark returns the mark of a port. It chooses a free one for a port that has none.
func (m *marks) mark(id route.PortID) uint32 {
	if mark, has := m.of[id]; has {
		return mark
	}
	mark := firstMark(id)
	for _, used := m.owner[mark]; used; _, used = m.owner[mark] {
		mark = next(mark)
	}
	m.set(id, mark)
	return mark
}

// adopt gives ports the marks that their frontends have in sets of the kernel.
func (m *marks) adopt(svc *route.Service, host *route.Host, sets map[string]*ipset.Set) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		cuts := sets[setName(p.Family, circuits)]
		for j := range p.Frontends {
			f := &p.Frontends[j]
			if cuts == nil || !divided(p, f) {
				continue
			}
			for _, a := range addresses(host, p, f) {
				mark, id := cuts.Members[ipset.Member{Addr: a, Protocol: uint8(p.Protocol), Port: f.Port}], p.ID(svc.Name)
				if _, used := m.owner[mark]; isShortCut(mark) && !used && m.of[id] == 0 {
					m.set(id, mark)
				}
			}
		}
	}
}

func isShortCut(mark uint32) bool { return ipvs.Server{Mark: mark}.Own() }
