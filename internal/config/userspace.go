package config

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

const userspaceMode = "userspace"

// The defaults of the mode userspace. kube-proxy kept idle UDP flows for 250 ms, in which many
// answers do not arrive.
const (
	defaultUDPTimeout   = 30 * time.Second
	defaultDrainTimeout = time.Minute
)

// The default range of ports is above NodePorts and below the dynamic ports of IANA (RFC 6335, 6): a
// socket that listens keeps every program from listening at its port on all addresses.
const firstPort, lastPort = 33000, 49151

// userspace returns the settings of the mode userspace.
func (c *check) userspace() Userspace {
	binds := c.binds
	if len(binds) == 0 {
		binds = []Bind{BindRules, BindLoopback}
	}
	u := Userspace{
		Bind: cmp.Or(c.own.Bind, binds[0]), Scheduler: cmp.Or(c.own.Scheduler, schedulers()[0]),
		UDPTimeout: defaultUDPTimeout, DrainTimeout: defaultDrainTimeout,
	}
	if !slices.Contains(binds, u.Bind) {
		c.flagProblem("bind", invalid(string(u.Bind), "must be "+text.Alternatives(binds)))
	}
	if !slices.Contains(schedulers(), u.Scheduler) {
		c.flagProblem("scheduler",
			invalid(u.Scheduler, "must be "+text.Alternatives(schedulers())+", the schedulers of mode userspace"))
	}
	if d := c.own.UDPTimeout; d != nil {
		if u.UDPTimeout = d.Duration; u.UDPTimeout <= 0 {
			c.flagProblem("udp-timeout", invalid(d.Duration, "must be more than 0"))
		}
	}
	if d := c.own.DrainTimeout; d != nil {
		if u.DrainTimeout = d.Duration; u.DrainTimeout < 0 {
			c.flagProblem("drain-timeout", invalid(d.Duration, "must be 0 or more"))
		}
	}
	var ok bool
	if u.FirstPort, u.LastPort, ok = parsePorts(c.config.PortRange); !ok {
		c.problem("portRange", invalid(c.config.PortRange,
			"must be a range of ports from 1 to 65535, such as 20000-29999 or 20000+10000"))
	}
	return u
}

// schedulers returns the schedulers of the mode userspace, the default first.
func schedulers() []string { return []string{"rr", "lc", "wlc", "sh"} }

// parsePorts reads "FROM-TO", "FROM+COUNT" (COUNT more ports) or "PORT", as kube-proxy did
// (k8s.io/apimachinery/pkg/util/net/port_range.go). Empty, "0" and "0-0" are the default.
func parsePorts(text string) (first, last uint16, ok bool) {
	if noPorts(text) {
		return firstPort, lastPort, true
	}
	from, to, isRange := strings.Cut(text, "-")
	base, count, isSum := strings.Cut(text, "+")
	if isSum {
		from, to = base, count
	} else if !isRange {
		to = from
	}
	a, err := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
	b, err2 := strconv.ParseUint(strings.TrimSpace(to), 10, 16)
	if err != nil || err2 != nil {
		return 0, 0, false
	}
	if isSum {
		b += a
	}
	return uint16(a), uint16(b), a > 0 && a <= b && b <= math.MaxUint16
}

// noPorts reports whether a range is one of the spellings of none.
func noPorts(text string) bool { return text == "" || text == "0" || text == "0-0" }

// unusedInKernel warns of settings that only the mode userspace has.
func (c *check) unusedInKernel() {
	if !noPorts(c.config.PortRange) {
		c.warn("%s has no effect in mode %s: only the mode userspace opens ports for Services",
			c.name("portRange"), c.config.Mode)
	}
	if d := c.own.UDPTimeout; d != nil && d.Duration != 250*time.Millisecond { // kube-proxy's default
		c.warn("--udp-timeout has no effect in mode %s: only the mode userspace has UDP flows; "+
			"use --conntrack-udp-timeout for those of the kernel", c.config.Mode)
	}
	if _, given := c.flags["scheduler"]; given {
		c.warn("--scheduler has no effect in mode %s: only the mode userspace has this flag; mode ipvs has --ipvs-scheduler",
			c.config.Mode)
	}
	for _, flag := range []string{"bind", "drain-timeout"} {
		if text, given := c.flags[flag]; given {
			reason := fmt.Sprintf("only the mode userspace has this flag, and the mode is %s", c.config.Mode)
			c.flagProblem(flag, invalid(text, reason))
		}
	}
}
