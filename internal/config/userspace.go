package config

import (
	"cmp"
	"slices"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/sluice-proxy/sluice/internal/text"
)

const userspaceMode = "userspace"

// The default range of ports is above NodePorts and below the dynamic ports of IANA (RFC 6335, 6): a
// socket that listens keeps every program from listening at its port on all addresses.
const firstPort, lastPort = 33000, 49151

// userspace returns the settings of the mode userspace. kube-proxy kept idle UDP flows for 250 ms, in which many
// answers do not arrive.
func (c *check) userspace() Userspace {
	binds := c.binds
	if len(binds) == 0 {
		binds = []Bind{BindRules, BindLoopback}
	}
	u := Userspace{
		Bind:         Bind(cmp.Or(c.flags["bind"], string(binds[0]))),
		UDPTimeout:   c.positive("--udp-timeout", c.own.UDPTimeout.Duration),
		DrainTimeout: atLeast0(c, "--drain-timeout", c.own.DrainTimeout.Duration),
	}
	if !slices.Contains(binds, u.Bind) {
		c.problem("--bind", invalid(string(u.Bind), "must be "+text.Alternatives(binds)))
	}
	if s := c.own.Scheduler; s != "" && !slices.Contains(schedulers(), s) {
		c.problem("--scheduler",
			invalid(s, "must be "+text.Alternatives(schedulers())+", the schedulers of mode userspace"))
	}
	var ok bool
	if u.FirstPort, u.LastPort, ok = parsePorts(c.config.PortRange); !ok {
		c.problem("portRange", invalid(c.config.PortRange,
			"must be a range of ports from 1 to 65535, such as 20000-29999 or 20000+10000"))
	}
	return u
}

// schedulers returns the values of --scheduler.
func schedulers() []string { return []string{"rr", "lc", "wlc", "sh"} }

// parsePorts reads a range of ports as kube-proxy did. Empty, "0" and "0-0" are the default.
func parsePorts(text string) (first, last uint16, ok bool) {
	if noPorts(text) {
		return firstPort, lastPort, true
	}
	ports, err := utilnet.ParsePortRange(text)
	if err != nil || ports.Base <= 0 {
		return 0, 0, false
	}
	return uint16(ports.Base), uint16(ports.Base + ports.Size - 1), true
}

// noPorts reports whether a range is one of the spellings of none.
func noPorts(text string) bool { return text == "" || text == "0" || text == "0-0" }

// unusedInMode warns of settings that have an effect in another mode only. --bind is an error, as it says how much the
// proxy may change.
func (c *check) unusedInMode() {
	mode := string(c.config.Mode)
	for _, f := range []struct{ mode, flag, quiet, hint string }{
		{"nftables", "external", "cluster", ""},
		{ebpfMode, "bpf-dir", "", ""},
		{ebpfMode, "cgroup-root", "", ""},
		{ebpfMode, "exempt-cgroups", "", ""},
		{userspaceMode, "drain-timeout", "", ""},
		{userspaceMode, "scheduler", "", "; other modes have --ipvs-scheduler"},
		// 250 ms are kube-proxy's default.
		{userspaceMode, "udp-timeout", "250ms", "; use --conntrack-udp-timeout for flows in the kernel"},
	} {
		if text, given := c.flags[f.flag]; given && f.mode != mode && text != f.quiet && !c.own.Cleanup {
			c.warn("--%s has an effect in mode %s only: the mode is %s%s", f.flag, f.mode, mode, f.hint)
		}
	}
	if mode == userspaceMode {
		return
	}
	if !noPorts(c.config.PortRange) {
		c.warn("%s has an effect in mode userspace only: the mode is %s", c.name("portRange"), mode)
	}
	if text, given := c.flags["bind"]; given {
		c.problem("--bind", invalid(text, "only the mode userspace has this flag, and the mode is "+mode))
	}
}
