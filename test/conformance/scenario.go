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

// Plane is a data plane under test.
type Plane struct {
	Name string
	Traits

	// Need, if not nil, skips the test if the kernel lacks a feature that the plane needs.
	Need func(t testing.TB)

	// Explain has the facts from which explain computes its answers, which steps compare with the connections.
	Explain plane.Facts

	// Open opens the plane for a host. A restart of the proxy calls it again for the same host. Everything that the plane
	// itself does not close is closed when t ends.
	Open func(t testing.TB, host *lab.Host, s plane.Setup) *plane.Opened

	// Reload makes the plane of a host, which is stopped next, hand over its sockets to the one that
	// Open opens next. Nil: it has none.
	Reload func(host *lab.Host)

	// Sockets means that the plane acts on sockets of node A's cgroup.
	Sockets bool

	// Decided returns how many connections were decided at sockets of a host. Nil: none is.
	Decided func(host *lab.Host) (uint64, error)

	// Found returns an error until the plane of a host decides for the sockets of a pod. Nil: it does not decide for
	// sockets of pods.
	Found func(host, pod *lab.Host) error

	// On is the name of the plane that this one stands on, and Leave removes its own part.
	On    string
	Leave func(host *lab.Host) error

	// Remove removes everything of the plane from a host, as --cleanup does. Nil: it has nothing.
	Remove func(host *lab.Host) error

	// Left returns an error if anything of the plane besides rules is left on a host, from which it was removed; nil:
	// it has nothing.
	Left func(host *lab.Host) error

	// Launch, if not nil, runs the proxy as a separate process. It returns a function
	// that stops the process and may be called more than once. Open is then called
	// only by scenarios that need the proxy in this process, and must skip them.
	Launch func(t testing.TB, p Program) (stop func())

	// Others return planes of other modes, for scenarios that switch from each to the next.
	// It is empty if the proxy is a separate process.
	Others []func() Plane

	// Unsupported has, by S-number, the reason why a scenario cannot run with the plane.
	Unsupported map[int]string

	// Only, if not empty, are the S-numbers of the scenarios to run. It is for a plane
	// for which another test runs all scenarios. The others are not reported as skipped.
	Only []int
}

// shares returns how probable it is at this moment that each backend gets the next connection.
type shares = func(plane.Connection) plane.Shares

// remove removes everything of the plane from a host.
func (p *Plane) remove(host *lab.Host) error {
	if p.Remove == nil {
		return nil
	}
	if err := p.Remove(host); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

// scenario is a small cluster and the connections of its clients. See the package comment.
type scenario struct {
	covers   []int  // S-numbers
	summary  string // one sentence, part of the name of the test
	families families
	settings settings
	lab      lab.Options
	cluster  []string // documents, see service and slice
	pods     []string // servers besides the endpoints: "10.180.0.1 A 80/tcp 53/udp", "node-b 8080/tcp"
	steps    []step
}

// families are the IP families in which a scenario runs.
type families uint8

const (
	bothFamilies families = iota // as written, and translated to IPv6
	onlyIPv4                     // as written
	onlyIPv6                     // translated to IPv6
	dualStack                    // once, as written, with addresses of both families in it
)

// settings are the configuration of the proxy.
type settings struct {
	// detector recognizes pods of this node: "" by the CIDR of all pods; "none", "NodeCIDR", "bridge cbr0", "prefix veth".
	detector string

	masqueradeAll  bool
	nodePorts      []string // nodePortAddresses; nil: the default of the mode
	noLocalhost    bool     // localhostNodePorts of iptables mode is false
	noExternalIPs  bool     // Services may not claim addresses by spec.externalIPs
	disabledFamily string   // "IPv4" or "IPv6": the host cannot do it
	liberal        bool     // conntrack.tcpBeLiberal, set on the host before the proxy starts
}

// name returns the name of the test, which begins with every S-number, so that people can search for them.
func (s scenario) name() string {
	var b strings.Builder
	for _, n := range s.covers {
		fmt.Fprintf(&b, "S-%03d ", n)
	}
	return b.String() + s.summary
}

// excluded reports whether Plane.Only leaves the scenario out.
func (s scenario) excluded(p Plane) bool {
	covered := func(n int) bool { return slices.Contains(s.covers, n) }
	return len(p.Only) > 0 && !slices.ContainsFunc(p.Only, covered)
}

// skipReason returns why the scenario cannot run with the plane; empty if it can.
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

// variants returns the names of the runs of a scenario, and whether each is translated to IPv6.
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

// scenarios returns all sections of the table.
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
		weights,
		leastConnections,
		ejections,
	} {
		all = append(all, section()...)
	}
	return all
}
