package app

import (
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// readings are what metrics read when somebody asks.
func (d *daemon) readings() metrics.Readings {
	reloads := func() (accepted, refused int) {
		c := d.reload.State().Count
		return c.Accepted, c.Refused
	}
	return metrics.Readings{
		Totals: d.store.Totals, Backlog: d.store.Backlog, Sizes: d.sizes.Sizes, Reloads: reloads,
		Connected:          func() bool { return d.source.State().Connected },
		KubeProxyRunning:   func() bool { return d.keeper.State().Rival != nil },
		Leftovers:          func() map[takeover.Mechanism]int { return d.keeper.State().Leftovers },
		Removed:            func() map[takeover.Mechanism]int { return d.keeper.State().Removed },
		HealthPortFailures: d.ports.Failures,
		HostSettingsFailed: d.settingsFailed,
		Contest: func() (string, bool) {
			c := d.health.Contest()
			return c.Program(), c.Active()
		},
	}
}

func (d *daemon) settingsFailed() int {
	n := 0
	for _, e := range d.host.Effects() {
		if e.Err != nil {
			n++
		}
	}
	return n
}
