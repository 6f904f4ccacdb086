package nftables

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/metrics/vec"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/netfilter"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Kind returns what the rest of the program knows about this plane.
func Kind() plane.Kind {
	return plane.Kind{
		Mode: "nftables", Facts: facts(), Owned: `the tables "sluice"`, Persistent: true, PartialSyncs: true,
		Probe:   support,
		Open:    open,
		Preview: func(s plane.Setup) plane.Plane { return New(nil, options(s)) },
		Excess:  Excess,
		Remove:  remove,
		Prepare: netfilter.Prepare, Cleanup: netfilter.Cleanup,
	}
}

func support(ctx context.Context, netns int) (plane.Support, error) {
	s, err := probe.NFTables(ctx, probe.Options{NetNS: netns})
	return plane.Support{IPv4: s.IPv4, IPv6: s.IPv6, Notes: plane.IPv6Notes(s.NoIPv6)}, err
}

func options(s plane.Setup) Options {
	return Options{Families: s.Families, Mark: s.Config.MasqueradeMark}
}

func open(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
	conn, err := nft.Open(nft.Options{NetNS: s.NetNS})
	if err != nil {
		return nil, err
	}
	table, err := conntrack.Open(s.NetNS)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	counts, reads, err := openCounts(ctx, s, conn)
	if err != nil {
		return nil, errors.Join(err, table.Close(), conn.Close())
	}
	parts, err := netfilter.Parts(s, conn)
	if err != nil {
		return nil, errors.Join(err, reads.Close(), table.Close(), conn.Close())
	}
	count := newCounter(table, func(err error) {
		s.Log.Warn("Cannot count the connections of Services with least connections, retrying", "error", err)
	})
	opt := options(s)
	opt.Live, opt.counts = count.take, counts
	metrics, writeFailed := failures(s.Families)
	p := New(conn, opt)
	passing, status, err := openDirect(s, conn)
	if err != nil {
		return nil, errors.Join(err, table.Close(), conn.Close())
	}
	return &plane.Opened{
		Plane: p, Load: Load(), Close: conn.Close, Due: count.Due, Ready: count.ready, Shares: p.Shares,
		Traffic: counts.Traffic,
		Parts: append(parts, plane.Part{Metrics: metrics}, reads,
			plane.Part{Follower: count, Run: count.Run, Close: table.Close}, passing),
		Direct:      status,
		WriteFailed: writeFailed, Tracking: plane.Translated,
		Reader: func(context.Context) (plane.Plane, func(), error) { return reader(s) },
	}, nil
}

// openCounts opens the counts of connections, with a Conn of its own, which the Part closes. What earlier runs of the
// program have counted is left out.
func openCounts(ctx context.Context, s plane.Setup, beside *nft.Conn) (*counts, plane.Part, error) {
	conn, err := nft.Open(nft.Options{NetNS: s.NetNS, Beside: beside})
	if err != nil {
		return nil, plane.Part{}, err
	}
	c := newCounts(conn)
	if err := c.read(ctx, noPorts); err != nil {
		return nil, plane.Part{}, errors.Join(err, conn.Close())
	}
	return c, plane.Part{Close: conn.Close}, nil
}

// reader returns a plane with a connection of its own.
func reader(s plane.Setup) (*Plane, func(), error) {
	conn, err := nft.Open(nft.Options{NetNS: s.NetNS})
	if err != nil {
		return nil, nil, err
	}
	return New(conn, options(s)), func() { _ = conn.Close() }, nil // it was only read from
}

func remove(ctx context.Context, s plane.Setup) ([]string, error) {
	p, done, err := reader(s)
	if err != nil {
		return nil, err
	}
	defer done()
	direct, directErr := removeDirect(ctx, s)
	removed, err := p.Remove(ctx)
	return append(direct, removed...), errors.Join(directErr, err)
}

// failures returns the metrics that kube-proxy has in this mode alone, and a function that counts a failed write.
func failures(families []route.Family) (metrics []prometheus.Collector, writeFailed func()) {
	count := func(of, help string) *prometheus.CounterVec {
		name := "kubeproxy_sync_proxy_rules_nftables_" + of + "_failures_total"
		return vec.Desc{Name: name, Help: help}.ByFamily(families).Counter()
	}
	writes := count("sync", "Writes that failed. One write is for both families.")
	cleanups := count("cleanup", "Always 0: each write also deletes stale objects.")
	return []prometheus.Collector{writes, cleanups}, func() {
		for _, ip := range families {
			writes.WithLabelValues(ip.String()).Inc()
		}
	}
}

func facts() plane.Facts {
	l := newLayout()
	refused := []string{l.setOf(clusterIPElement), "chain " + rejected}
	return plane.Facts{
		Name: "nftables",
		OtherPort: plane.Behaviour{
			Verdict: plane.Refuse, Why: "other ports of a clusterIP are refused, so that clients fail at once", Path: refused,
		},
		Ping: plane.Behaviour{
			Verdict: plane.Refuse, Why: "a clusterIP is not a host: an ICMP echo is refused", Path: refused,
		},
		Unallocated: plane.Behaviour{
			Verdict: plane.Drop,
			Why:     "no programmed Service has this address of a ServiceCIDR; packets to it must not leave the node",
			Path:    []string{l.setOf(serviceCIDRElement), "chain " + dropped},
		},
		Ends:      plane.Ends{ClusterIPs: plane.Everywhere, External: plane.Everywhere},
		Loopback:  "nodePortAddresses has localhost, or a part of 127.0.0.0/8",
		Loopback6: "nodePortAddresses has localhost or ::1/128",
		Path:      Path,
		Weights:   true,
		Ejects:    true,
		Direct:    true,
		Shares:    shares,
	}
}
