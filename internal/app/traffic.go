package app

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// openTraffic makes the parts that know what Services do.
func (d *daemon) openTraffic() {
	d.meter = traffic.NewMeter(traffic.MeterOptions{Traffic: d.plane.Traffic, Failed: d.failed()})
	if d.plane.Tracking == plane.Untracked {
		return
	}
	if d.table == nil {
		d.o.Log.Warn("Live connections are not known", "error", errors.ErrUnsupported)
		return
	}
	d.flows = traffic.NewLister(d.table, d.plane.Tracking)
}

// failed returns a function that returns how many connections to each backend failed; nil: that is not known, or the
// plane counts them itself.
func (d *daemon) failed() func() map[plane.Target]plane.Failed {
	if d.ejection == nil || d.plane.Tracking == plane.Relayed {
		return nil
	}
	return d.ejection.Failed
}

// Bounds of what a scrape of the metrics waits for.
const (
	countWait   = time.Second
	listingWait = 50 * time.Millisecond // then it has the last listing
)

// traffic returns what Services do, for a scrape of the metrics.
func (d *daemon) traffic() (t metrics.Traffic) {
	ctx, cancel := context.WithTimeout(context.Background(), countWait)
	defer cancel()
	view, err := d.node.Loop().View(ctx)
	if err != nil || !view.Listed {
		return t
	}
	t.Counted, _ = d.meter.Scrape(ctx, view.Routes) // without them their series are missing, as alerts can see
	if d.flows == nil {
		return t
	}
	ctx, stop := context.WithTimeout(ctx, listingWait)
	defer stop()
	t.Listing, _ = d.flows.Listing(ctx, view.Routes)
	return t
}
