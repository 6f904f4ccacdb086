package metrics

import (
	"strconv"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// Traffic is what Services do.
type Traffic struct {
	Counted []traffic.Series // the busiest ports, and the others last
	Listing *traffic.Listing // of conntrack; nil: not known
}

// otherServices is the label of all Service ports without series of their own.
const otherServices = "other"

// countersOf returns the families of the counters of Services.
func countersOf() map[plane.Signal]string {
	return map[plane.Signal]string{
		plane.Connections: "sluice_service_connections_total",
		plane.Unanswered:  "sluice_service_unanswered_total",
		plane.Refusals:    "sluice_service_refused_total",
		plane.Failures:    "sluice_service_failures_total",
		plane.Received:    "sluice_service_received_bytes_total",
		plane.Sent:        "sluice_service_sent_bytes_total",
	}
}

// collect calls put for each value.
func (t Traffic) collect(put func(name string, value float64, labels ...string)) {
	families := countersOf()
	var named uint64 // live connections of ports with series
	for _, s := range t.Counted {
		labels := labelsOf(s)
		for signal, family := range families {
			if n, known := s.Counters[signal]; known {
				put(family, float64(n), labels...)
			}
		}
		if t.Listing != nil && s.Port != (route.PortID{}) {
			live := t.Listing.Ports[s.Port].Live
			named += live
			put("sluice_service_live_connections", float64(live), labels...)
		}
	}
	if t.Listing == nil {
		return
	}
	var all uint64
	var clients uint64
	for _, port := range t.Listing.Ports {
		all += port.Live
	}
	put("sluice_service_live_connections", float64(all-named), labelsOf(traffic.Series{})...)
	if len(t.Listing.Clients) > 0 {
		clients = t.Listing.Clients[0].Entries
	}
	_, services := t.Listing.Heaviest()
	put("sluice_conntrack_client_share", t.Listing.Share(clients))
	put("sluice_conntrack_service_share", t.Listing.Share(services))
}

// labelsOf returns namespace, service, port and protocol.
func labelsOf(s traffic.Series) []string {
	id := s.Port
	if id == (route.PortID{}) {
		return []string{"", otherServices, "", ""}
	}
	port := id.Name
	if port == "" && s.Number != 0 {
		port = strconv.Itoa(int(s.Number))
	}
	return []string{id.Service.Namespace, id.Service.Name, port, id.Protocol.String()}
}
