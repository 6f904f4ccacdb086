package app

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
)

// assembleDrains creates the Waits of the daemon, if this system has conntrack.
func (d *daemon) assembleDrains() error {
	o, err := newDrainOptions(d.o.NetNS)
	if err != nil || o.Table == nil {
		return err
	}
	d.drains = drain.NewWaits(o, func(outcome drain.Outcome, took time.Duration) {
		d.metrics.Observe("sluice_drain_wait_duration_seconds", took.Seconds(), string(outcome))
	})
	return nil
}

// drainWaits returns how many waits run.
func (d *daemon) drainWaits() int {
	if d.drains == nil {
		return 0
	}
	return len(d.drains.Running())
}
