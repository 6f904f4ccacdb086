package drain

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// Timeouts are how long conntrack keeps UDP flows without packets: new ones, and streams
// (net.netfilter.nf_conntrack_udp_timeout and nf_conntrack_udp_timeout_stream).
type Timeouts struct{ New, Stream time.Duration }

// Flow is a connection or a UDP flow to a pod.
type Flow struct {
	Protocol uint8 // IANA number
	Client   netip.AddrPort
	To       netip.AddrPort // that the client uses: of a Service, or of the pod
	Pod      netip.AddrPort

	Since time.Time     // when the wait found it, so it may be older
	Idle  time.Duration // since its last packet; 0 for TCP and SCTP, of which it is not known
	Bytes uint64        // in both directions
	Known bool          // the bytes are known
}

const (
	mostFlows = 100 // live flows that are named
	followed  = 256 // flows that a wait follows
)

// flows are what a listing has found of one pod, and what has begun since.
type flows struct {
	udp  Timeouts
	at   time.Time // of the listing
	live sample
	// Flows that are not live, but may be later: connections that have had their first packet only, and UDP flows
	// without packets.
	dormant sample
}

// sample is a random part of some flows.
type sample struct {
	flows []flow
	more  int // how many flows were left out
}

type flow struct {
	entry conntrack.Entry
	since time.Time
}

// add adds an entry, which the kernel may list twice.
func (f *flows) add(e conntrack.Entry, at time.Time) {
	to := f.sampleOf(e)
	if to == nil {
		return
	}
	place := len(to.flows)
	if place >= followed {
		to.more++
		place = rand.IntN(place + to.more) //nolint:gosec // any choice that does not follow the order is good
	}
	switch {
	case place >= followed || f.live.has(e) || f.dormant.has(e):
	case place == len(to.flows):
		to.flows = append(to.flows, flow{e, at})
	default:
		to.flows[place] = flow{e, at}
	}
}

// keep keeps a flow that is followed, unless it has ended. It reports whether the flow is live.
func (f *flows) keep(of flow) bool {
	to := f.sampleOf(of.entry)
	if to != nil {
		to.flows = append(to.flows, of)
	}
	return to == &f.live
}

// sampleOf returns what has the flows in the state of an entry; nil: it has ended, or the pod does not serve it.
func (f *flows) sampleOf(e conntrack.Entry) *sample {
	switch e.Protocol {
	case conntrack.TCP, conntrack.SCTP:
		switch {
		case e.Closing():
			return nil
		case e.Opening():
			return &f.dormant
		}
		return &f.live
	case conntrack.UDP:
		if f.idle(e) < udpSilence {
			return &f.live
		}
		return &f.dormant
	}
	return nil
}

// idle returns how long a UDP flow has had no packet.
func (f *flows) idle(e conntrack.Entry) time.Duration {
	if e.Protocol != conntrack.UDP {
		return 0
	}
	timeout := f.udp.New
	if e.Status&conntrack.Assured != 0 {
		timeout = f.udp.Stream
	}
	return max(0, timeout-e.Remaining)
}

// partial reports whether flows that are not followed may be live, if none of the followed ones is.
func (f *flows) partial(now time.Time) bool {
	return f.live.more > 0 || f.dormant.more > 0 && now.Sub(f.at) >= Quiet
}

// named returns some of the live flows, sorted by client.
func (f *flows) named() (list []Flow) {
	for _, of := range f.live.flows[:min(len(f.live.flows), mostFlows)] {
		e := of.entry
		list = append(list, Flow{
			Protocol: e.Protocol, Client: e.OrigSrc, To: e.OrigDst, Pod: e.ReplySrc, Since: of.since, Idle: f.idle(e),
			Bytes: e.Sent + e.Received, Known: e.Accounted,
		})
	}
	slices.SortFunc(list, func(a, b Flow) int { return a.Client.Compare(b.Client) })
	return list
}

func (s *sample) has(e conntrack.Entry) bool {
	return slices.ContainsFunc(s.flows, func(of flow) bool { return of.entry.ID == e.ID && of.entry.OrigSrc == e.OrigSrc })
}

func (s *sample) swap(i, j int) { s.flows[i], s.flows[j] = s.flows[j], s.flows[i] }

// number returns how many flows there are. If some were left out, as large a part of them has ended as of the others.
func (s *sample) number() int { return len(s.flows) + s.more*len(s.flows)/followed }
