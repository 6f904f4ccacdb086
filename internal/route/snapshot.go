package route

import (
	"iter"
	"net/netip"
	"runtime"
	"slices"

	"github.com/tidwall/btree"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Snapshot is the state of a Compiler between two calls of Compile. It does not change; any goroutine may read it.
type Snapshot struct {
	Host Host

	records *btree.BTreeG[*record]
	view    *view
}

// Snapshot returns the present state in constant time. The next Compile copies some nodes of a tree more.
func (c *Compiler) Snapshot() *Snapshot {
	return &Snapshot{Host: c.table.Host, records: c.records.Copy(), view: c.builder.view}
}

// Len returns the number of Services.
func (s *Snapshot) Len() int { return s.records.Len() }

// Service returns the Service of a name; nil if there is none.
func (s *Snapshot) Service(name cluster.Name) *Service {
	if r, exists := s.records.Get(recordOf(name)); exists {
		return r.made
	}
	return nil
}

// Pods yields the addresses of the pods that slices of Services name. A pod of several Services comes several times.
func (s *Snapshot) Pods() iter.Seq2[cluster.Name, netip.Addr] {
	return func(yield func(cluster.Name, netip.Addr) bool) {
		for r := range Yielding(s.records.Scan) {
			for _, sl := range r.slices {
				for _, pod := range sl.Pods {
					if !yield(cluster.Name{Namespace: sl.Name.Namespace, Name: pod.Name}, pod.Addr) {
						return
					}
				}
			}
		}
	}
}

// yieldEvery is after how many values Yielding lets other goroutines run; the runtime preempts only every 10 ms. It
// bounds how long walks delay the proxy's loop if they occupy every processor, and costs them little.
const yieldEvery = 128

// Services yields all Services, sorted by name, and lets other goroutines run in between.
func (s *Snapshot) Services() iter.Seq[*Service] {
	return Yielding(func(yield func(*Service) bool) {
		for r := range s.records.Scan {
			if !yield(r.made) {
				return
			}
		}
	})
}

// Yielding yields the same values, and lets other goroutines run after every 128.
func Yielding[T any](of iter.Seq[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		n := 0
		for v := range of {
			if !yield(v) {
				return
			}
			if n++; n%yieldEvery == 0 {
				runtime.Gosched()
			}
		}
	}
}

// Table returns a Table of the Services. Its cost is proportional to their number.
func (s *Snapshot) Table() *Table {
	t := &Table{Host: s.Host, Services: make(map[cluster.Name]*Service, s.Len())}
	for svc := range s.Services() {
		t.Services[svc.Name] = svc
	}
	return t
}

// Problems returns the problems of a Service. Conflicts name the owner at the time of the call.
func (s *Snapshot) Problems(name cluster.Name) []Problem {
	if r, exists := s.records.Get(recordOf(name)); exists {
		return r.reported.problems()
	}
	return nil
}

// Explain returns every endpoint of a Service, sorted by address, and whether it is in a pool of one of its Ports or
// why not. It computes the pool even if no frontend of the Port uses it.
func (s *Snapshot) Explain(name cluster.Name, port *Port, pool Pool) []Choice {
	r, exists := s.records.Get(recordOf(name))
	if !exists {
		return nil
	}
	list, n := gather(nil, r.slices, backendKey{portName{port.Name, port.Protocol}, port.Family})
	if port.Ejection.On() {
		setShares(list[:n], port.Name, r.shares)
	}
	choose(list[:n], pool, s.view)
	slices.SortStableFunc(list, func(a, b Choice) int { return a.Backend.Compare(b.Backend) })
	return list
}
