package explain

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

var update = flag.Bool("update", false, "write what was answered to testdata")

// TestAnswers asks the questions of testdata/*.txt and compares the answers whole. A question is a line "$ SETTING
// SOURCE DESTINATION [INTERFACE]"; lines that begin with # tell the story.
func TestAnswers(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no questions:", err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := answerAll(t, string(want))
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// answerAll keeps questions and comments, and answers anew.
func answerAll(t *testing.T, script string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		switch {
		case strings.HasPrefix(line, "#"):
			b.WriteString(line)
		case strings.HasPrefix(line, "$ "):
			fmt.Fprintf(&b, "%s\n%s\n", line, text.Printed(ask(t, strings.Fields(line)[1:])))
		}
	}
	return b.String()
}

func ask(t *testing.T, words []string) Answer {
	t.Helper()
	opt := usual()
	change := settings()[words[0]]
	if change == nil {
		t.Fatalf("unknown setting %q", words[0])
	}
	change(&opt)
	q, err := Parse(words[1], words[2])
	if err != nil {
		t.Fatal(err)
	}
	if len(words) > 3 {
		q.Via = words[3]
	}
	v := view(t, opt)
	if strings.HasPrefix(words[0], "iptables") {
		v.Plane = pathless(iptables.Kind())
		v.Plane.Path = chains
	}
	if words[0] == "ebpf" {
		v.Plane = pathless(ebpf.Kind(nftables.Kind()))
	}
	if name, is := strings.CutPrefix(words[0], "kernelspace"); is {
		v.Plane = ofHNS(t, name)
	}
	if strings.HasSuffix(words[0], "bound") { // addresses of Services are the node's as well
		v.Local = append(v.Local, addrs("198.51.100.7", "10.96.0.80")...)
	}
	return Ask(v, q)
}

// chains is a path with the outline of kube-proxy's, and names of its own.
func chains(p plane.Connection) []string {
	switch {
	case p.Way.Verdict == route.Reject:
		return []string{"filter REFUSING"}
	case p.Unserved:
		return []string{"filter DROPPING"}
	}
	port := &p.Service.Ports[p.Port]
	frontend, path := &port.Frontends[p.Frontend], []string{"nat SERVICES"}
	if frontend.Kind == route.NodePort {
		path = append(path, "NODEPORTS")
	}
	if frontend.Restricted {
		path = append(path, "RANGES-"+p.Service.Name.Name)
	}
	switch {
	case p.KeptOut:
		return append(path, "filter KEPT-OUT")
	case p.Way.Verdict == route.Drop:
		return append(path, "filter DROPPING")
	}
	from := map[bool]string{true: "inside", false: "outside"}[p.Inside]
	path = append(path, fmt.Sprintf("%s-%s-%s", from, p.Service.Name.Name, port.Name))
	if p.Backend.IsValid() {
		path = append(path, "TO-"+p.Backend.String())
	}
	return path
}

// Programs read the names of fields; they do not change.
func TestAnswerInJSON(t *testing.T) {
	got, err := json.MarshalIndent(ask(t, []string{"usual", "10.244.1.5", "198.51.100.7:80"}), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const refused = `{
  "source": "10.244.1.5",
  "destination": "198.51.100.7:80/tcp",
  "plane": "nftables",
  "cases": [
    {
      "destination": "198.51.100.7:80/tcp",
      "frontend": {
        "service": "default/web",
        "port": "http",
        "kind": "loadBalancerIP",
        "address": "198.51.100.7:80/tcp"
      },
      "client": {
        "address": "10.244.1.5",
        "countsAs": "pod",
        "why": "10.244.1.5 is in 10.244.0.0/16, a pod CIDR"
      },
      "verdict": "dropped",
      "why": "the client is not in the source ranges of the Service",
      "access": {
        "allowed": false,
        "ranges": [
          "203.0.113.0/25"
        ]
      }
    }
  ]
}`
	if string(got) != refused {
		t.Errorf("got\n%s\nwant\n%s", got, refused)
	}
}

func TestBalancedAnswerInJSON(t *testing.T) {
	a := ask(t, []string{"usual", "10.244.1.5", "default/web:http"})
	got, err := json.Marshal(a.Cases[0])
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"destination":"10.96.0.80:80/tcp",` +
		`"frontend":{"service":"default/web","port":"http","kind":"clusterIP","address":"10.96.0.80:80/tcp"},` +
		`"client":{"address":"10.244.1.5","countsAs":"pod","why":"10.244.1.5 is in 10.244.0.0/16, a pod CIDR"},` +
		`"verdict":"balanced","why":"over 2 backends, each with the same chance",` +
		`"policy":{"name":"Cluster","why":"internalTrafficPolicy Cluster: any usable endpoint of the Service"},` +
		`"sourceNAT":{"applied":false,"why":"pods keep their address, ` +
		`because replies to a pod return through its own node"},` +
		`"affinitySeconds":10800,` +
		`"backends":[{"address":"10.244.1.5:8080","chance":"1/2","hairpin":true,"node":"one","slice":"web-north"},` +
		`{"address":"10.244.2.5:8080","chance":"1/2","node":"two","slice":"web-north"}],` +
		`"leftOut":[{"address":"10.244.2.6:8080","reason":"not ready","node":"two","slice":"web-north"},` +
		`{"address":"10.244.2.7:8080","reason":"terminating, while there are ready endpoints",` +
		`"node":"two","slice":"web-north"},` +
		`{"address":"10.244.3.5","reason":"its slice has no port of this name and protocol",` +
		`"node":"three","slice":"web-south"}]}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Where source ranges are asked, and of whom, is the plane's.
func TestSourceRangesWithoutEndpoints(t *testing.T) {
	q, err := Parse("203.0.113.200", "198.51.100.7:443")
	if err != nil {
		t.Fatal(err)
	}
	v := view(t, usual())
	for _, tt := range []struct {
		plane plane.Facts
		want  Verdict
		asked bool
	}{{pathless(nftables.Kind()), Dropped, true}, {iptables.Kind().Facts, Refused, false}} {
		v.Plane = tt.plane
		if c := Ask(v, q).Cases[0]; c.Verdict != tt.want || (c.Access != nil) != tt.asked {
			t.Errorf("%s: %s because %s, asked %+v; want %s", tt.plane.Name, c.Verdict, c.Why, c.Access, tt.want)
		}
	}
}

// A backend's part of the path is what leads on from that of the case.
func TestPathOfBackends(t *testing.T) {
	for _, tt := range []struct{ common, whole, want string }{
		{"a b", "a b c", "c"},
		{"a b", "a b", ""},
		{"a b", "a c d", "a c d"},
		{"a b", "a", "a"},
		{"", "a", "a"},
	} {
		if got := strings.Join(beyond(strings.Fields(tt.common), strings.Fields(tt.whole)), " "); got != tt.want {
			t.Errorf("%q after %q: %q, want %q", tt.whole, tt.common, got, tt.want)
		}
	}
	a := ask(t, []string{"iptables", "10.244.1.9", "default/web:http"})
	got, err := json.Marshal([]any{a.Cases[0].Path, a.Cases[0].Backends[1]})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[["nat SERVICES","inside-web-http"],` +
		`{"address":"10.244.2.5:8080","chance":"1/2","node":"two","slice":"web-north","path":["TO-10.244.2.5:8080"]}]`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// An address in 127.0.0.0/8 is a source only if an interface has it.
func TestSourceOfThisNodeToItself(t *testing.T) {
	v := view(t, usual())
	v.Local = append(v.Local, addrs("127.0.0.53")...)
	for to, want := range map[string]string{
		"127.0.0.1": "127.0.0.1", "127.0.0.53": "127.0.0.53", "127.0.0.54": "127.0.0.1",
		"192.168.1.2": "192.168.1.2", "::1": "::1", "203.0.113.1": "192.168.0.2", "2001:db8:9::1": "2001:db8::2",
	} {
		q, err := Parse("node", to)
		if err != nil {
			t.Fatal(err)
		}
		if c := Ask(v, q).Cases[0]; c.Client.Address != want || c.Client.CountsAs != Node {
			t.Errorf("to %s: %+v, want the source %s", to, c.Client, want)
		}
	}
}

// Another plane tells its own where planes differ.
func TestAnswersFollowTheFactsOfThePlane(t *testing.T) {
	v := view(t, usual())
	v.Plane = plane.Facts{
		Name:        "other",
		OtherPort:   plane.Behaviour{Verdict: plane.Untouched, Why: "not looked at"},
		Ping:        plane.Behaviour{Verdict: plane.Untouched, Why: "answered by the host"},
		Unallocated: plane.Behaviour{Verdict: plane.Refuse, Why: "refused", Path: []string{"chain ALL", "chain NOBODY"}},
	}
	for to, want := range map[string]plane.Behaviour{
		"10.96.0.80:81":     v.Plane.OtherPort,
		"10.96.0.80/icmp":   v.Plane.Ping,
		"10.96.0.99:80":     v.Plane.Unallocated,
		"10.96.0.99/icmp":   v.Plane.Unallocated,
		"10.96.0.80:53/udp": v.Plane.OtherPort,
	} {
		q, err := Parse("node", to)
		if err != nil {
			t.Fatal(err)
		}
		got := Ask(v, q)
		if c := got.Cases[0]; got.Plane != "other" || c.Verdict != Verdict(want.Verdict) ||
			!strings.HasPrefix(c.Why, want.Why) || !slices.Equal(c.Path, want.Path) {
			t.Errorf("%s: %s of plane %s, because %q, want %v", to, c.Verdict, got.Plane, c.Why, want)
		}
	}
}

// A node that has the addresses of Services itself uses one as the source of its own
// connections to it, which get source NAT also without a detector.
func TestANodeWithTheAddressesOfServicesUsesThemAsSource(t *testing.T) {
	o := usual()
	o.Detector = route.DetectorOptions{}
	v := view(t, o)
	for own, want := range map[bool]string{true: "10.96.0.80 true", false: "192.168.0.2 false"} {
		v.Plane.OwnVIPs = own
		q, err := Parse("node", "10.96.0.80:80")
		if err != nil {
			t.Fatal(err)
		}
		c := Ask(v, q).Cases[0]
		if got := fmt.Sprint(c.Client.Address, " ", c.SourceNAT.Applied); got != want {
			t.Errorf("with its own addresses %v: %s, want %s", own, got, want)
		}
	}
}

// A plane whose process makes the connections knows how probable each backend is now, and is their source.
func TestTheProbabilitiesOfAProxy(t *testing.T) {
	v := view(t, usual())
	v.Plane.Proxied = true
	var asked string
	v.Shares = func(p plane.Connection) plane.Shares {
		asked = fmt.Sprint(p.Service.Name, " ", p.Port, " ", p.Way.Pool, " ", p.Node, " ", p.Client)
		port := &p.Service.Ports[p.Port]
		return plane.Shares{Of: map[netip.AddrPort]float64{port.Cluster[0]: 0.75, port.Cluster[1]: 0.25}, How: "as it comes"}
	}
	q, err := Parse("node", "10.96.0.80:80")
	if err != nil {
		t.Fatal(err)
	}
	c := Ask(v, q).Cases[0]
	if !c.SourceNAT.Applied || len(c.Backends) < 2 || c.Backends[0].Chance != "75.0%" || c.Backends[1].Chance != "25.0%" ||
		c.Why != "over 2 backends, as it comes" || asked != "default/web 0 cluster true 192.168.0.2" {
		t.Errorf("got %+v for %q", c, asked)
	}
}

// A node's address has as many ways in as there are NodePorts.
func TestManyCasesAreCut(t *testing.T) {
	store := cluster.NewStore()
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "default", Name: "many"}, Type: cluster.NodePort, ClusterIPs: addrs("10.96.0.1"),
	}
	for i := range uint16(40) {
		svc.Ports = append(svc.Ports, cluster.ServicePort{Protocol: cluster.TCP, Port: 1000 + i, NodePort: 30000 + i})
	}
	store.SetService(svc)
	store.SetNode(&cluster.Node{Name: "one", Addresses: addrs("192.168.0.2")})
	c := route.NewCompiler(usual())
	c.Compile(store.Take())
	v := View{View: proxy.View{Routes: c.Snapshot(), Started: true}, Node: store.Node(), Plane: pathless(nftables.Kind())}

	computed := 0
	v.Plane.Without = func(*route.Port) plane.Behaviour { computed++; return plane.Behaviour{} }
	q, err := Parse("node", "192.168.0.2")
	if err != nil {
		t.Fatal(err)
	}
	a := Ask(v, q)
	if computed != len(a.Cases) {
		t.Errorf("%d cases are computed, %d shown", computed, len(a.Cases))
	}
	if len(a.Cases) != 32 || a.Cases[31].Destination != "192.168.0.2:30031/tcp" ||
		!slices.Equal(a.Notes, []string{"8 more results are not shown: add a port to the destination"}) {
		t.Errorf("%d cases, the last to %s, noted %q", len(a.Cases), a.Cases[len(a.Cases)-1].Destination, a.Notes)
	}
	if q, err = Parse("node", "default/many"); err != nil {
		t.Fatal(err)
	}
	noted := Ask(v, q).Notes
	const also = "default/many is also reached by nodePort 30000/tcp, nodePort 30001/tcp, " +
		"nodePort 30002/tcp, nodePort 30003/tcp, " +
		"nodePort 30004/tcp, nodePort 30005/tcp, nodePort 30006/tcp, nodePort 30007/tcp, 32 more"
	if !slices.Equal(noted, []string{also, "8 more results are not shown: add a port to the destination"}) {
		t.Errorf("noted %q", noted)
	}
}

// Without a Node and without addresses of the host, little is known, and that is said.
func TestUnknownNode(t *testing.T) {
	v := View{
		View: proxy.View{Routes: route.NewCompiler(usual()).Snapshot(), Started: true}, Plane: pathless(nftables.Kind()),
	}
	q, err := Parse("node", "192.168.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	const want = "node to 192.168.0.2:80/tcp: not changed by Sluice\n" +
		"  Why     no programmed Service has this address\n  Client  this node\n"
	if got := text.Printed(Ask(v, q)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
