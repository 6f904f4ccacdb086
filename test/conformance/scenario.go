//go:build linux

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Plane is a data plane to be put to the test.
type Plane struct {
	Name string
	Traits

	// Explain is what the plane says it does, which is held against what is seen.
	Explain plane.Facts

	// Start makes the plane for a host. It may be called again for the same
	// host, as after a restart of the process; what it opens it closes when t
	// ends.
	Start func(t testing.TB, host *lab.Host) plane.Plane

	// Parts makes what works beside the plane, as for plane.Opened; nil: nothing does.
	Parts func(plane.Setup) ([]plane.Part, error)

	// Launch, if there is one, runs the proxy as a program of its own, which is
	// how it is put to the test then. It returns what stops the program, and may
	// be called for that again. Scenarios that look into the proxy call Start,
	// which is to skip them.
	Launch func(t testing.TB, p Program) (stop func())

	// Other makes a plane of another mode, to switch the proxy to and back. A
	// plane that is launched needs none.
	Other func() Plane

	// Unsupported says of each scenario, by its S-number, that the plane cannot do,
	// why not.
	Unsupported map[int]string

	// Only, if there are any, are S-numbers: other scenarios are left out. It is
	// for a plane that is put through all of them elsewhere.
	Only []int
}

// scenario is a small cluster and what clients see of it. doc.go tells how to
// write one.
type scenario struct {
	covers   []int  // S-numbers
	summary     string // one sentence
	families       families
	settings settings
	lab      lab.Options
	cluster  []string // documents, see service and slice
	pods     []string // further servers: "10.180.0.1 A 80/tcp 53/udp", "node-b 8080/tcp"
	steps    []step
}

// families says in which IP families a scenario is run.
type families uint8

const (
	bothFamilies families = iota // as written, and translated to IPv6
	onlyIPv4               // as written
	onlyIPv6               // translated to IPv6
	dualStack              // once, as written, with addresses of both families in it
)

// settings are the configuration of the proxy.
type settings struct {
	// detector tells pods from others: "" is by the CIDR of all pods; "none",
	// "NodeCIDR", "bridge cbr0", "prefix veth".
	detector string

	masqueradeAll  bool
	nodePorts      []string // nodePortAddresses; nil: those of the mode
	noLocalhost    bool     // localhostNodePorts of iptables mode is false
	noExternalIPs  bool     // Services may not claim addresses by spec.externalIPs
	disabledFamily string   // "IPv4" or "IPv6": the host cannot do it
	liberal        bool     // conntrack.tcpBeLiberal, set on the host before the proxy starts
}

// name begins with every S-number, for people to search.
func (s scenario) name() string {
	var b strings.Builder
	for _, n := range s.covers {
		fmt.Fprintf(&b, "S-%03d ", n)
	}
	return b.String() + s.summary
}

// excluded says that the scenario is none of those that the plane is put through.
func (s scenario) excluded(p Plane) bool {
	covered := func(n int) bool { return slices.Contains(s.covers, n) }
	return len(p.Only) > 0 && !slices.ContainsFunc(p.Only, covered)
}

// skipReason says why the plane cannot do the scenario; empty if it can.
func (s scenario) skipReason(p Plane) string {
	for _, n := range s.covers {
		if reason := p.Unsupported[n]; reason != "" {
			return fmt.Sprintf("S-%03d: %s", n, reason)
		}
	}
	if p.Launch != nil {
		return s.settings.unsupportedByProgram()
	}
	return ""
}

// variants are the names of the runs of a scenario, and whether each is
// translated to IPv6.
func (s scenario) variants() map[string]bool {
	switch s.families {
	case onlyIPv4:
		return map[string]bool{"IPv4": false}
	case onlyIPv6:
		return map[string]bool{"IPv6": true}
	case dualStack:
		return map[string]bool{"dual-stack": false}
	}
	return map[string]bool{"IPv4": false, "IPv6": true}
}

// scenarios is the table: all sections of it.
func scenarios() []scenario {
	var all []scenario
	for _, section := range []func() []scenario{
		clusterIPs,
		masquerading,
		nodePorts,
		loadBalancers,
		externalLocals,
		internalLocals,
		terminatings,
		noEndpoints,
		topologies,
		affinities,
		udpFlows,
		changes,
		oddObjects,
		restarts,
		visibleSettings,
		dualStackSection,
	} {
		all = append(all, section()...)
	}
	return all
}
