package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

const mode = "userspace"

// Loopback returns the plane whose clients are on this host, and connect to sockets at loopback
// addresses. It needs no privilege.
func Loopback() plane.Kind {
	const why = "in this mode clients connect to addresses of this host, which sluice get addresses lists"
	untouched := plane.Behaviour{Verdict: plane.Untouched, Why: why}
	return plane.Kind{
		Mode: mode, Bind: config.BindLoopback, Owned: "the listening sockets of the process",
		Facts: plane.Facts{
			Name: mode, Proxied: true,
			OtherPort: untouched, Ping: untouched, Unallocated: untouched, Weights: true,
			SchedulerName: schedulerName,
			Loopback:      "sluice get addresses lists it", Without: without(plane.Untouched), Sockets: why,
		},
		Probe: func(context.Context, int) (plane.Support, error) { return loopbacks(), nil },
		Open: func(_ context.Context, s plane.Setup) (*plane.Opened, error) {
			return open(s, &plane.Opened{}, options(s, loopbackAddrs(s.Families), nil))
		},
		Preview: func(s plane.Setup) plane.Plane { return New(noListener, options(s, loopbackAddrs(s.Families), nil)) },
	}
}

// loopbacks returns the families that have a loopback address here.
func loopbacks() plane.Support {
	s := plane.Support{
		IPv4: canListen(netip.AddrFrom4([4]byte{127, 0, 0, 1})), IPv6: canListen(netip.IPv6Loopback()),
	}
	if !s.IPv6 {
		s.Notes = plane.IPv6Notes("this host has no address ::1")
	}
	return withNotes(s)
}

// canListen reports whether this host has an address.
func canListen(a netip.Addr) bool {
	l, err := net.Listen("tcp", netip.AddrPortFrom(a, 0).String())
	if err != nil {
		return false
	}
	_ = l.Close() // it had no connection
	return true
}

func loopbackAddrs(families []route.Family) []netip.Addr {
	var list []netip.Addr
	for _, f := range families {
		if f == route.IPv4 {
			list = append(list, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		} else {
			list = append(list, netip.IPv6Loopback())
		}
	}
	return list
}

func options(s plane.Setup, addrs []netip.Addr, rules plane.Plane) Options {
	u := s.Config.Userspace
	return Options{Addrs: addrs, Ports: PortRange{u.FirstPort, u.LastPort}, Rules: rules}
}

// forwards reports whether the plane forwards a protocol. It refuses ports with others.
func forwards(p cluster.Protocol) bool { return p == cluster.TCP || p == cluster.UDP }

// withNotes adds what the plane cannot serve to what a plane supports.
func withNotes(s plane.Support) plane.Support {
	s.Notes = append(s.Notes, "Ports with SCTP are refused: mode userspace forwards TCP and UDP only")
	return s
}

// without returns a function for plane.Facts.Without that gives a verdict on ports that the plane does not forward.
func without(verdict plane.Verdict) func(*route.Port) plane.Behaviour {
	return func(p *route.Port) plane.Behaviour {
		if forwards(p.Protocol) {
			return plane.Behaviour{}
		}
		return plane.Behaviour{Verdict: verdict, Why: "mode userspace forwards TCP and UDP only"}
	}
}

// open opens the plane on top of another one, whose parts it keeps. The Plane of on is nil if there is no other one.
func open(s plane.Setup, on *plane.Opened, opt Options) (*plane.Opened, error) {
	if on.Plane == nil { // the addresses are for people
		opt.Opened = func(o plane.Socket) {
			s.Log.Info("Listening", "service", o.Service.String(), "port", o.Port,
				"protocol", o.Protocol.String(), "address", o.At.String())
		}
	}
	run, err := forward(s, opt)
	if err != nil {
		return nil, err
	}
	p := run.plane
	opened := *on
	if on.Tracking != plane.Untracked {
		opened.Tracking = plane.Relayed
	}
	opened.Plane, opened.Load, opened.Balance, opened.Sockets = p, plane.Load{}, p.Balance, p.Sockets
	opened.Shares, opened.Traffic, opened.HandOver = p.Shares, p.Traffic, run.handOver
	opened.Parts = []plane.Part{run.part()}
	for _, part := range on.Parts {
		if part.Follower != nil {
			part.Follower = follower{p, part.Follower}
		}
		opened.Parts = append(opened.Parts, part)
	}
	opened.Reader = p.readerOn(on)
	return &opened, nil
}

// forward makes an engine, and a Plane that opens its listeners.
func forward(s plane.Setup, opt Options) (*runner, error) {
	u := s.Config.Userspace
	engine, err := relay.New(relay.Options{
		NetNS: s.NetNS, Log: s.Log, Drain: max(u.DrainTimeout, time.Nanosecond), UDPTimeout: u.UDPTimeout,
	})
	if err != nil {
		return nil, err
	}
	p := New(ListenBy(engine), opt)
	if err := p.inherit(s.Inherited); err != nil {
		return nil, errors.Join(err, engine.Discard())
	}
	return newRunner(engine, p), nil
}

// part returns the part that forwards.
func (r *runner) part() plane.Part {
	return plane.Part{
		Run: r.run, SetLocal: func(list []netip.Addr) { r.plane.local.Store(&list) },
		Metrics: []prometheus.Collector{newCollector(r.plane.sockets.counts, r.engine.Stats)},
	}
}

// readerOn returns the Reader of the plane on top of another one.
func (p *Plane) readerOn(on *plane.Opened) func(context.Context) (plane.Plane, func(), error) {
	return func(ctx context.Context) (plane.Plane, func(), error) {
		if on.Reader == nil {
			return p.Reader(nil), func() {}, nil
		}
		rules, done, err := on.Reader(ctx)
		if err != nil {
			return nil, nil, err
		}
		return p.Reader(rules), done, nil
	}
}

// follower passes on the rewritten changes, as the plane beneath gets them.
type follower struct {
	plane *Plane
	to    plane.Follower
}

// Applied implements plane.Follower.
func (f follower) Applied(c route.Change) { f.to.Applied(f.plane.redirect.again(c)) }

// Repaired implements proxy.RepairFollower.
func (f follower) Repaired(*route.Table) {
	if r, is := f.to.(interface{ Repaired(*route.Table) }); is {
		r.Repaired(&f.plane.redirect.table)
	}
}

// noListener is the Listen of a preview, which opens nothing.
func noListener(relay.Spec) (Listener, error) { return nil, errors.New("a preview opens no sockets") }
