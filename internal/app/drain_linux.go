package app

import (
	"errors"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
)

// newDrainOptions returns the drain.Options that read conntrack in a network namespace.
func newDrainOptions(netns int) (drain.Options, error) {
	table, err := conntrack.Open(netns)
	if err != nil {
		return drain.Options{}, err
	}
	settings := sysctl.New(sysctl.Options{NetNS: netns})
	local := address.New(address.Options{NetNS: netns}).List
	return drain.Options{Table: table, Local: local, Timeouts: func() (t drain.Timeouts, err error) {
		events, err := settings.Get("net.netfilter.nf_conntrack_events")
		if err != nil {
			return t, err
		}
		if events == "0" {
			return t, errors.New("net.netfilter.nf_conntrack_events is 0, so new connections are not reported; set it to 1")
		}
		for name, to := range map[string]*time.Duration{
			"net.netfilter.nf_conntrack_udp_timeout": &t.New, "net.netfilter.nf_conntrack_udp_timeout_stream": &t.Stream,
		} {
			text, err := settings.Get(name)
			if err != nil {
				return t, err
			}
			seconds, err := strconv.Atoi(text)
			if err != nil {
				return t, err
			}
			*to = time.Duration(seconds) * time.Second
		}
		return t, nil
	}}, nil
}
