package iptables

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/netfilter"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Kind returns what the rest of the program knows about this plane.
func Kind() plane.Kind {
	return plane.Kind{
		Mode: "iptables", Facts: facts(), Owned: "the chains KUBE-*", Persistent: true, PartialSyncs: true,
		KubeProxyRules: []string{"iptables-legacy", "iptables-nft"},

		Probe:   support,
		Open:    open,
		Preview: func(s plane.Setup) plane.Plane { return New(nil, options(s)) },
		Excess:  Excess,
		Prepare: netfilter.Prepare, Cleanup: netfilter.Cleanup,
	}
}

func support(ctx context.Context, netns int) (plane.Support, error) {
	s, err := probe.Iptables(ctx, probe.Options{NetNS: netns})
	return supportOf(s), err
}

// supportOf returns what the plane can serve on a host, with a note for each Service feature that it cannot.
func supportOf(s probe.Support) plane.Support {
	users := map[string]string{"match recent": "session affinity", "match sctp": "SCTP"}
	out := plane.Support{IPv4: s.IPv4, IPv6: s.IPv6}
	for _, m := range s.Missing {
		out.Notes = append(out.Notes, fmt.Sprintf("Services that need %s are not served in %s: iptables %s is missing: %s",
			cmp.Or(users[m.Name], m.Name), m.Family, m.Name, m.Remedy))
	}
	out.Notes = append(out.Notes, plane.IPv6Notes(s.NoIPv6)...)
	return out
}

func options(s plane.Setup) Options {
	return Options{
		Families: s.Families, Mark: s.Config.MasqueradeMark, KeepInvalid: s.Config.Conntrack.TCPBeLiberal,
		Listeners: s.Listeners,
	}
}

func open(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
	tools, err := iptables.Open(ctx, iptables.Options{NetNS: s.NetNS, Poll: s.Config.PollPeriod()})
	if err != nil {
		return nil, err
	}
	parts, err := netfilter.Parts(s, nil)
	if err != nil {
		return nil, err
	}
	wrote, metrics := countWrites(s.Families)
	o := options(s)
	o.KeepInvalid = o.KeepInvalid || liberal(sysctl.New(sysctl.Options{NetNS: s.NetNS}))
	if objects := accounting(ctx, s, tools); objects != nil {
		o.Accounting = objects
		metrics = append(metrics, packetCounts(objects)...)
	}
	count := newCounts(tools, s.Families, func(err error) {
		s.Log.Warn("Cannot read the counters of rules, retrying", "error", err)
	})
	writer := o
	writer.Wrote = wrote
	return &plane.Opened{
		Plane: New(tools, writer), Load: Load(tools.Room()), Traffic: count.Traffic,
		Parts:          append(parts, plane.Part{Metrics: metrics, Run: count.Run}),
		Tracking:       plane.Translated,
		KubeProxyRules: []string{fmt.Sprintf("iptables-%s", tools.Variant())},
		How:            fmt.Sprintf("by iptables-%s, as %s", tools.Variant(), tools.Reason()),
		Reader: func(context.Context) (plane.Plane, func(), error) { // several goroutines may use the tools
			return New(tools, o), func() {}, nil
		},
	}, nil
}

// liberal reports whether conntrack is set to treat few packets as invalid, by any program.
func liberal(settings *sysctl.Sysctl) bool {
	value, err := settings.Get("net.netfilter.nf_conntrack_tcp_be_liberal")
	return err == nil && strings.TrimSpace(value) != "0"
}

// facts returns how this plane behaves where planes differ. As kube-proxy in this mode it has rules only for the ports
// of Services. It refuses packets in KUBE-SERVICES (FORWARD and OUTPUT of table filter), and at any local address in
// KUBE-EXTERNAL-SERVICES (INPUT and FORWARD).
func facts() plane.Facts {
	return plane.Facts{
		Name: "iptables",
		OtherPort: plane.Behaviour{
			Verdict: plane.Untouched,
			Why:     "rules match only the ports of the Service; other packets to its clusterIP follow the routes of this node",
		},
		Ping: plane.Behaviour{
			Verdict: plane.Untouched,
			Why:     "rules match only ports of Services; an ICMP echo to a clusterIP follows the routes of this node",
		},
		Unallocated: plane.Behaviour{
			Verdict: plane.Untouched,
			Why:     "no programmed Service has this address of a ServiceCIDR; packets to it follow the routes of this node",
		},
		Ranges: plane.RangesWhileServed,
		Ends: plane.Ends{
			ClusterIPs: plane.Passing | plane.Leaving, External: plane.Arriving | plane.Passing, Unserved: true,
		},
		Loopback:  "iptables.localhostNodePorts is true and nodePortAddresses holds the address",
		Loopback6: "iptables.localhostNodePorts is true and nodePortAddresses has localhost or ::1/128",
		Weights:   true, Ejects: true, Lacking: []route.Method{route.Hash, route.Least},
		Path: Path,
	}
}
