package inspect

import (
	"context"
	"fmt"
	"iter"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Traffic is what the plane counts of a port of a Service, of both IP families.
type Traffic struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	PortName  string `json:"portName,omitempty"` // of the Service port
	Port      uint16 `json:"port,omitempty"`     // of the Service; 0: another Service has its addresses
	Protocol  string `json:"protocol"`

	// Signals are only those that the plane knows.
	Signals plane.Traffic `json:"signals"`

	// PerSecond is how fast the counters among the Signals grow. The daemon leaves it out.
	PerSecond map[plane.Signal]float64 `json:"perSecond,omitempty"`
}

// Traffic lists the ports of the Services that a filter matches, sorted by Service. Without a name in the filter it
// leaves out those that have had no connection.
func (i *Inspector) Traffic(ctx context.Context, f Filter) (iter.Seq[Traffic], error) {
	s, err := i.selectServices(ctx, f)
	if err != nil {
		return nil, err
	}
	if i.opt.Opened.Traffic == nil {
		return nil, fmt.Errorf("mode %s does not count the connections of Services; "+
			"sluice top --help lists the modes that do", i.opt.Status(ctx).Mode.Name)
	}
	counted, err := i.opt.Opened.Traffic(ctx, s.Routes)
	if err != nil {
		return nil, fmt.Errorf("read what the kernel counts: %w", err)
	}
	return route.Yielding(func(yield func(Traffic) bool) {
		for _, svc := range s.services {
			for _, t := range trafficOf(svc, counted) {
				if (f.Name != "" || len(t.Signals) > 0) && !yield(t) {
					return
				}
			}
		}
	}), nil
}

// trafficOf returns the sums of both IP families for the ports of a Service.
func trafficOf(svc *route.Service, counted plane.Counted) (all []Traffic) {
	index := map[route.PortID]int{} // of ports, without a family
	for n := range svc.Ports {
		p := &svc.Ports[n]
		id := p.ID(svc.Name)
		both := id
		both.Family = 0
		at, known := index[both]
		if !known {
			at, index[both] = len(all), len(all)
			all = append(all, Traffic{
				Namespace: svc.Name.Namespace, Service: svc.Name.Name, PortName: p.Name, Port: number(p),
				Protocol: p.Protocol.String(), Signals: plane.Traffic{},
			})
		}
		all[at].Signals.Add(counted[id].Traffic)
	}
	return all
}

// Rows returns a row.
func (t Traffic) Rows() []text.Row {
	return []text.Row{{Cells: []text.Cell{
		{"NAMESPACE", t.Namespace},
		{"NAME", t.Service},
		{"PORT", portText(t.PortName, t.Port, t.Protocol)},
		{"NEW/s", cell(t.PerSecond, plane.Connections, rate)},
		{"LIVE", cell(t.Signals, plane.Live, decimal)},
		{"RECEIVED/s", cell(t.PerSecond, plane.Received, size)},
		{"SENT/s", cell(t.PerSecond, plane.Sent, size)},
		{"FAILED/s", cell(t.PerSecond, plane.Failures, rate)},
	}, Wide: []text.Cell{
		{"CONNECTIONS", cell(t.Signals, plane.Connections, decimal)},
		{"RECEIVED", cell(t.Signals, plane.Received, size)},
		{"SENT", cell(t.Signals, plane.Sent, size)},
		{"FAILURES", cell(t.Signals, plane.Failures, decimal)},
	}}}
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
