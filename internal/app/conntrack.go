package app

import (
	"errors"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
)

// assembleDrains creates the Waits of the daemon, if this system has conntrack.
func (d *daemon) assembleDrains() {
	if d.table == nil {
		return
	}
	o := drain.Options{
		Table: d.table, Local: address.New(address.Options{NetNS: d.o.NetNS}).List, Timeouts: d.timeouts,
	}
	d.drains = drain.NewWaits(o, func(outcome drain.Outcome, took time.Duration) {
		d.metrics.Observe("sluice_drain_wait_duration_seconds", took.Seconds(), string(outcome))
	})
}

// timeouts reads the settings that a wait needs.
func (d *daemon) timeouts() (t drain.Timeouts, err error) {
	settings := sysctl.New(sysctl.Options{NetNS: d.o.NetNS})
	events, err := settings.Get("net.netfilter.nf_conntrack_events")
	if err == nil && events == "0" {
		err = errors.New("net.netfilter.nf_conntrack_events is 0, so new connections are not reported; set it to 1")
	}
	for name, to := range map[string]*time.Duration{"udp_timeout": &t.New, "udp_timeout_stream": &t.Stream} {
		var text string
		var seconds int
		if err == nil {
			text, err = settings.Get("net.netfilter.nf_conntrack_" + name)
		}
		if err == nil {
			seconds, err = strconv.Atoi(text)
		}
		*to = time.Duration(seconds) * time.Second
	}
	return t, err
}
