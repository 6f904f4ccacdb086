package preflight

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// Judge returns what facts mean. It does no I/O.
func Judge(f Facts) []Finding {
	var all []Finding
	for _, c := range []struct {
		subject string
		check   func(*findings, Facts)
	}{
		{"kernel", kernel},
		{"modules", modules},
		{"capabilities", capabilities},
		{"cgroups", cgroups},
		{"other proxies", proxies},
		{"ports", ports},
		{"ranges", ranges},
		{"conntrack", conntrack},
		{"forwarding", forwarding},
		{"rp_filter", reversePath},
		{"MTU", mtu},
		{"version skew", skew},
	} {
		on := &findings{subject: c.subject}
		c.check(on, f)
		all = append(all, on.list...)
	}
	return all
}

// findings are those of one subject.
type findings struct {
	subject string
	list    []Finding
}

func (l *findings) add(level Level, found, remedy string) {
	l.list = append(l.list, Finding{level, l.subject, found, remedy})
}

func (l *findings) ok(found string)           { l.add(OK, found, "") }
func (l *findings) warn(found, remedy string) { l.add(Warning, found, remedy) }
func (l *findings) stop(found, remedy string) { l.add(Stop, found, remedy) }

// okIfNone adds an ok, unless there is a finding.
func (l *findings) okIfNone(found string) {
	if len(l.list) == 0 {
		l.ok(found)
	}
}

// rights is the remedy if this process may not do a test.
const rights = "run it as root, or in a pod with the rights of the DaemonSet"

func kernel(l *findings, f Facts) {
	switch {
	case f.Probe.Right:
		l.warn(f.System+", mode "+f.Mode+" not tested: "+f.Probe.Err, "")
		return
	case f.Probe.Err != "":
		for problem := range strings.Lines(f.Probe.Err) {
			l.stop(f.System+" does not support mode "+f.Mode+": "+strings.TrimSpace(problem), "")
		}
		return
	}
	l.ok(fmt.Sprintf("%s supports mode %s (%s)", f.System, f.Mode, f.Reason))
	for _, note := range f.Notes {
		l.warn(note, "")
	}
}

func modules(l *findings, f Facts) {
	seen := map[string]bool{}
	for _, link := range f.Network.Links {
		if link.Bridge == "" || seen[link.Bridge] || f.Unprivileged ||
			f.Parameters["net/bridge/bridge-nf-call-iptables"] == "1" {
			continue
		}
		seen[link.Bridge] = true
		l.warn("rules do not see packets between ports of the bridge "+link.Bridge+
			": connections through a Service to a pod on the same bridge fail",
			"if pods are on it: modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1 "+
				"net.bridge.bridge-nf-call-ip6tables=1")
	}
	if f.Probe.Err == "" {
		l.okIfNone("the kernel has the modules that the mode needs, or loads them")
	}
}

func capabilities(l *findings, f Facts) {
	const admin = "CAP_NET_ADMIN"
	list := strings.Join(f.Capabilities, ", ")
	if f.Unprivileged || strings.Contains(list, admin) {
		l.ok("this process has the capabilities that the mode needs: " + orNone(list))
		return
	}
	l.warn("this process lacks "+admin+", which Sluice and some of these tests need; it has "+orNone(list), rights)
}

func orNone(list string) string { return cmp.Or(list, "none") }

func cgroups(l *findings, f Facts) {
	where := "cgroup v2 is mounted at " + f.Cgroup
	switch {
	case f.Cgroup == "":
		where = "cgroup v2 is not mounted"
	case f.CgroupRoot.Err != "":
		where += ", which is not the root of all cgroups"
	}
	switch {
	case f.Beyond == nil:
		l.ok(where + "; the mode does not need it")
	case f.Beyond.Right:
		l.warn(where+"; sockets were not tested: "+f.Beyond.Err, "")
	case f.Beyond.Err != "":
		l.warn(where+"; all connections are translated packet by packet: "+f.Beyond.Err, "")
	default:
		l.ok(where + ", and connections can be balanced at sockets")
	}
}

func proxies(l *findings, f Facts) {
	switch d := f.Sluice; {
	case d != nil && d.Mode == "":
		l.ok("a Sluice runs but does not answer here, perhaps as it is in another container; this program is " + f.Version)
	case d != nil:
		l.ok(fmt.Sprintf("Sluice %s runs in mode %s (pid %d); this program is %s", d.Version, d.Mode, d.PID, f.Version))
	}
	if f.OthersErr.Err != "" {
		l.warn("the search was not complete: "+strings.ReplaceAll(f.OthersErr.Err, "\n", "; "), rights)
	}
	p := f.Others.KubeProxy
	switch {
	case p != nil && f.Others.Same:
		l.stop(p.String()+" writes the same chains as mode "+f.Mode+", and each overwrites the other",
			"stop it before you start Sluice")
	case p != nil:
		l.warn(p.String()+" runs ("+p.Evidence+"): both serve until it is stopped",
			"start Sluice, then stop kube-proxy; Sluice removes the rules of kube-proxy")
	}
	for _, e := range f.Others.Rules {
		switch {
		case p != nil: // it uses them
		case e.Mechanism == takeover.IPTablesLegacy:
			l.warn("rules remain: "+e.String(), takeover.Remedy)
		default:
			l.ok("rules remain: " + e.String() + "; Sluice removes them")
		}
	}
	l.okIfNone("no other proxy, and no rules of kube-proxy")
}

func ports(l *findings, f Facts) {
	var free []string
	for _, p := range f.Ports {
		holder := "a process that this one cannot see"
		if p.PID != 0 {
			holder = fmt.Sprintf("%s (pid %d)", p.Holder, p.PID)
		}
		taken, remedy := fmt.Sprintf("%s is taken by %s", p.At, holder), "stop it, or change "+p.Field
		switch {
		case !p.Taken:
			free = append(free, p.At.String())
		case f.Sluice != nil && (p.PID == 0 || p.PID == f.Sluice.PID):
			free = append(free, p.At.String()+" (Sluice)")
		case f.Others.KubeProxy != nil && (p.PID == 0 || p.PID == f.Others.KubeProxy.PID):
			l.warn(p.At.String()+" is taken by kube-proxy", "stop kube-proxy; Sluice then opens the port")
		case f.HardFail:
			l.stop(taken+", and bindAddressHardFail is set", remedy)
		default:
			l.warn(taken+"; Sluice retries until it is free", remedy)
		}
	}
	if f.PortsErr.Err != "" {
		l.warn("not tested: "+f.PortsErr.Err, rights)
	}
	l.okIfNone("free: " + orNone(strings.Join(free, ", ")))
}

// nodePorts is the default range of an API server.
const firstNodePort, lastNodePort = 30000, 32767

func ranges(l *findings, f Facts) {
	local := f.Parameters["net/ipv4/ip_local_port_range"]
	reserved := f.Parameters["net/ipv4/ip_local_reserved_ports"]
	if first, last, ok := span(local); ok && first <= lastNodePort && last >= firstNodePort &&
		!reserves(reserved, max(first, firstNodePort), min(last, lastNodePort)) {
		l.warn(fmt.Sprintf("local ports %d-%d include NodePorts (30000-32767 by default): "+
			"a connection of this node may occupy a NodePort", first, last),
			"sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767")
	}
	if f.Detector.Kind != route.DetectClusterCIDR {
		l.okIfNone("local ports and NodePorts do not overlap")
		return
	}
	if len(f.Detector.CIDRs) == 0 && !f.Unprivileged {
		l.warn("clusterCIDR is not set: connections from outside to cluster IPs are not masqueraded",
			"set clusterCIDR, or another detectLocalMode")
	}
	for _, r := range f.Detector.CIDRs {
		for _, a := range f.Primary {
			if r.Contains(a) {
				l.warn(fmt.Sprintf("the address %s of this node is in clusterCIDR %s: "+
					"connections of nodes count as those of pods", a, r), "set clusterCIDR to the range of pods only")
			}
		}
	}
	l.okIfNone("local ports and NodePorts do not overlap, and the address of this node is not in clusterCIDR")
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
