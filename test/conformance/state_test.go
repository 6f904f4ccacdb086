//go:build linux

package conformance

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Steps that check conntrack entries, affinity, plans and foreign rules detect faults.
func TestStateStepsDetectFaults(t *testing.T) {
	for _, p := range []Plane{nftablesPlane(), iptablesPlane("nft"), iptablesPlane("legacy")} {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			testStateSteps(t, p)
		})
	}
}

func testStateSteps(t *testing.T, p Plane) {
	t.Helper()
	const client, vip, udp = "10.180.0.2", "172.30.0.41:80", "172.30.0.41:53/udp"
	e := scenario{
		cluster: []string{
			service("web", `clusterIP: 172.30.0.41, ports: [{name: t, port: 80}, {name: u, port: 53, protocol: UDP}]`),
			slice("web", "t:8080 u:53/udp", "10.180.0.1 A", "10.180.1.1 B"),
		},
		lab: lab.Options{Timeout: lab.Soon},
	}.setUpAlone(t, p)
	e.timeout = 4 * lab.Soon // most of the expected events never happen
	nothing := sequence()
	moved := slice("web", "t:8080 u:53/udp", "10.180.0.3 A")
	for _, c := range []struct {
		name string
		step step
	}{
		{"no affinity", keepsBackend("m", client, vip, "10.180.0.1:8080", "10.180.1.1:8080")},
		{"other backends", keepsBackend("m", client, vip, "10.180.0.9:8080")},
		{"no such backend", openTo("f", client, udp, "10.180.0.9:53")},
		{"an entry that is kept", sequence(open("f", client, udp), send("f"), entriesAfter(nothing, entryDeleted("f")))},
		{"an entry that is deleted", sequence(open("f", client, udp), send("f"),
			entriesAfter(withTimeout(changeTimeout, entriesAfter(apply(moved), entryDeleted("f"))), entryKept("f")))},
		{"no such flow", entriesAfter(nothing, entryKept("no-such-flow"))},
		{"nothing rejected", whileRejected(nothing, nothing)},
		{"more plans", whileWriting(0, changeNoWait(slice("web", "t:8080 u:53/udp", "10.180.0.1 A")))},
		{"fewer plans", whileWriting(1, nothing)},
		{"a change at restart", sequence(stopProxy, changeNoWait(moved), restartWithoutChange)},
		{"foreign rules touched", withForeignRules(func(e *env) error {
			_, err := e.lab.NodeA.Run("", "nft", "delete", "chain", "ip", "other", "sluice")
			return err
		})},
		{"foreign chains touched", withForeignRules(func(e *env) error {
			return e.traits().firewall.runBoth(e.lab.NodeA, "-D", "FORWARD", "-m", "comment", "--comment",
				"foreign", "-j", "FOREIGN-SVC")
		})},
		{"rules of the previous mode left", func(e *env) error {
			e.proxy.plane.Open = inertPlane().Open
			return switchMode(e)
		}},
		{"rules left", cleanUp},
	} {
		if err := c.step(e); err == nil {
			t.Errorf("%s: no error", c.name)
		} else {
			t.Logf("%s: %s", c.name, strings.TrimSpace(err.Error()))
		}
	}
}

// withTimeout runs a step with another timeout for expected events.
func withTimeout(d time.Duration, s step) step {
	return func(e *env) error {
		before := e.timeout
		e.timeout = d
		defer func() { e.timeout = before }()
		return s(e)
	}
}

func TestChoices(t *testing.T) {
	one, other := netip.MustParseAddrPort("10.180.0.1:8080"), netip.MustParseAddrPort("10.180.0.3:8080")
	var all, mixed choices
	for i := range all {
		all[i], mixed[i] = one, one
	}
	mixed[7] = other
	for _, c := range []struct {
		name        string
		rule        func(before, now choices) error
		before, now choices
		ok          bool
	}{
		{"same", same, mixed, mixed, true},
		{"not the same", same, all, mixed, false},
		{"varied", varied, all, mixed, true},
		{"all alike", varied, mixed, all, false},
		{"chosen again", chosenAnew, all, mixed, true},
		{"not chosen again", chosenAnew, mixed, mixed, false},
		{"only the deleted one moved", onlyMovedFrom("3"), mixed, all, true},
		{"another one moved", onlyMovedFrom("3"), all, mixed, false},
		{"the deleted one stayed", onlyMovedFrom("3"), mixed, mixed, false},
		{"first time", anyChoice, all, mixed, true},
	} {
		if err := c.rule(c.before, c.now); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
