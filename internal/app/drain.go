package app

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
)

// assembleDrains makes what waits for the end of connections to pods, if this system has a table of them.
func (d *daemon) assembleDrains() error {
	waiter, err := newWaiter(d.o.NetNS)
	if err != nil || waiter.Table == nil {
		return err
	}
	d.drains = drain.NewWaits(waiter, func(outcome drain.Outcome, took time.Duration) {
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
