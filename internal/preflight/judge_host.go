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

func conntrack(f Facts) []Finding {
	const subject = "conntrack"
	var out []Finding
	for _, s := range f.Settings {
		found := fmt.Sprintf("%s is %s, and the configuration wants %s", s.Name, orNone(s.Is), s.Wanted)
		if s.Err == nil {
			out = append(out, Finding{OK, subject, found + "; Sluice sets it", ""})
			continue
		}
		remedy := "sysctl -w " + s.Name + "=" + s.Wanted
		if strings.HasPrefix(s.Name, "/") {
			remedy = "echo " + s.Wanted + " > " + s.Name
		}
		out = append(out, Finding{
			Warning, subject, found + ", but this process cannot set it: " + s.Err.Error(),
			"on the host: " + remedy + ", or the overlay sysctls",
		})
	}
	used, err1 := strconv.Atoi(f.Parameters["net/netfilter/nf_conntrack_count"])
	limit, err2 := strconv.Atoi(f.Parameters["net/netfilter/nf_conntrack_max"])
	switch {
	case err1 != nil || err2 != nil:
		return orWarnings(out, subject, "no connection is tracked yet")
	case limit > 0 && used > limit/100*fullPercent:
		out = append(out, Finding{
			Warning, subject,
			fmt.Sprintf("%d of %d connections are tracked: packets of others are dropped when the table is full", used, limit),
			"raise conntrack.min and conntrack.maxPerCore, or net.netfilter.nf_conntrack_max",
		})
	default:
		out = append(out, Finding{OK, subject, fmt.Sprintf("%d of %d connections are tracked", used, limit), ""})
	}
	return out
}

func forwarding(f Facts) []Finding {
	const subject = "forwarding"
	if value, known := f.Parameters["net/ipv4/ip_forward"]; known && value != "1" && !f.Unprivileged {
		return one(Warning, subject, "net.ipv4.ip_forward is "+value+": packets from pods and to NodePorts do not reach "+
			"backends on other nodes", "sysctl -w net.ipv4.ip_forward=1, unless the network plugin does it")
	}
	return one(OK, subject, "on", "")
}

// reversePath reports interfaces that drop packets whose answers leave by another interface. The kernel uses the
// greater value of "all" and the interface.
func reversePath(f Facts) []Finding {
	const subject, all = "rp_filter", "net/ipv4/conf/all/rp_filter"
	var strict []string
	for _, name := range slices.Sorted(maps.Keys(f.Parameters)) {
		device, is := strings.CutSuffix(strings.TrimPrefix(name, "net/ipv4/conf/"), "/rp_filter")
		up := slices.ContainsFunc(f.Network.Links, func(l rtnl.Link) bool {
			return l.Name == device && l.Up && device != "lo"
		})
		if is && up && max(f.Parameters[name], f.Parameters[all]) == "1" {
			strict = append(strict, device)
		}
	}
	if len(strict) == 0 {
		return one(OK, subject, "no interface is strict", "")
	}
	return one(Warning, subject, "strict at "+few(strict)+
		": a packet is dropped if its answer would leave by another interface, as on nodes with several networks",
		"if the node has several networks: sysctl -w net.ipv4.conf.all.rp_filter=2")
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
func mtu(f Facts) []Finding {
	const subject = "MTU"
	ways, pods := roles(f.Network.Links)
	switch {
	case f.NetworkErr.Err != "":
		return one(Warning, subject, "not tested: "+f.NetworkErr.Err, rights)
	case len(ways) == 0:
		return one(OK, subject, "there is no default route yet", "")
	}
	byMTU := func(a, b rtnl.Link) int { return a.MTU - b.MTU }
	narrow := slices.MinFunc(ways, byMTU)
	if narrow.MTU < leastMTU {
		return one(Warning, subject, fmt.Sprintf("%s has %d, and IPv6 needs %d", narrow.Name, narrow.MTU, leastMTU),
			"raise it, or use IPv4 only")
	}
	if len(pods) == 0 {
		return one(OK, subject, fmt.Sprintf("%s has %d, and there are no pods yet", narrow.Name, narrow.MTU), "")
	}
	wide := slices.MaxFunc(pods, byMTU)
	if wide.MTU > narrow.MTU {
		lost := fmt.Sprintf("%s of a pod has %d, but packets to other nodes may leave by %s, which has %d: "+
			"large ones get lost", wide.Name, wide.MTU, narrow.Name, narrow.MTU)
		return one(Warning, subject, lost,
			"set the MTU of the network plugin to "+strconv.Itoa(narrow.MTU)+" or less")
	}
	return one(OK, subject, fmt.Sprintf("%s has %d, and no interface of a pod has more", narrow.Name, narrow.MTU), "")
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

func skew(f Facts) []Finding {
	const subject = "version skew"
	s := f.Source
	at := fmt.Sprintf("%s is Kubernetes %s", s.Server, s.Version)
	minor, known := minorOf(s.Version)
	tested, _ := minorOf(f.Tested)
	switch {
	case s.Manifests:
		return one(OK, subject, "Services are those of manifests", "")
	case s.Server == "" && s.Named && !s.Right:
		return one(Stop, subject, s.Err, "correct --kubeconfig or --master, or clientConnection.kubeconfig")
	case s.Server == "":
		return one(Warning, subject, "not compared: "+s.Err, "")
	case s.Right:
		return one(Warning, subject, "not compared: "+s.Err, "bind the ClusterRole system:public-info-viewer")
	case s.Err != "":
		return one(Stop, subject, s.Err, "use an address of the API server that works without a service proxy, "+
			"not that of the Service kubernetes")
	case !known:
		return one(Warning, subject, at+", which cannot be compared", "")
	case minor < oldestMinor:
		return one(Stop, subject, at, fmt.Sprintf("use Kubernetes 1.%d or newer", oldestMinor))
	case minor > tested:
		return one(Warning, subject, at+"; this Sluice is tested with "+f.Tested+" and older", "use a newer Sluice")
	}
	return one(OK, subject, at, "")
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
