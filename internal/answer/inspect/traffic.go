package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// Traffic is what is known of a port of a Service, of both IP families.
type Traffic struct {
	ServicePort

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
			all = append(all, Traffic{ServicePort: servicePort(svc, p), Signals: plane.Traffic{}})
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
			t := Traffic{ServicePort: servicePort(svc, p), Backend: b, Signals: plane.Traffic{}}
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
	cells := t.ServicePort.cells()
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

// Flows lists the conntrack table: traffic.Lister.
type Flows interface {
	Listing(ctx context.Context, routes *route.Snapshot) (*traffic.Listing, error)
	Load() (entries, limit uint64, err error)
}

// Client is an address that has opened connections through this node.
type Client struct {
	Client  netip.Addr `json:"client"`
	Entries uint64     `json:"conntrackEntries"` // of connections to any destination, also of closed ones
	Share   float64    `json:"conntrackShare"`   // of the table
	Live    uint64     `json:"live"`

	// Namespace and Service name the Service to which it has the most entries; empty: to none.
	Namespace string `json:"namespace,omitempty"`
	Service   string `json:"service,omitempty"`
}

// Clients lists the clients with the most entries in conntrack, the heaviest first, whose Service a filter matches.
func (i *Inspector) Clients(ctx context.Context, f Filter) (iter.Seq[Client], error) {
	s, err := i.selectServices(ctx, f)
	if err != nil {
		return nil, err
	}
	l, err := i.listing(ctx, s.Routes)
	if err != nil {
		return nil, fmt.Errorf("list clients: %w", err)
	}
	return func(yield func(Client) bool) {
		for _, c := range l.Clients {
			client := Client{c.Addr, c.Entries, l.Share(c.Entries), c.Live, c.Service.Namespace, c.Service.Name}
			if f.matches(c.Service) && !yield(client) {
				return
			}
		}
	}, nil
}

// Rows returns a row.
func (c Client) Rows() []text.Row {
	service := c.Service
	if service != "" {
		service = c.Namespace + "/" + service
	}
	return []text.Row{{Cells: []text.Cell{
		{"CLIENT", c.Client.String()},
		{"ENTRIES", decimal(c.Entries)},
		{"TABLE", percent(c.Share)},
		{"LIVE", decimal(c.Live)},
		{"TOP-SERVICE", service},
	}}}
}

// Conntrack is the state of the conntrack table.
type Conntrack struct {
	At        time.Time `json:"at,omitzero"` // when it was listed
	Entries   uint64    `json:"entries"`
	Limit     uint64    `json:"limit,omitempty"`     // 0: there is none
	Accounted bool      `json:"accounted,omitempty"` // it counts bytes
	Warnings  []string  `json:"warnings,omitempty"`  // who holds too much of it, one sentence each
	Error     string    `json:"error,omitempty"`     // why it cannot be listed
}

// Conntrack returns the state of the conntrack table.
func (i *Inspector) Conntrack(ctx context.Context) (Conntrack, error) {
	v, err := i.view(ctx)
	if err != nil {
		return Conntrack{}, err
	}
	l, err := i.listing(ctx, v.Routes)
	if err != nil {
		return Conntrack{Error: err.Error()}, nil
	}
	return Conntrack{
		At: l.At, Entries: l.Held, Limit: l.Limit, Accounted: l.Accounted, Warnings: pressure(l, named),
	}, nil
}

const (
	full  = 0.5  // the part of the limit from which on it matters who holds the table
	heavy = 0.25 // the part of the table that is too much for one
)

// named returns a client as a warning names it.
func named(client netip.Addr) string { return "client " + client.String() }

// unnamed hides the client: a status is public, addresses are not.
func unnamed(netip.Addr) string { return "one client (sluice top clients names it)" }

// pressure returns who holds more than a quarter of a table that is more than half full.
func pressure(l *traffic.Listing, name func(netip.Addr) string) (all []string) {
	if !halfFull(l.Held, l.Limit) {
		return nil
	}
	warn := func(who string, entries uint64) {
		if part := l.Share(entries); part > heavy {
			all = append(all, fmt.Sprintf("%s holds %.0f%% of the conntrack table, which is %.0f%% full; when it is full, "+
				"new connections are dropped", who, math.Round(100*part), 100*float64(l.Held)/float64(l.Limit)))
		}
	}
	if len(l.Clients) > 0 {
		warn(name(l.Clients[0].Addr), l.Clients[0].Entries)
	}
	service, entries := l.Heaviest()
	warn("Service "+service.String(), entries)
	return slices.Clip(all)
}

// halfFull reports whether a table is more than half full.
func halfFull(entries, limit uint64) bool { return limit > 0 && float64(entries) > full*float64(limit) }

// pressed returns the warnings about the conntrack table for the status. It lists the table only if that is more than
// half full.
func (i *Inspector) pressed(ctx context.Context, routes *route.Snapshot) []string {
	if i.opt.Flows == nil {
		return nil
	}
	entries, limit, err := i.opt.Flows.Load()
	if err != nil || !halfFull(entries, limit) {
		return nil
	}
	l, err := i.listing(ctx, routes)
	if err != nil {
		return nil
	}
	return pressure(l, unnamed)
}
