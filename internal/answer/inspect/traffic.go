package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// Traffic is what is known of a port of a Service, of both IP families.
type Traffic struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	PortName  string `json:"portName,omitempty"` // of the Service port
	Port      uint16 `json:"port,omitempty"`     // of the Service; 0: another Service has its addresses
	Protocol  string `json:"protocol"`

	// Backend is one of the port, to which the numbers are limited. Not set: they are of the whole port.
	Backend netip.AddrPort `json:"backend,omitzero"`

	// Signals are only those that are known.
	Signals plane.Traffic `json:"signals"`

	Conntrack *Held `json:"conntrack,omitempty"` // nil: not known

	// PerSecond is how fast the counters among the Signals grow. The daemon leaves it out.
	PerSecond map[plane.Signal]float64 `json:"perSecond,omitempty"`
}

// Held is what conntrack holds of a Service.
type Held struct {
	Entries uint64  `json:"entries"` // also of connections that are closed, or have no answer yet
	Share   float64 `json:"share"`   // of the table

	// Bytes of the Entries from and to clients, if conntrack counts bytes.
	Received uint64 `json:"receivedBytes,omitempty"`
	Sent     uint64 `json:"sentBytes,omitempty"`
}

// readings are the sources of answers about traffic.
type readings struct {
	meter   *traffic.Meter
	reading traffic.Reading
	listing *traffic.Listing // nil: unknown
}

// listingWait bounds how long an answer waits for a listing of conntrack.
const listingWait = time.Second

// readTraffic reads what is counted.
func (i *Inspector) readTraffic(ctx context.Context, routes *route.Snapshot) (r readings, err error) {
	r.listing, _ = i.listing(ctx, routes) // numbers that are not known are left out
	r.meter = i.opt.Meter
	r.reading, err = r.meter.Read(ctx, routes)
	switch {
	case errors.Is(err, traffic.ErrNotCounted) && r.listing == nil:
		return r, fmt.Errorf("mode %s does not count the connections of Services; "+
			"sluice top --help lists the modes that do", i.opt.Status(ctx).Mode.Name)
	case err != nil && !errors.Is(err, traffic.ErrNotCounted):
		return r, fmt.Errorf("read what the kernel counts: %w", err)
	}
	return r, nil
}

// listing returns a listing of conntrack by the Services of a Snapshot.
func (i *Inspector) listing(ctx context.Context, routes *route.Snapshot) (*traffic.Listing, error) {
	if i.opt.Flows == nil {
		return nil, errors.New("there is no conntrack table")
	}
	ctx, cancel := context.WithTimeout(ctx, listingWait)
	defer cancel()
	return i.opt.Flows.Listing(ctx, routes)
}

// Traffic lists the ports of the Services that a filter matches, sorted by Service. Without a name in the filter it
// leaves out those that have had no connection.
func (i *Inspector) Traffic(ctx context.Context, f Filter) (iter.Seq[Traffic], error) {
	return i.traffic(ctx, f, readings.ports)
}

// BackendTraffic lists the backends of the ports of the Services that a filter matches, also former ones with
// connections, sorted by Service. Without a name in the filter it leaves out those that have had no connection.
func (i *Inspector) BackendTraffic(ctx context.Context, f Filter) (iter.Seq[Traffic], error) {
	return i.traffic(ctx, f, readings.backends)
}

func (i *Inspector) traffic(
	ctx context.Context, f Filter, list func(readings, *route.Service) []Traffic,
) (iter.Seq[Traffic], error) {
	s, err := i.selectServices(ctx, f)
	if err != nil {
		return nil, err
	}
	r, err := i.readTraffic(ctx, s.Routes)
	if err != nil {
		return nil, err
	}
	return route.Yielding(func(yield func(Traffic) bool) {
		for _, svc := range s.services {
			for _, t := range list(r, svc) {
				if (f.Name != "" || t.busy()) && !yield(t) {
					return
				}
			}
		}
	}), nil
}

// busy reports whether there was a connection.
func (t Traffic) busy() bool {
	for _, n := range t.Signals {
		if n > 0 {
			return true
		}
	}
	return t.Conntrack != nil && t.Conntrack.Entries > 0
}

// portTraffic returns the Traffic of a port with nothing known.
func portTraffic(svc *route.Service, p *route.Port) Traffic {
	return Traffic{
		Namespace: svc.Name.Namespace, Service: svc.Name.Name, PortName: p.Name, Port: number(p),
		Protocol: p.Protocol.String(), Signals: plane.Traffic{},
	}
}

// ports returns the sums of both IP families for the ports of a Service.
func (r readings) ports(svc *route.Service) (all []Traffic) {
	index := map[route.PortID]int{} // of ports, without a family
	for n := range svc.Ports {
		p := &svc.Ports[n]
		id := p.ID(svc.Name)
		id.Family = 0
		at, known := index[id]
		if !known {
			at, index[id] = len(all), len(all)
			all = append(all, portTraffic(svc, p))
			all[at].Signals.Add(r.meter.Of(id))
			r.held(&all[at], flowsOf(r.listing, id).Flows)
		}
		if live, counted := r.reading.Counted[p.ID(svc.Name)].Traffic[plane.Live]; counted {
			if !known {
				delete(all[at].Signals, plane.Live) // the plane knows better
			}
			all[at].Signals[plane.Live] += live
		}
	}
	return all
}

// flowsOf returns the entries of a port.
func flowsOf(l *traffic.Listing, id route.PortID) traffic.PortFlows {
	if l == nil {
		return traffic.PortFlows{}
	}
	id.Family = 0
	return l.Ports[id]
}

// held adds what conntrack holds.
func (r readings) held(t *Traffic, flows traffic.Flows) {
	if r.listing == nil {
		return
	}
	t.Signals[plane.Live] = flows.Live
	t.Conntrack = &Held{flows.Entries, r.listing.Share(flows.Entries), flows.Sent, flows.Received}
}

// backends returns what is known of the backends of a Service.
func (r readings) backends(svc *route.Service) (all []Traffic) {
	for n := range svc.Ports {
		p := &svc.Ports[n]
		counted, flows := r.reading.Counted[p.ID(svc.Name)], flowsOf(r.listing, p.ID(svc.Name))
		for _, b := range traffic.Backends(p, counted, flows) {
			t := portTraffic(svc, p)
			t.Backend = b
			r.held(&t, flows.Backends[b])
			if r.reading.Failed != nil {
				failed := r.reading.Failed[plane.Target{Protocol: p.Protocol, Backend: b}]
				t.Signals[plane.Unanswered], t.Signals[plane.Refusals] = failed.Unanswered, failed.Refused
			}
			if n, has := counted.Backends[b]; counted.Backends != nil {
				t.Signals[plane.Connections] = n.Connections
				if _, known := counted.Traffic[plane.Live]; known && has {
					t.Signals[plane.Live] = n.Live
				}
			}
			all = append(all, t)
		}
	}
	return all
}

// Rows returns a row.
func (t Traffic) Rows() []text.Row {
	cells := []text.Cell{
		{"NAMESPACE", t.Namespace}, {"NAME", t.Service}, {"PORT", portText(t.PortName, t.Port, t.Protocol)},
	}
	if t.Backend.IsValid() {
		cells = append(cells, text.Cell{"BACKEND", t.Backend.String()})
	}
	cells = append(cells, []text.Cell{
		{"NEW/s", cell(t.PerSecond, plane.Connections, rate)},
		{"LIVE", cell(t.Signals, plane.Live, decimal)},
		{"RECEIVED/s", cell(t.PerSecond, plane.Received, size)},
		{"SENT/s", cell(t.PerSecond, plane.Sent, size)},
	}...)
	if t.Backend.IsValid() {
		cells = append(cells, text.Cell{"UNANSWERED/s", cell(t.PerSecond, plane.Unanswered, rate)},
			text.Cell{"REFUSED/s", cell(t.PerSecond, plane.Refusals, rate)})
	} else {
		cells = append(cells, text.Cell{"FAILED/s", cell(failed(t.PerSecond), plane.Failures, rate)})
	}
	return []text.Row{{Cells: cells, Wide: append([]text.Cell{
		{"CONNECTIONS", cell(t.Signals, plane.Connections, decimal)},
		{"RECEIVED", cell(t.Signals, plane.Received, size)},
		{"SENT", cell(t.Signals, plane.Sent, size)},
		{"UNANSWERED", cell(t.Signals, plane.Unanswered, decimal)},
		{"REFUSED", cell(t.Signals, plane.Refusals, decimal)},
		{"FAILURES", cell(failed(t.Signals), plane.Failures, decimal)},
	}, t.Conntrack.cells()...)}}
}

// failed returns the failures: the sum, if the reasons are known.
func failed[M ~map[plane.Signal]N, N uint64 | float64](of M) M {
	sum, known := of[plane.Failures]
	for _, reason := range []plane.Signal{plane.Unanswered, plane.Refusals} {
		n, counted := of[reason]
		sum, known = sum+n, known || counted
	}
	if !known {
		return nil
	}
	return M{plane.Failures: sum}
}

func (h *Held) cells() []text.Cell {
	var entries, share string
	if h != nil {
		entries, share = decimal(h.Entries), percent(h.Share)
	}
	return []text.Cell{{"ENTRIES", entries}, {"TABLE", share}}
}

// cell formats a number; empty: it is not known.
func cell[M ~map[plane.Signal]N, N uint64 | float64](of M, s plane.Signal, format func(N) string) string {
	if n, known := of[s]; known {
		return format(n)
	}
	return ""
}

func rate(n float64) string               { return strconv.FormatFloat(n, 'f', 1, 64) }
func decimal(n uint64) string             { return strconv.FormatUint(n, 10) }
func size[N uint64 | float64](n N) string { return text.Bytes(int64(n)) }

// percent formats a part of a whole; below a thousandth it is "0.0%".
func percent(part float64) string { return strconv.FormatFloat(100*part, 'f', 1, 64) + "%" }
