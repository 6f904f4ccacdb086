package drain

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// Timeouts are the conntrack timeouts of UDP flows (net.netfilter.nf_conntrack_udp_timeout and
// nf_conntrack_udp_timeout_stream).
type Timeouts struct{ New, Stream time.Duration }

// Flow is a connection or a UDP flow to a pod.
type Flow struct {
	Protocol string         `json:"protocol"`
	Client   netip.AddrPort `json:"client"`
	To       netip.AddrPort `json:"to"` // destination of the client's packets: a Service or the pod
	Backend  netip.AddrPort `json:"backend"`
	Since    time.Time      `json:"since"`                 // when the wait found the flow, which may be older
	Idle     *float64       `json:"idleSeconds,omitempty"` // since the last packet of a UDP flow
	Bytes    *uint64        `json:"bytes,omitempty"`       // in both directions, if conntrack counts them
}

const (
	maxReported = 100 // flows in a Result
	maxFollowed = 256 // flows in a sample
)

// flows are the flows of one pod that a listing found, and the flows that began since.
type flows struct {
	udp    Timeouts
	listed time.Time // when the listing began
	live   sample
	// dormant are flows that may become live: connections of which only the first packet was seen, and UDP flows without
	// recent packets.
	dormant sample
}

// sample is a random sample of flows.
type sample struct {
	flows   []flow
	omitted int // flows that are not in the sample
}

type flow struct {
	entry conntrack.Entry
	since time.Time
}

// add adds an entry. It ignores an entry that the kernel lists twice.
func (f *flows) add(e conntrack.Entry, at time.Time) {
	to := f.sampleOf(e)
	if to == nil {
		return
	}
	i := len(to.flows)
	if i >= maxFollowed {
		to.omitted++
		i = rand.IntN(i + to.omitted) //nolint:gosec // any choice that does not depend on the order is good
	}
	switch {
	case i >= maxFollowed || f.live.has(e) || f.dormant.has(e):
	case i == len(to.flows):
		to.flows = append(to.flows, flow{e, at})
	default:
		to.flows[i] = flow{e, at}
	}
}

// keep adds a flow to the sample for its state, unless it has ended. It reports whether the flow is live.
func (f *flows) keep(fl flow) bool {
	to := f.sampleOf(fl.entry)
	if to != nil {
		to.flows = append(to.flows, fl)
	}
	return to == &f.live
}

// sampleOf returns the sample for the state of an entry; nil if the flow has ended, or has another protocol.
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

// idle returns the time since the last packet of a UDP flow.
func (f *flows) idle(e conntrack.Entry) time.Duration {
	timeout := f.udp.New
	if e.Status&conntrack.Assured != 0 {
		timeout = f.udp.Stream
	}
	return max(0, timeout-e.Remaining)
}

// incomplete reports whether flows outside the samples may be live.
func (f *flows) incomplete(now time.Time) bool {
	return f.live.omitted > 0 || f.dormant.omitted > 0 && now.Sub(f.listed) >= Quiet
}

// report returns up to maxReported live flows, sorted by client.
func (f *flows) report() (list []Flow) {
	for _, fl := range f.live.flows[:min(len(f.live.flows), maxReported)] {
		e := fl.entry
		out := Flow{
			Protocol: cluster.Protocol(e.Protocol).String(), Client: e.OrigSrc, To: e.OrigDst, Backend: e.ReplySrc,
			Since: fl.since,
		}
		if e.Protocol == conntrack.UDP {
			out.Idle = new(f.idle(e).Seconds())
		}
		if e.Accounted {
			out.Bytes = new(e.Sent + e.Received)
		}
		list = append(list, out)
	}
	slices.SortFunc(list, func(a, b Flow) int { return a.Client.Compare(b.Client) })
	return list
}

func (s *sample) has(e conntrack.Entry) bool {
	return slices.ContainsFunc(s.flows, func(fl flow) bool { return fl.entry.ID == e.ID && fl.entry.OrigSrc == e.OrigSrc })
}

func (s *sample) swap(i, j int) { s.flows[i], s.flows[j] = s.flows[j], s.flows[i] }

// estimate returns the number of flows. It assumes that the omitted flows end at the same rate as the sample.
func (s *sample) estimate() int { return len(s.flows) + s.omitted*len(s.flows)/maxFollowed }
