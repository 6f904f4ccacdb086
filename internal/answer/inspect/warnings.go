package inspect

import (
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

// outage is how long the source may not answer before that needs attention.
const outage = 5 * time.Minute

// warnings returns what needs attention, one sentence each: what clients notice first.
func (s Status) warnings() (all []string) {
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if s.Error != "" {
		warn("the last write to the kernel failed: %s", s.Error)
	}
	if s.Refused > 0 {
		warn("the kernel refuses the rules of %s (see sluice get services --problems)", text.Count(s.Refused, "Service"))
	}
	if s.Contest.Active() {
		warn("%s", s.Contest)
	}
	if s.KubeProxy != "" {
		warn("%s", s.KubeProxy)
	}
	if from := s.Source; from.Connected && from.Trouble != "" {
		warn("%s %s: %s", from.Kind, from.From, from.Trouble)
	} else if age := s.At.Sub(from.Since); !from.Connected && !from.Since.IsZero() && age >= outage {
		warn("%s %s does not answer for %s%s", from.Kind, from.From, Duration(age), ifSet(": %s", from.Trouble))
	}
	if n := s.Counts.NoBackends; n > 0 {
		warn("no usable backend: %s (see sluice get services --problems)", text.Count(n, "Service"))
	}
	if m := s.Mode; m.Configured != "" {
		warn("mode %s serves in place of mode %s: %s", m.Name, m.Configured, m.Fallback)
	}
	return append(all, s.ownWarnings()...)
}

// ownWarnings returns what needs attention in the daemon and its settings.
func (s Status) ownWarnings() (all []string) {
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, v := range s.Servers {
		if v.Error != "" {
			warn("server %s: %s", v.Name, v.Error)
		}
	}
	for _, h := range s.HealthPorts {
		warn("the health check port %d of Service %s cannot be opened: %s", h.Port, h.Service, h.Error)
	}
	if s.WatchTrouble != "" {
		warn("edits of others are detected only by periodic comparisons: %s", s.WatchTrouble)
	}
	if why := s.Configuration.Refused; why != "" {
		warn("the changed configuration file is not in force: %s", why)
	}
	for _, why := range s.Configuration.Warnings {
		warn("configuration: %s", why)
	}
	for _, h := range s.HostSettings {
		if h.Error != "" {
			warn("host setting %s: %s", h.Name, h.Error)
		}
	}
	return all
}
