package app

import (
	"context"
	"io"
	"log/slog"
	"slices"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
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
	open    func(parts) (maker, io.Closer, error)
	preview func(parts) plane.Plane // over a kernel that holds nothing, for plans that are only printed
	explain func() explain.Plane    // what it does where planes differ
}

// maker makes planes for one configuration after the other, over one connection
// to the kernel, which is closed when none of them is used any more. One
// goroutine uses all of them. What they count goes to the metrics, which may be
// nil.
type maker func(*config.Config, *metrics.Metrics) plane.Plane

// kinds are all of them, the default first: the one line to add for another.
func kinds() []kind {
	return []kind{
		{"nftables", probe.Nftables, openNftables, previewNftables, explain.Nftables},
		{"iptables", probeIptables, openIptables, previewIptables, explainIptables},
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

func openNftables(p parts) (maker, io.Closer, error) {
	conn, err := nft.Open(nft.Options{NetNS: p.netns})
	if err != nil {
		return nil, nil, err
	}
	return func(c *config.Config, _ *metrics.Metrics) plane.Plane {
		return nftables.New(conn, nftables.Options{Families: p.families, Mark: c.MasqueradeMark})
	}, conn, nil
}

func previewNftables(p parts) plane.Plane {
	return nftables.New(nft.NewFake(), nftables.Options{Families: p.families, Mark: p.config.MasqueradeMark})
}

// openPlane makes sure that the kernel can do what the mode needs, and opens the
// way to it, which lasts as long as the process.
func openPlane(ctx context.Context, o Options) (maker, []route.Family, error) {
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
	planes, _, err := kind.open(parts{o.Config, o.NetNS, o.Log, families})
	return planes, families, err
}
