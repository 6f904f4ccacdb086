package app

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/explain"
	kernel "github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

func openIptables(ctx context.Context, p parts) (*opened, error) {
	tools, err := kernel.Open(ctx, kernel.Options{NetNS: p.netns, Log: p.log})
	if err != nil {
		return nil, err
	}
	settings := sysctl.New(sysctl.Options{NetNS: p.netns})
	objects := accounting(ctx, p, tools)
	planes := func(c *config.Config, m *metrics.Metrics, counts iptables.Accounting) plane.Plane {
		o := p.iptables(c)
		o.KeepInvalid = o.KeepInvalid || liberal(settings)
		if m != nil {
			o.Observer = m
		}
		if objects != nil {
			o.Accounting = counts
		}
		return iptables.New(tools, o)
	}
	return &opened{
		Closer:       tools,
		watchTrouble: tools.WatchTrouble,
		load:         iptables.Load(tools.Room()),
		read:         readCounts(objects),
		again: func(context.Context) (*opened, error) { // anybody may use the tools, and a variant is found out once
			return &opened{Closer: io.NopCloser(nil), plane: func(c *config.Config, m *metrics.Metrics) plane.Plane {
				return planes(c, m, asTheyAre{})
			}}, nil
		},
		ours: []takeover.Mechanism{mechanism(tools.Variant())},
		how:  fmt.Sprintf("by iptables-%s, as %s", tools.Variant(), tools.Reason()),
		plane: func(c *config.Config, m *metrics.Metrics) plane.Plane {
			tools.SetPoll(c.PollPeriod())
			return planes(c, m, objects)
		},
	}, nil
}

func mechanism(v kernel.Variant) takeover.Mechanism {
	if v == kernel.Legacy {
		return takeover.IPTablesLegacy
	}
	return takeover.IPTablesNFT
}

func previewIptables(p parts) plane.Plane {
	return iptables.New(kernel.NewFake(), p.iptables(p.config))
}

func (p parts) iptables(c *config.Config) iptables.Options {
	return iptables.Options{Families: p.families, Mark: c.MasqueradeMark, KeepInvalid: c.Conntrack.TCPBeLiberal}
}

// explainIptables names the chains that packets pass, too.
func explainIptables() explain.Plane {
	p := explain.Iptables()
	p.Path = func(at explain.Passage) []string {
		return iptables.Path(iptables.Passage{
			Service: at.Service, Port: at.Port, Front: at.Front, Way: at.Way, KeptOut: at.KeptOut, Backend: at.Backend,
			Unserved: at.Unserved,
		})
	}
	return p
}

// liberal reports whether conntrack has been told, by whomever, to find few
// packets invalid.
func liberal(settings *sysctl.Sysctl) bool {
	value, err := settings.Get("net.netfilter.nf_conntrack_tcp_be_liberal")
	return err == nil && strings.TrimSpace(value) != "0"
}
