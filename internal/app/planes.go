package app

import (
	"context"
	"log/slog"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
)

// parts is what a plane is built of.
type parts struct {
	config   *config.Config
	netns    int
	families []route.Family
}

// planes has the constructor of each plane, by mode: the one line to add for
// another.
func planes() map[string]func(parts) (plane.Plane, error) {
	return map[string]func(parts) (plane.Plane, error){
		"nftables": openNftables,
	}
}

// Modes lists the planes of this build; the first is the default.
func Modes() []string { return []string{"nftables"} }

func openNftables(p parts) (plane.Plane, error) {
	conn, err := nft.Open(nft.Options{NetNS: p.netns})
	if err != nil {
		return nil, err
	}
	return nftables.New(conn, nftables.Options{Families: p.families, Mark: p.config.MasqueradeMark}), nil
}

// openPlane makes sure that the kernel can do what the mode needs, and builds
// its plane.
func openPlane(ctx context.Context, o Options) (plane.Plane, []route.Family, error) {
	support, err := probe.Nftables(ctx, probe.Options{NetNS: o.NetNS})
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
	p, err := planes()[o.Config.Mode](parts{o.Config, o.NetNS, families})
	return p, families, err
}

// preview builds the plane of a mode over a kernel that holds nothing, for
// plans that are only printed.
func preview(c *config.Config, families []route.Family) plane.Plane {
	return nftables.New(nft.NewFake(), nftables.Options{Families: families, Mark: c.MasqueradeMark})
}
