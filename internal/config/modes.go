package config

import (
	"cmp"
	"path"
	"slices"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/sluice-proxy/sluice/internal/strict"
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

const ebpfMode = "ebpf"

// EBPF are settings of the mode ebpf. They are there in each mode, as its programs are removed in others.
type EBPF struct {
	Dir    string // on a bpffs, for the maps and programs
	Cgroup string // programs are for the processes in this cgroup; empty: in all

	// ExemptCgroups are patterns of path.Match for paths in the cgroup root. Connections of processes in these cgroups,
	// and below, are balanced as packets, not at sockets.
	ExemptCgroups []string

	// ExemptRoot means the same for processes in the root of all cgroups itself, such as threads of the kernel.
	ExemptRoot bool
}

// defaultBPFDir is on the bpffs that init systems mount.
const defaultBPFDir = "/sys/fs/bpf/sluice"

// ebpf returns the settings of the mode ebpf.
func (c *check) ebpf() EBPF {
	e := EBPF{Dir: cmp.Or(c.own.BPFDir, defaultBPFDir), Cgroup: c.own.CgroupRoot}
	e.ExemptCgroups, e.ExemptRoot = c.exemptCgroups()
	for flag, value := range map[string]string{"bpf-dir": e.Dir, "cgroup-root": e.Cgroup} {
		if value != "" && (!path.IsAbs(value) || path.Clean(value) != value || value == "/") {
			c.problem("--"+flag, invalid(value, "must be an absolute path of a folder"))
		}
	}
	return e
}

// exemptCgroups returns the patterns of cgroups, and whether "/" is among them. The default is the resolver of systemd:
// its sockets name an interface (IP_UNICAST_IF), which programs cannot see.
func (c *check) exemptCgroups() (list []string, root bool) {
	for _, pattern := range splitList(c.own.ExemptCgroups) {
		_, err := path.Match(pattern, "")
		switch {
		case pattern == "/":
			root = true
		case err != nil, path.IsAbs(pattern), path.Clean(pattern) != pattern, pattern == ".",
			strings.HasPrefix(pattern, ".."):
			c.problem("--exempt-cgroups", invalid(pattern,
				"must be / for the root of all cgroups, or a pattern of a path in the cgroup root, such as system.slice/nfs-*"))
		default:
			list = append(list, pattern)
		}
	}
	return list, root
}

const kernelspaceMode = "kernelspace"

// networkVariable names the HNS network if the configuration does not, as in kube-proxy.
const networkVariable = "KUBE_NETWORK"

// winkernelDefaults sets the fields of the section winkernel that are not set, in the mode kernelspace.
func (c *check) winkernelDefaults(env Env) {
	in := &c.config.Winkernel
	if c.config.Mode != kernelspaceMode {
		return
	}
	if env.Getenv != nil {
		ifZero(&in.NetworkName, env.Getenv(networkVariable))
	}
	ifZero(&in.RootHnsEndpointName, "cbr0")
}

// hns returns the settings of the section winkernel. They are checked in the mode kernelspace only.
func (c *check) hns() HNS {
	in := c.config.Winkernel
	out := HNS{
		Network: in.NetworkName, DSR: in.EnableDSR,
		RootEndpoint: in.RootHnsEndpointName, ForwardHealthCheck: in.ForwardHealthCheckVip,
	}
	if in.SourceVip == "" {
		return out
	}
	addr, ok := strict.Addr(in.SourceVip)
	if !ok && c.config.Mode == kernelspaceMode {
		c.problem("winkernel.sourceVip", invalid(in.SourceVip, "must be an IP address"))
	}
	out.SourceVIP = addr
	return out
}
