package ebpf

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/plane"
)

const mode = "ebpf"

// Kind returns the plane that stands on a packet plane. If this host does not support the programs, Open returns the
// packet plane alone.
func Kind(packets plane.Kind) plane.Kind { return KindTestedBy(probe.Sockets, packets) }

// KindTestedBy is Kind with another self-test, for processes that open many planes. The self-test returns the errors
// of probe.Sockets.
func KindTestedBy(test func(bpf.Options) error, packets plane.Kind) plane.Kind {
	k := packets
	k.Mode, k.On, k.ListLocal = mode, packets.Mode, true
	k.Facts.Name, k.Facts.Path = mode, pathOver(packets.Facts.Path)
	k.Facts.Lacking, k.Facts.Weights = nil, true
	k.Facts.Shares = (&balancing{packets: packets.Facts.Shares}).shares
	k.Owned = packets.Owned + ", and the maps and programs in --bpf-dir"
	k.Preview = func(s plane.Setup) plane.Plane {
		return New(noKernel{}, Options{Packets: packets.Preview(s)})
	}
	k.Beyond = func(s plane.Setup) error {
		_, err := tested(s, test)
		return err
	}
	k.Open = func(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
		on, err := packets.Open(ctx, s)
		if err != nil {
			return nil, err
		}
		if on.Shares == nil {
			on.Shares = packets.Facts.Shares
		}
		o, err := tested(s, test)
		if err != nil {
			s.Log.Warn("Sockets are not balanced: all connections are translated packet by packet, as in mode "+packets.Mode,
				"error", err)
			removeEarlier(ctx, s, o)
			return alone(packets, on, err), nil
		}
		return open(s, on, withDurations(s, withUDP(s, o)))
	}
	k.Remove = remove // the packet plane removes its own
	return k
}

// noKernel is the kernel of a preview, which reads it and writes nothing.
type noKernel struct{ Kernel }

// Read implements Kernel.
func (noKernel) Read(context.Context) (bpf.State, error) { return bpf.State{}, nil }

// Version implements Kernel.
func (noKernel) Version() string { return "of this Sluice" }

// removeEarlier removes programs and maps of an earlier run, which nothing updates while the packet plane serves
// alone: the programs would send connections to backends that are gone.
func removeEarlier(ctx context.Context, s plane.Setup, o bpf.Options) {
	removed, err := remove(ctx, s)
	if o.Cgroup != "" && err == nil { // they may be pinned elsewhere
		var n int
		if n, err = bpf.DetachStale(o.Cgroup, nil); n > 0 {
			removed = append(removed, fmt.Sprintf("%d programs of sockets that are pinned elsewhere", n))
		}
	}
	if err != nil {
		s.Log.Error("Programs of an earlier run may still connect sockets to deleted backends; "+
			"remove them with --cleanup", "error", err)
	}
	for _, what := range removed {
		s.Log.Info("Removed what an earlier run left: " + what)
	}
}

// alone returns the packet plane without programs above it, whose facts are those of the mode as well, and why.
func alone(packets plane.Kind, on *plane.Opened, why error) *plane.Opened {
	opened, facts := *on, packets.Facts
	if on.Facts != nil {
		facts = *on.Facts
	}
	facts.Name = mode
	opened.Facts, opened.Fallback = &facts, plane.Fallback{Mode: packets.Mode, Reason: why.Error()}
	return &opened
}

// tested returns the options for the programs and maps, and the error of the self-test.
func tested(s plane.Setup, test func(bpf.Options) error) (o bpf.Options, err error) {
	c := s.Config.EBPF
	o = bpf.Options{Dir: c.Dir, Cgroup: c.Cgroup, NetNS: s.NetNS}
	if o.Cgroup == "" {
		if o.Cgroup, err = bpf.FindRoot(); err != nil {
			return o, probe.SocketsError(err)
		}
	}
	o.Exempting = exempting(c, o.Cgroup)
	return o, test(o)
}

// open opens the plane on top of a packet plane, whose parts it keeps.
func open(s plane.Setup, on *plane.Opened, o bpf.Options) (*plane.Opened, error) {
	conn, err := bpf.Open(o)
	if err != nil {
		return nil, err
	}
	if err := bpf.VerifyRoot(o.Cgroup); err != nil {
		s.Log.Info("Processes in other cgroups are served packet by packet", "cgroup", o.Cgroup, "reason", err)
	}
	opened := *on
	opened.Tracking = plane.Untranslated
	opened.Plane = New(conn, Options{Packets: on.Plane, Ramp: conn.Ramp})
	sockets := sockdiag.Node{NetNS: s.NetNS}
	answers := &balancing{
		sockets: conn.Sockets, connections: sockets.Count, loads: conn.Loads, parts: conn.Parts, packets: on.Shares,
	}
	opened.Balance, opened.Shares = answers.balance, answers.shares
	exempt, err := exemptions(s, o, conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	ports := newPoolPorts()
	count := newCounter(conn, ports)
	opened.Traffic = (&traffic{count.sums, count.backends, answers.openConnections, on.Traffic}).counted
	load := newLoads(conn, sockets.Count, func(err error) {
		s.Log.Error("Cannot count the connections of backends for least connections, retrying", "error", err)
	})
	opened.Parts = append(opened.Parts,
		plane.Part{Follower: ports, Metrics: []prometheus.Collector{count, newPressure(conn.Usage)}},
		durationsOf(o, conn, ports),
		plane.Part{Run: load.Run, Follower: load},
		destroyer(s, o, conn), podsOf(s, o, conn), exempt)
	opened.Reader = func(ctx context.Context) (plane.Plane, func(), error) {
		packets, done, err := on.Reader(ctx)
		if err != nil {
			return nil, nil, err
		}
		other, err := bpf.Open(o)
		if err != nil {
			done()
			return nil, nil, err
		}
		return New(other, Options{Packets: packets}), func() {
			_ = other.Close() // it was only read from
			done()
		}, nil
	}
	opened.Close = func() error { return errors.Join(on.Close(), conn.Close()) }
	return &opened, nil
}

// remove removes the programs and the maps. There are none if there is no bpffs.
func remove(ctx context.Context, s plane.Setup) ([]string, error) {
	return bpf.Remove(ctx, bpf.Options{Dir: s.Config.EBPF.Dir})
}
