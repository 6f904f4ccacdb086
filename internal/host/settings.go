package host

import (
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Setting is one wanted value of the host.
type Setting struct {
	Name  string // of a kernel parameter, or the path of a file
	Value string

	// AtLeast takes any greater number as well.
	AtLeast bool
	// HostOnly says that only the network namespace of the host has it.
	HostOnly bool
}

// The names of settings.
const (
	conntrackMax  = "net.netfilter.nf_conntrack_max"
	conntrackHash = "/sys/module/nf_conntrack/parameters/hashsize"
	oomScoreAdj   = "/proc/self/oom_score_adj"
	timeouts      = "net.netfilter.nf_conntrack_"
)

// mostTracked bounds the number of connections that follows from the number of CPUs.
const mostTracked = 1 << 20

// perBucket is how many connections share one bucket of the hash table.
const perBucket = 4

// Settings returns the settings of a serving process. It does no I/O.
func Settings(c *config.Config, cpus int) []Setting {
	own := Setting{Name: oomScoreAdj, Value: strconv.Itoa(c.OOMScoreAdj)}
	return append(Lasting(c, cpus), own)
}

// Lasting returns the settings that outlive the process, those of conntrack. It does no I/O.
func Lasting(c *config.Config, cpus int) []Setting {
	var settings []Setting
	if limit := tracked(c.Conntrack, cpus); limit > 0 {
		settings = append(settings,
			Setting{Name: conntrackMax, Value: strconv.Itoa(limit), HostOnly: true},
			Setting{Name: conntrackHash, Value: strconv.Itoa(limit / perBucket), AtLeast: true, HostOnly: true})
	}
	for _, t := range []struct {
		name string
		time time.Duration
	}{
		{"tcp_timeout_established", c.Conntrack.TCPEstablished},
		{"tcp_timeout_close_wait", c.Conntrack.TCPCloseWait},
		{"udp_timeout", c.Conntrack.UDP},
		{"udp_timeout_stream", c.Conntrack.UDPStream},
	} {
		if t.time > 0 {
			settings = append(settings, Setting{Name: timeouts + t.name, Value: seconds(t.time)})
		}
	}
	if c.Conntrack.TCPBeLiberal {
		settings = append(settings, Setting{Name: timeouts + "tcp_be_liberal", Value: "1"})
	}
	return settings
}

// tracked returns the limit of connections; 0: leave it. mostTracked overrides Min only for very many CPUs.
func tracked(c config.Conntrack, cpus int) int {
	scaled := c.MaxPerCore * cpus
	switch {
	case c.MaxPerCore == 0:
		return 0
	case scaled > mostTracked:
		return mostTracked
	}
	return max(scaled, c.Min)
}

// seconds drops the part of a second. Less than one is one: 0 would forget connections at once.
func seconds(d time.Duration) string {
	return strconv.Itoa(max(1, int(d/time.Second)))
}
