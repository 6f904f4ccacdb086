package ipvs

import (
	"hash/fnv"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/ipset"
	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/route"
)

// portID identifies a port of a Service.
type portID struct {
	service  cluster.Name
	name     string
	protocol cluster.Protocol
	family   route.Family
	number   uint16 // of its first frontend
}

func idOf(service cluster.Name, p *route.Port) portID {
	id := portID{service: service, name: p.Name, protocol: p.Protocol, family: p.Family}
	if len(p.Frontends) > 0 {
		id.number = p.Frontends[0].Port
	}
	return id
}

// first returns the mark that the port gets unless another port has it. It is the same
// after a restart.
func (id portID) first() uint32 {
	h := fnv.New32a()
	for _, part := range []string{
		id.service.Namespace, id.service.Name, id.name, id.protocol.String(), id.family.String(), strconv.Itoa(int(id.number)),
	} {
		_, _ = h.Write([]byte(part + "\x00")) // never fails
	}
	mark := shortCut | h.Sum32()&markNumber
	if id.protocol == cluster.UDP {
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

// marks are the packet marks of ports in the kernel.
type marks struct {
	of    map[portID]uint32
	owner map[uint32]portID
}

func newMarks() *marks { return &marks{map[portID]uint32{}, map[uint32]portID{}} }

func (m *marks) set(id portID, mark uint32) { m.of[id], m.owner[mark] = mark, id }

// draft is what a plan changes about marks.
type draft struct {
	*marks
	taken         map[uint32]portID // by Services after
	needed, needs map[portID]uint32 // by Services before and after
}

func (m *marks) draft() *draft {
	return &draft{m, map[uint32]portID{}, map[portID]uint32{}, map[portID]uint32{}}
}

// before returns the mark that a port has in the kernel.
func (d *draft) before(id portID, _ *route.Port) uint32 {
	d.needed[id] = d.of[id]
	return d.of[id]
}

// after returns the mark that a port has after the plan.
func (d *draft) after(id portID, _ *route.Port) uint32 {
	mark, has := d.of[id]
	if !has {
		mark, has = d.needs[id]
	}
	if !has {
		for mark = id.first(); d.used(mark); {
			mark = next(mark)
		}
	}
	d.needs[id], d.taken[mark] = mark, id
	return mark
}

func (d *draft) used(mark uint32) bool {
	_, owned := d.owner[mark]
	_, taken := d.taken[mark]
	return owned || taken
}

// learn takes the changes over.
func (d *draft) learn() {
	for id, mark := range d.needed {
		if _, needs := d.needs[id]; !needs {
			delete(d.of, id)
			delete(d.owner, mark)
		}
	}
	for id, mark := range d.needs {
		d.set(id, mark)
	}
}

// adopt gives ports the marks that their frontends have in the kernel.
func (m *marks) adopt(svc *route.Service, host *route.Host, in map[route.Family]*ipset.Set) {
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for j := range p.Frontends {
			f := &p.Frontends[j]
			if in[p.Family] == nil || !divided(p, f) {
				continue
			}
			for _, a := range addresses(host, p, f) {
				mark := in[p.Family].Members[ipset.Member{Addr: a, Protocol: protocol(p), Port: f.Port}]
				if _, used := m.owner[mark]; isShortCut(mark) && !used && m.of[idOf(svc.Name, p)] == 0 {
					m.set(idOf(svc.Name, p), mark)
				}
			}
		}
	}
}

func isShortCut(mark uint32) bool { return ipvs.Server{Mark: mark}.Own() }
