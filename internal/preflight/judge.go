package preflight

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// Judge returns what facts mean. It does no I/O.
func Judge(f Facts) []Finding {
	var all []Finding
	for _, check := range []func(Facts) []Finding{
		kernel, modules, capabilities, cgroups, proxies, ports, ranges, conntrack, forwarding, reversePath, mtu, skew,
	} {
		all = append(all, check(f)...)
	}
	return all
}

func one(l Level, subject, found, remedy string) []Finding {
	return []Finding{{l, subject, found, remedy}}
}

// orWarnings returns one ok, unless there are warnings.
func orWarnings(warnings []Finding, subject, found string) []Finding {
	if len(warnings) > 0 {
		return warnings
	}
	return one(OK, subject, found, "")
}

// rights is what a check needs that this process may not do.
const rights = "run it as root, or in a pod with the rights of the DaemonSet"

func kernel(f Facts) []Finding {
	const subject = "kernel"
	var out []Finding
	switch {
	case f.Probe.Right:
		return one(Warning, subject, f.System+", mode "+f.Mode+" not tested: "+f.Probe.Err, "")
	case f.Probe.Err != "":
		for problem := range strings.Lines(f.Probe.Err) {
			out = append(out, Finding{
				Stop, subject, f.System + " cannot do mode " + f.Mode + ": " + strings.TrimSpace(problem), "",
			})
		}
		return out
	}
	out = one(OK, subject, fmt.Sprintf("%s can do mode %s (%s)", f.System, f.Mode, f.Reason), "")
	for _, note := range f.Notes {
		out = append(out, Finding{Warning, subject, note, ""})
	}
	return out
}

func modules(f Facts) []Finding {
	const subject = "modules"
	var out []Finding
	seen := map[string]bool{}
	for _, l := range f.Network.Links {
		if l.Bridge == "" || seen[l.Bridge] || f.Unprivileged || f.Parameters["net/bridge/bridge-nf-call-iptables"] == "1" {
			continue
		}
		seen[l.Bridge] = true
		out = append(out, Finding{
			Warning, subject,
			"rules do not see packets between ports of the bridge " + l.Bridge +
				": a pod gets no answer through a Service from a pod on the same bridge",
			"if pods are on it: modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1 " +
				"net.bridge.bridge-nf-call-ip6tables=1",
		})
	}
	if f.Probe.Err != "" {
		return out
	}
	return orWarnings(out, subject, "the kernel has or loads those that the mode needs")
}

func capabilities(f Facts) []Finding {
	const subject, admin = "capabilities", "CAP_NET_ADMIN"
	list := strings.Join(f.Capabilities, ", ")
	if f.Unprivileged || strings.Contains(list, admin) {
		return one(OK, subject, "this process has what the mode needs: "+orNone(list), "")
	}
	return one(Warning, subject, "this process lacks "+admin+", which Sluice needs and some of these tests, too; it has "+
		orNone(list), rights)
}

func orNone(list string) string {
	if list == "" {
		return "none"
	}
	return list
}

func cgroups(f Facts) []Finding {
	const subject = "cgroups"
	where := "cgroup v2 is mounted at " + f.Cgroup
	switch {
	case f.Cgroup == "":
		where = "cgroup v2 is not mounted"
	case f.CgroupRoot.Err != "":
		where += ", a part of all cgroups"
	}
	switch {
	case f.Beyond == nil:
		return one(OK, subject, where+"; the mode does not need it", "")
	case f.Beyond.Right:
		return one(Warning, subject, where+"; sockets were not tested: "+f.Beyond.Err, "")
	case f.Beyond.Err != "":
		return one(Warning, subject, where+"; all connections are translated packet by packet: "+f.Beyond.Err, "")
	}
	return one(OK, subject, where+", and sockets can be balanced", "")
}

func proxies(f Facts) []Finding {
	const subject = "other proxies"
	var out []Finding
	switch d := f.Sluice; {
	case d != nil && d.Mode == "":
		out = one(OK, subject, "a Sluice runs that does not answer here, as one in another container; this is "+f.Version, "")
	case d != nil:
		runs := fmt.Sprintf("Sluice %s runs in mode %s (pid %d); this is %s", d.Version, d.Mode, d.PID, f.Version)
		out = one(OK, subject, runs, "")
	}
	if f.OthersErr.Err != "" {
		out = append(out, Finding{
			Warning, subject, "not all of them could be looked for: " + strings.ReplaceAll(f.OthersErr.Err, "\n", "; "), rights,
		})
	}
	p := f.Others.KubeProxy
	switch {
	case p != nil && f.Others.Same:
		out = append(out, Finding{
			Stop, subject, p.String() + " writes the chains that mode " + f.Mode + " writes, each against the other",
			"stop it first",
		})
	case p != nil:
		out = append(out, Finding{
			Warning, subject, p.String() + " runs (" + p.Evidence + "): both serve until it is stopped",
			"start Sluice, then stop it; Sluice removes its rules",
		})
	}
	for _, e := range f.Others.Rules {
		switch {
		case p != nil: // it uses them
		case e.Mechanism == takeover.IPTablesLegacy:
			out = append(out, Finding{Warning, subject, "rules are left, " + e.String(), takeover.Remedy})
		default:
			out = append(out, Finding{OK, subject, "rules are left, " + e.String() + "; Sluice removes them", ""})
		}
	}
	return orWarnings(out, subject, "none, and no rules of kube-proxy")
}

func ports(f Facts) []Finding {
	const subject = "ports"
	var out []Finding
	var free []string
	for _, p := range f.Ports {
		holder := "a process that this one cannot see"
		if p.PID != 0 {
			holder = fmt.Sprintf("%s (pid %d)", p.Holder, p.PID)
		}
		taken := fmt.Sprintf("%s is taken by %s", p.At, holder)
		other := Finding{Warning, subject, taken + "; Sluice tries again until it is free", "stop it, or change " + p.Field}
		if f.HardFail {
			other.Level, other.Found = Stop, taken+", and bindAddressHardFail is set"
		}
		switch {
		case !p.Taken:
			free = append(free, p.At.String())
		case f.Sluice != nil && (p.PID == 0 || p.PID == f.Sluice.PID):
			free = append(free, p.At.String()+" (Sluice)")
		case f.Others.KubeProxy != nil && (p.PID == 0 || p.PID == f.Others.KubeProxy.PID):
			out = append(out, Finding{
				Warning, subject, fmt.Sprintf("%s is taken by kube-proxy", p.At), "stop it; Sluice takes the port then",
			})
		default:
			out = append(out, other)
		}
	}
	if f.PortsErr.Err != "" {
		return append(out, Finding{Warning, subject, "not tested: " + f.PortsErr.Err, rights})
	}
	return orWarnings(out, subject, "free: "+orNone(strings.Join(free, ", ")))
}

// nodePorts is the default range of an API server.
const firstNodePort, lastNodePort = 30000, 32767

func ranges(f Facts) []Finding {
	const subject = "ranges"
	var out []Finding
	local := f.Parameters["net/ipv4/ip_local_port_range"]
	reserved := f.Parameters["net/ipv4/ip_local_reserved_ports"]
	if first, last, ok := span(local); ok && first <= lastNodePort && last >= firstNodePort &&
		!reserves(reserved, max(first, firstNodePort), min(last, lastNodePort)) {
		out = append(out, Finding{
			Warning, subject,
			fmt.Sprintf("local ports %d-%d include NodePorts (30000-32767 by default): "+
				"a connection of this node may take the port of one", first, last),
			"sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767",
		})
	}
	if f.Detector.Kind != route.DetectClusterCIDR {
		return orWarnings(out, subject, "local ports do not meet NodePorts")
	}
	if len(f.Detector.CIDRs) == 0 && !f.Unprivileged {
		out = append(out, Finding{
			Warning, subject, "clusterCIDR is not set: connections from outside to cluster IPs are not masqueraded",
			"set clusterCIDR, or another detectLocalMode",
		})
	}
	for _, r := range f.Detector.CIDRs {
		for _, a := range f.Primary {
			if r.Contains(a) {
				out = append(out, Finding{
					Warning, subject,
					fmt.Sprintf("the address %s of this node is in clusterCIDR %s: connections of nodes count as those of pods", a, r),
					"set clusterCIDR to the range of pods only",
				})
			}
		}
	}
	return orWarnings(out, subject,
		"local ports do not meet NodePorts, and clusterCIDR does not have the address of this node")
}

// span reads two numbers, "32768\t60999".
func span(s string) (first, last int, ok bool) {
	words := strings.Fields(s)
	if len(words) != 2 {
		return 0, 0, false
	}
	first, err1 := strconv.Atoi(words[0])
	last, err2 := strconv.Atoi(words[1])
	return first, last, err1 == nil && err2 == nil
}

// reserves reports whether one item of a list, "8080,30000-32767", has all ports of a range.
func reserves(list string, first, last int) bool {
	for item := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(strings.TrimSpace(item), "-")
		if from, to, ok := span(low + " " + high); ranged && ok && from <= first && to >= last {
			return true
		}
	}
	return false
}
