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

	Since time.Time     // when the wait first listed it, so it may be older
	Idle  time.Duration // since its last packet; 0 for TCP and SCTP, of which it is not known
	Bytes uint64        // in both directions
	Known bool          // the bytes are known
}

// flows is what listings have found of one pod.
type flows struct {
	udp    Timeouts
	node   []netip.Addr         // addresses of this node
	seen   map[uint32]time.Time // when each entry was first listed, by ID
	newest time.Time            // when the last new connection was found

	// Of the last listing: the number of live flows, the first of them, and one at random.
	live    int
	first   []Flow
	witness conntrack.Entry
}

// mostFlows is how many live flows are named.
const mostFlows = 100

// listing is a listing that is being read.
type listing struct {
	of  *flows
	at  time.Time
	now flows
	ids map[uint32]time.Time
}

func (f *flows) list(at time.Time) *listing {
	return &listing{
		of: f, at: at, now: flows{udp: f.udp, node: f.node, newest: f.newest},
		ids: make(map[uint32]time.Time, len(f.seen)),
	}
}

// add adds an entry, which the kernel may list twice.
func (l *listing) add(e conntrack.Entry) {
	if _, twice := l.ids[e.ID]; twice {
		return
	}
	since, known := l.of.seen[e.ID]
	if !known {
		since = l.at
	}
	if !known && !l.of.probes(e) {
		l.now.newest = l.at
	}
	l.ids[e.ID] = since
	if !l.now.isLive(e) {
		return
	}
	if l.now.live++; rand.IntN(l.now.live) == 0 { //nolint:gosec // any choice that does not follow the order is good
		l.now.witness = e
	}
	if len(l.now.first) < mostFlows {
		l.now.first = append(l.now.first, Flow{
			Protocol: e.Protocol, Client: e.OrigSrc, To: e.OrigDst, Pod: e.ReplySrc, Since: since, Idle: l.now.idle(e),
			Bytes: e.Sent + e.Received, Known: e.Accounted,
		})
	}
}

// end replaces the state by that of the listing.
func (l *listing) end() {
	l.now.seen = l.ids
	slices.SortFunc(l.now.first, func(a, b Flow) int { return a.Client.Compare(b.Client) })
	*l.of = l.now
}

// probes reports whether a connection may be a probe of the kubelet, which goes on until the pod is gone: it is made by
// this node, to the pod itself.
func (f *flows) probes(e conntrack.Entry) bool {
	return !e.Translated() && slices.Contains(f.node, e.OrigSrc.Addr())
}

// isLive reports whether a pod still needs to serve a flow. A connection that has had its first packet only may never
// begin; if it does, it is new for as long as the wait is to be quiet.
func (f *flows) isLive(e conntrack.Entry) bool {
	if e.Protocol == conntrack.TCP || e.Protocol == conntrack.SCTP {
		return !e.Opening() && !e.Closing()
	}
	return f.idle(e) < udpSilence
}

// idle returns how long a UDP flow has had no packet.
func (f *flows) idle(e conntrack.Entry) time.Duration {
	if e.Protocol == conntrack.TCP || e.Protocol == conntrack.SCTP {
		return 0
	}
	timeout := f.udp.New
	if e.Status&conntrack.Assured != 0 {
		timeout = f.udp.Stream
	}
	return max(0, timeout-e.Remaining)
}
