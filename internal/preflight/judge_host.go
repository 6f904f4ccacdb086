package preflight

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/text"
)

// fullPercent is how full the table of connections may be.
const fullPercent = 80

func conntrack(l *findings, f Facts) {
	for _, s := range f.Settings {
		found := fmt.Sprintf("%s is %s, and the configuration wants %s", s.Name, orNone(s.Is), s.Wanted)
		if s.Err == nil {
			l.ok(found + "; Sluice sets it")
			continue
		}
		remedy := "sysctl -w " + s.Name + "=" + s.Wanted
		if strings.HasPrefix(s.Name, "/") {
			remedy = "echo " + s.Wanted + " > " + s.Name
		}
		l.warn(found+", but this process cannot set it: "+s.Err.Error(), "on the host: "+remedy+", or the overlay sysctls")
	}
	used, err1 := strconv.Atoi(f.Parameters["net/netfilter/nf_conntrack_count"])
	limit, err2 := strconv.Atoi(f.Parameters["net/netfilter/nf_conntrack_max"])
	tracked := fmt.Sprintf("%d of %d connections are tracked", used, limit)
	switch {
	case err1 != nil || err2 != nil:
		l.okIfNone("no connection is tracked yet")
	case limit > 0 && used > limit/100*fullPercent:
		l.warn(tracked+": new connections are dropped when the table is full",
			"raise conntrack.min and conntrack.maxPerCore, or net.netfilter.nf_conntrack_max")
	default:
		l.ok(tracked)
	}
}

func forwarding(l *findings, f Facts) {
	if value, known := f.Parameters["net/ipv4/ip_forward"]; known && value != "1" && !f.Unprivileged {
		l.warn("net.ipv4.ip_forward is "+value+": packets from pods and to NodePorts do not reach backends on other nodes",
			"sysctl -w net.ipv4.ip_forward=1, unless the network plugin does it")
	}
	l.okIfNone("on")
}

// reversePath reports interfaces that drop packets whose answers leave by another interface. The kernel uses the
// greater value of "all" and the interface.
func reversePath(l *findings, f Facts) {
	const all = "net/ipv4/conf/all/rp_filter"
	var strict []string
	for _, name := range slices.Sorted(maps.Keys(f.Parameters)) {
		device, is := strings.CutSuffix(strings.TrimPrefix(name, "net/ipv4/conf/"), "/rp_filter")
		up := slices.ContainsFunc(f.Network.Links, func(link rtnl.Link) bool {
			return link.Name == device && link.Up && device != "lo"
		})
		if is && up && max(f.Parameters[name], f.Parameters[all]) == "1" {
			strict = append(strict, device)
		}
	}
	if len(strict) > 0 {
		l.warn("strict at "+few(strict)+
			": a packet is dropped if its answer would leave by another interface, as on nodes with several networks",
			"if the node has several networks: sysctl -w net.ipv4.conf.all.rp_filter=2")
	}
	l.okIfNone("no interface is strict")
}

// few names the first few of a list.
func few(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + " and " + text.Count(len(names)-most, "other")
}

// leastMTU is what IPv6 needs.
const leastMTU = 1280

// mtu compares the interfaces of pods with those by which their packets leave the node.
func mtu(l *findings, f Facts) {
	ways, pods := roles(f.Network.Links)
	switch {
	case f.NetworkErr.Err != "":
		l.warn("not tested: "+f.NetworkErr.Err, rights)
		return
	case len(ways) == 0:
		l.ok("there is no default route yet")
		return
	}
	byMTU := func(a, b rtnl.Link) int { return a.MTU - b.MTU }
	narrow := slices.MinFunc(ways, byMTU)
	switch {
	case narrow.MTU < leastMTU:
		l.warn(fmt.Sprintf("%s has %d, and IPv6 needs %d", narrow.Name, narrow.MTU, leastMTU),
			"raise it, or use IPv4 only")
		return
	case len(pods) == 0:
		l.ok(fmt.Sprintf("%s has %d, and there are no pods yet", narrow.Name, narrow.MTU))
		return
	}
	if wide := slices.MaxFunc(pods, byMTU); wide.MTU > narrow.MTU {
		l.warn(fmt.Sprintf("%s of a pod has %d, but packets to other nodes may leave by %s, which has %d: "+
			"large packets get lost", wide.Name, wide.MTU, narrow.Name, narrow.MTU),
			fmt.Sprintf("set the MTU of the network plugin to %d or less", narrow.MTU))
	}
	l.okIfNone(fmt.Sprintf("%s has %d, and no interface of a pod has more", narrow.Name, narrow.MTU))
}

// roles returns the interfaces by which packets leave the node, and those of pods.
func roles(links []rtnl.Link) (ways, pods []rtnl.Link) {
	for _, l := range links {
		switch {
		case !l.Up:
		case l.Uplink, slices.Contains([]string{"vxlan", "geneve", "ipip"}, l.Kind):
			ways = append(ways, l)
		case l.Kind == "veth":
			pods = append(pods, l)
		}
	}
	return ways, pods
}

// oldestMinor is the oldest minor version of Kubernetes 1 that Sluice works with.
const oldestMinor = 31

func skew(l *findings, f Facts) {
	s := f.Source
	at := fmt.Sprintf("%s is Kubernetes %s", s.Server, s.Version)
	minor, known := minorOf(s.Version)
	tested, _ := minorOf(f.Tested)
	switch {
	case s.Manifests:
		l.ok("not needed: Services come from manifests")
	case s.Server == "" && s.Named && !s.Right:
		l.stop(s.Err, "correct --kubeconfig or --master, or clientConnection.kubeconfig")
	case s.Server == "":
		l.warn("not compared: "+s.Err, "")
	case s.Right:
		l.warn("not compared: "+s.Err, "bind the ClusterRole system:public-info-viewer")
	case s.Err != "":
		l.stop(s.Err, "use an address of the API server that works without a service proxy, "+
			"not that of the Service kubernetes")
	case !known:
		l.warn(at+", which cannot be compared", "")
	case minor < oldestMinor:
		l.stop(at, fmt.Sprintf("use Kubernetes 1.%d or newer", oldestMinor))
	case minor > tested:
		l.warn(at+"; this Sluice is tested with "+f.Tested+" and older", "use a newer Sluice")
	default:
		l.ok(at)
	}
}

// minorOf returns 37 of "v1.37.0" or "1.37".
func minorOf(version string) (int, bool) {
	words := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(words) < 2 || words[0] != "1" {
		return 0, false
	}
	minor, err := strconv.Atoi(words[1])
	return minor, err == nil
}
