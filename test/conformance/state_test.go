//go:build linux

package conformance

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Steps that look at what is kept over changes find fault where there is some.
func TestStepsAboutKeptStateFindFaults(t *testing.T) {
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
	}.setUp(t, p, translator{})
	e.timeout = 4 * lab.Soon // for most of what follows never happens
	nothing := sequence()
	moved := slice("web", "t:8080 u:53/udp", "10.180.0.3 A")
	for _, c := range []struct {
		what string
		look step
	}{
		{"no affinity", keepsBackend("m", client, vip, "10.180.0.1:8080", "10.180.1.1:8080")},
		{"other backends", keepsBackend("m", client, vip, "10.180.0.9:8080")},
		{"never leads there", openTo("f", client, udp, "10.180.0.9:53")},
		{"an entry that stays", sequence(open("f", client, udp), send("f"), entriesAfter(nothing, entryDeleted("f")))},
		{"an entry that ends", sequence(open("f", client, udp), send("f"),
			entriesAfter(withTimeout(changeTimeout, entriesAfter(apply(moved), entryDeleted("f"))), entryKept("f")))},
		{"no such flow", entriesAfter(nothing, entryKept("nobody"))},
		{"nothing refused", whileRejected(nothing, nothing)},
		{"more plans", whileWriting(0, changeNoWait(slice("web", "t:8080 u:53/udp", "10.180.0.1 A")))},
		{"fewer plans", whileWriting(1, nothing)},
		{"a change at restart", sequence(stopProxy, changeNoWait(moved), restartWithoutChange)},
		{"foreign rules touched", withForeignRules(func(e *env) error {
			_, err := e.lab.NodeA.Run("", "nft", "delete", "chain", "ip", "other", "sluice")
			return err
		})},
		{"foreign chains touched", withForeignRules(func(e *env) error {
			return e.traits().firewall.runBoth(e.lab.NodeA, "-D", "FORWARD", "-m", "comment", "--comment", "foreign", "-j", "FOREIGN-SVC")
		})},
		{"rules of the mode before", func(e *env) error {
			e.proxy.plane.Start = func(testing.TB, *lab.Host) plane.Plane { return inert{} }
			return switchMode(e)
		}},
		{"rules left", cleanUp},
	} {
		if err := c.look(e); err == nil {
			t.Errorf("%s: found nothing wrong", c.what)
		} else {
			t.Logf("%s: %s", c.what, strings.TrimSpace(err.Error()))
		}
	}
}

// withTimeout makes a step wait so long for an event that it expects.
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
	var all, but choices
	for i := range all {
		all[i], but[i] = one, one
	}
	but[7] = other
	for _, c := range []struct {
		what        string
		rule        func(before, now choices) error
		before, now choices
		fine        bool
	}{
		{"same", same, but, but, true},
		{"not the same", same, all, but, false},
		{"varied", varied, all, but, true},
		{"all alike", varied, but, all, false},
		{"chosen anew", chosenAnew, all, but, true},
		{"not chosen anew", chosenAnew, but, but, false},
		{"only the one gone moved", onlyMovedFrom("3"), but, all, true},
		{"another one moved", onlyMovedFrom("3"), all, but, false},
		{"the one gone stayed", onlyMovedFrom("3"), but, but, false},
		{"the first look", anyChoice, all, but, true},
	} {
		if err := c.rule(c.before, c.now); (err == nil) != c.fine {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
