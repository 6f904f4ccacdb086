package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// parts is what a plane is built of.
type parts struct {
	config   *config.Config
	netns    int
	log      *slog.Logger
	families []route.Family
}

// kind is one plane that this build has.
type kind struct {
	mode    string
	probe   func(context.Context, probe.Options) (probe.Support, error)
	open    func(context.Context, parts) (*opened, error)
	preview func(parts) plane.Plane // over a kernel that holds nothing, for plans that are only printed
	explain func() explain.Plane    // what it does where planes differ
	excess  func(*route.Service) (size, limit string)

	// kubeProxys says that its rules have kube-proxy's names: what it left is
	// found and removed with what kube-proxy left.
	kubeProxys bool
}

// opened is a plane with its way to the kernel, which is closed when nobody uses
// it any more.
type opened struct {
	io.Closer
	plane maker
	load  plane.Load                             // what one write contains
	again func(context.Context) (*opened, error) // another of the same kind, to use beside this one

	tables *nft.Conn // through which it writes nf_tables; nil: it does not

	ours []takeover.Mechanism // in which it uses kube-proxy's names
	how  string               // for people, if there is something to say: "by iptables-nft"

	// watchTrouble returns why changes by other programs are not found cheaply;
	// empty: they are. Nil: they always are.
	watchTrouble func() string

	read func(*metrics.Readings) // fills in what its rules count; nil: nothing
}

// maker makes planes for one configuration after the other, over one way to the
// kernel. One goroutine uses all of them. What they count goes to the metrics,
// which may be nil.
type maker func(*config.Config, *metrics.Metrics) plane.Plane

// kinds are all of them, the default first: the one line to add for another.
func kinds() []kind {
	return []kind{
		{"nftables", probe.Nftables, openNftables, previewNftables, explainNftables, nftables.Excess, false},
		{"iptables", probe.Iptables, openIptables, previewIptables, explainIptables, iptables.Excess, true},
	}
}

// Modes lists the planes of this build; the first is the default.
func Modes() []string {
	var modes []string
	for _, k := range kinds() {
		modes = append(modes, k.mode)
	}
	return modes
}

// kindOf returns the plane of a mode that the configuration let through.
func kindOf(mode string) kind {
	return kinds()[slices.Index(Modes(), mode)]
}

// limited adds to a policy what a plane does not serve.
func (k kind) limited(policy route.Options) route.Options {
	policy.Excess = k.excess
	return policy
}

func openNftables(_ context.Context, p parts) (*opened, error) {
	conn, err := nft.Open(nft.Options{NetNS: p.netns})
	if err != nil {
		return nil, err
	}
	return &opened{
		Closer: conn,
		load:   nftables.Load(),
		tables: conn,
		again:  func(ctx context.Context) (*opened, error) { return openNftables(ctx, p) },
		plane: func(c *config.Config, _ *metrics.Metrics) plane.Plane {
			return nftables.New(conn, nftables.Options{Families: p.families, Mark: c.MasqueradeMark})
		},
	}, nil
}

func previewNftables(p parts) plane.Plane {
	return nftables.New(nft.NewFake(), nftables.Options{Families: p.families, Mark: p.config.MasqueradeMark})
}

// explainNftables names the maps and chains that packets pass, too.
func explainNftables() explain.Plane {
	p := explain.Nftables()
	p.OtherPort.Path, p.Unallocated.Path = nftables.Strays()
	p.Ping.Path = p.OtherPort.Path
	p.Path = func(at explain.Passage) []string {
		return nftables.Path(nftables.Passage{
			Service: at.Service, Port: at.Port, Front: at.Front, Inside: at.Client != explain.Outside,
			KeptOut: at.KeptOut,
		})
	}
	return p
}

// openPlane makes sure that the kernel can do what the mode needs, and opens the
// way to it, which lasts as long as the process.
func openPlane(ctx context.Context, o Options) (*opened, []route.Family, error) {
	kind := kindOf(o.Config.Mode)
	support, err := kind.probe(ctx, probe.Options{NetNS: o.NetNS})
	if err != nil {
		return nil, nil, err
	}
	for _, note := range support.Notes {
		o.Log.LogAttrs(ctx, slog.LevelInfo, note)
	}
	var families []route.Family
	if support.IPv4 {
		families = append(families, route.IPv4)
	}
	if support.IPv6 {
		families = append(families, route.IPv6)
	}
	opened, err := kind.open(ctx, parts{o.Config, o.NetNS, o.Log, families})
	if err == nil && opened.how != "" {
		o.Log.Info("Rules are written " + opened.how)
	}
	return opened, families, err
}

// leftovers are what other planes may have left when the mode changed, but for
// those that kube-proxy could have left as well.
func leftovers(o Options) []takeover.Leftover {
	var list []takeover.Leftover
	for _, k := range kinds() {
		if k.mode != o.Config.Mode && !k.kubeProxys {
			list = append(list, takeover.Leftover{Mode: k.mode, Remove: func(ctx context.Context) ([]string, error) {
				return k.remove(ctx, o)
			}})
		}
	}
	return list
}

// remove takes everything of a plane out of the kernel. Where the kernel cannot
// do what it needs there is nothing.
func (k kind) remove(ctx context.Context, o Options) ([]string, error) {
	if _, err := k.probe(ctx, probe.Options{NetNS: o.NetNS}); errors.Is(err, probe.ErrFeature) {
		return nil, nil
	}
	opened, err := k.open(ctx, parts{o.Config, o.NetNS, o.Log, nil})
	if err != nil {
		return nil, err
	}
	defer func() { _ = opened.Close() }() // all is answered
	return opened.plane(o.Config, nil).Remove(ctx)
}
