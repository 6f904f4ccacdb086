//go:build linux

package conformance

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestTranslate(t *testing.T) {
	for in, want := range map[string]string{
		"172.30.0.41:80":                      "[fd00:172:30::41]:80",
		"172.30.0.41:53/udp":                  "[fd00:172:30::41]:53/udp",
		"clusterIP: 172.30.0.41, ports":       "clusterIP: fd00:172:30::41, ports",
		`["10.180.0.1"], addressType: IPv4`:   `["fd00:10:180::1"], addressType: IPv6`,
		`" 203.0.113.0/25", "0.0.0.0/0"`:      `" 2001:db8:113::/120", "::/0"`,
		"10.0.0.0/8 10.180.0.0/24 1.2.3.4/32": "fd00:10::/32 fd00:10:180::/64 fd00:1:2:3::4/128",
		"192.168.0.0/24 128.0.0.0/1":          "2001:db8::/64 8000::/1",
		"fd00:10:180::1 is IPv6":              "fd00:10:180::1 is IPv6",
		"172.30.0.041 is invalid":             "172.30.0.041 is invalid",
	} {
		if got := (translator{ipv6: true}).text(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
		if got := (translator{}).text(in); got != in {
			t.Errorf("%q became %q without being translated", in, got)
		}
	}
}

func TestIPv6PrefixesContainTheCounterpartsOfTheirAddresses(t *testing.T) {
	for _, c := range []struct {
		prefix, inside, outside string
	}{
		{"203.0.113.0/25", "203.0.113.2", "203.0.113.130"},
		{"10.0.0.0/8", "10.0.0.2", "172.30.0.41"},
		{"10.180.0.0/24", "10.180.0.9", "10.180.1.9"},
		{"192.168.0.0/24", "192.168.0.2", "192.168.1.2"},
		{"172.30.0.0/16", "172.30.0.50", "172.31.0.50"},
	} {
		tr := translator{ipv6: true}
		p := mustPrefix(t, tr.text(c.prefix))
		if !p.Contains(mustAddr(t, tr.text(c.inside))) || p.Contains(mustAddr(t, tr.text(c.outside))) {
			t.Errorf("%s became %s, which should hold %s and not %s", c.prefix, p, tr.text(c.inside), tr.text(c.outside))
		}
	}
}

func TestDocuments(t *testing.T) {
	got := slice("web/b", "http:8080 dns:53/udp", "10.180.0.1 A", "10.180.1.1 B 011 zones=a,b nodes=A")
	want := `{kind: EndpointSlice, metadata: {name: web-b, labels: {kubernetes.io/service-name: web}},
  addressType: IPv4, ports: [{name: "http", port: 8080, protocol: TCP}, {name: "dns", port: 53, protocol: UDP}], ` +
		`endpoints: [{addresses: ["10.180.0.1"], nodeName: node-a}, ` +
		`{addresses: ["10.180.1.1"], nodeName: node-b, conditions: {ready: false, serving: true, terminating: true}, ` +
		`hints: {forZones: [{name: zone-a}, {name: zone-b}], forNodes: [{name: node-a}]}}]}`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	o := newObjects(settings{})
	for _, text := range append(base(), got, service("web", "clusterIP: 172.30.0.1")) {
		if err := o.set(text); err != nil {
			t.Error(err)
		}
	}
	for _, text := range []string{"{", "{kind: Pod}", "{kind: Service, spec: {clusterAddress: x}}"} {
		if err := o.set(text); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
	if err := o.remove("Service/other"); err == nil {
		t.Error("removed an object that does not exist")
	}
}

// inert is a plane that does nothing. No scenario that expects an effect may pass with it.
type inert struct{}

func (inert) Refresh(context.Context) error { return nil }
func (inert) Plan(route.Change) plane.Plan  { return inert{} }
func (inert) Watch(ctx context.Context, subscribed func(), _ func(plane.Edit)) error {
	subscribed()
	<-ctx.Done()
	return nil
}
func (inert) Steps() int                  { return 0 }
func (inert) Kept() int                   { return 0 }
func (inert) String() string              { return "" }
func (inert) Apply(context.Context) error { return nil }

// inertPlane is a plane that does nothing, with the traits of nftables mode.
func inertPlane() Plane {
	return Plane{
		Traits: Nftables(), Explain: nftables.Kind().Facts,
		Open: func(testing.TB, *lab.Host, plane.Setup) *plane.Opened { return &plane.Opened{Plane: inert{}} },
	}
}

// setUpAlone sets up a scenario as written, in a lab of its own.
func (s scenario) setUpAlone(t *testing.T, p Plane) *env {
	t.Helper()
	return s.setUp(t, p, translator{}, newWorld(t, s.labFor(p)))
}

// With a plane that does nothing, every step that expects a Service fails, and untouched succeeds.
func TestStepsDetectFaults(t *testing.T) {
	e := scenario{
		cluster: aNodePort(`{port: 80, nodePort: 3001}`),
		lab:     lab.Options{Timeout: lab.Soon},
	}.setUpAlone(t, inertPlane())
	e.timeout = lab.Soon // no expected event will happen
	for name, check := range map[string]step{
		"no answer":                reach("10.180.0.2", "172.30.0.41:80", original, "10.180.0.1:80"),
		"no listener":              reach("outside", "192.168.0.2:3001", anySource, "10.180.0.1:80"),
		"wrong backend":            reach("10.180.0.2", "10.180.0.1:80", original, "10.180.1.1:80"),
		"missing backend":          reach("10.180.0.2", "10.180.0.1:80", original, "10.180.0.1:80", "10.180.1.1:80"),
		"wrong source":             reach("10.180.0.2", "10.180.0.1:80", masqueraded, "10.180.0.1:80"),
		"uneven":                   evenly(200, "10.180.0.2", "10.180.0.1:80", "10.180.0.1:80", "10.180.1.1:80"),
		"not refused":              refused("10.180.0.2", "10.180.0.1:80"),
		"reset, not ICMP":          refused("10.180.0.2", "10.180.0.1:81"),
		"not dropped":              dropped("10.180.0.2", "10.180.0.1:80"),
		"left the node":            dropped("10.180.0.2", "172.30.0.50:80"),
		"touched":                  untouched("10.180.0.2", "10.180.0.1:80"),
		"echo":                     pingRefused("10.180.0.2", "10.180.0.1"),
		"large":                    large("10.180.0.2", "172.30.0.41:80", "10.180.0.1:80", 4000),
		"echo untouched":           pingUntouched("10.180.0.2", "10.180.0.1"),
		"not filtered":             filtered("10.180.0.2", "10.180.0.1:80"),
		"no such pod":              filtered("no-such-host", "10.180.0.1:80"),
		"invalid":                  invalidDropped("10.180.0.2", "203.0.113.2:80"),
		"no such sender":           invalidPasses("no-such-host", "203.0.113.2:80"),
		"loopback routed":          routeLocalnetIs("1"),
		"trait of the mode":        unknownPort("10.180.0.2", "172.30.0.41:81"),
		"steps of the other modes": when(inIptablesMode).otherwise(refused("10.180.0.2", "10.180.0.1:80")),
		"sticky":                   sticky("10.180.0.2", "172.30.0.41:80", "10.180.0.1:80"),
		"no such flow":             send("no-such-flow"),
		"no such object":           remove("Service/other"),
		"no such host":             reach("no-such-host", "172.30.0.41:80", original, "10.180.0.1:80"),
	} {
		if err := check(e); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Logf("%s: %s", name, strings.TrimSpace(err.Error()))
		}
	}
	e.proxy.skipExplain = true
	for name, check := range map[string]step{
		"echo":       pingUntouched("10.180.0.2", "172.30.0.41"),
		"invalid":    invalidPasses("10.180.0.2", "203.0.113.2:80"),
		"node port":  untouched("outside", "192.168.0.2:3001"),
		"loopback":   untouched("node", "127.0.0.1:3001"),
		"cluster ip": untouched("10.180.0.2", "172.30.0.41:80"),
		"direct":     reach("10.180.0.2", "10.180.0.1:80", original, "10.180.0.1:80"),
	} {
		if err := check(e); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := sequence(enableFirewall, filtered("outside", "192.168.0.2:3001"),
		filtered("10.180.0.2", "10.180.1.1:80"))(e); err != nil {
		t.Errorf("firewall: %v", err)
	}
}

func mustAddr(t *testing.T, text string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func mustPrefix(t *testing.T, text string) netip.Prefix {
	t.Helper()
	p, err := netip.ParsePrefix(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
