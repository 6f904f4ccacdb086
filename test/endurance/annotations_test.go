//go:build linux

package endurance

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// annotate replaces the annotations of Service web.
func (s *sockets) annotate(annotations object) {
	s.Helper()
	objects := withUDP(web(0, 1, 2))
	objects[0].(object)["metadata"].(object)["annotations"] = annotations
	s.write("web.json", objects)
}

// spread connects n times from the node, and counts the answers of each pod.
func (s *sockets) spread(n int) (count [3]int) {
	s.Helper()
	for range n {
		r := s.lab.NodeA.Dial(lab.TCP, netip.AddrPortFrom(netip.MustParseAddr(webIP4), 80))
		i := s.podOf(r)
		if i < 0 {
			s.Fatal(r)
		}
		count[i]++
	}
	return count
}

// podOf returns the index of the pod that answered, or -1.
func (s *sockets) podOf(r lab.Result) int {
	for i, pod := range s.pods {
		if r.Outcome == lab.Answered && r.Backend.Addr() == pod.Addr(r.Backend.Addr()) {
			return i
		}
	}
	return -1
}

// shows waits until a command prints text that matches a pattern.
func (s *sockets) shows(pattern string, args ...string) {
	s.Helper()
	s.eventually(func() error {
		if out, status := s.runSluice(args...); status != 0 || !regexp.MustCompile(pattern).MatchString(out) {
			return fmt.Errorf("sluice %s exits with %d, its output lacks %q:\n%s", strings.Join(args, " "), status, pattern, out)
		}
		return nil
	})
}

// Annotations of a Service govern the connections of sockets, and get backends, explain and the metrics agree with them.
func TestAnnotationsGovernSockets(t *testing.T) {
	s := newSockets(t, "ebpf")
	before := s.atSockets()
	if count := s.spread(60); count[0] == 0 || count[1] == 0 || count[2] == 0 {
		t.Errorf("at random the pods get %v of 60", count)
	}
	if n := s.atSockets() - before; n != 60 {
		t.Errorf("the metric counts %d connections, want 60", n)
	}
	if n := s.metric(`sluice_ebpf_connections_total{ip_family="IPv4",namespace="default",port="web",protocol="tcp",service="web"}`); n != "60" {
		t.Errorf("the metric of the Service is %q, want 60", n)
	}
	s.shows(`program sluice_connect4 -> map frontends -> map slots`, "explain", "node", webIP4+":80")

	s.annotate(object{"sluice-proxy.github.io/weights": "10.180.1.1=0, 10.180.1.2=3"})
	s.shows(`10\.180\.1\.1:80 .* 0 `, "get", "backends", "web")
	if count := s.spread(80); count[0] > 0 || count[1] <= count[2] {
		t.Errorf("with weights 0, 3 and 1 the pods get %v of 80", count)
	}

	s.annotate(object{"sluice-proxy.github.io/scheduler": "maglev"})
	s.shows(`10\.180\.1\.1:80 .* maglev `, "get", "backends", "web")
	if count := s.spread(20); max(count[0], count[1], count[2]) != 20 {
		t.Errorf("by Maglev the pods get %v of 20, want one to get all", count)
	}

	s.annotate(object{"sluice-proxy.github.io/scheduler": "lc"})
	s.shows(`10\.180\.1\.1:80 .* lc `, "get", "backends", "web")
	s.leastConnections()
}

// leastConnections opens connections that stay open: each pod gets the same number.
func (s *sockets) leastConnections() {
	s.Helper()
	var count [3]int
	for range 12 {
		f, r := s.lab.NodeA.Open(lab.Probe{Protocol: lab.TCP, To: netip.AddrPortFrom(netip.MustParseAddr(webIP4), 80)})
		i := s.podOf(r)
		if i < 0 {
			s.Fatal(r)
		}
		defer f.Close()
		count[i]++
	}
	if count != [3]int{4, 4, 4} {
		s.Errorf("by least connections the pods get %v of 12", count)
	}
	for i := range s.pods {
		s.shows(fmt.Sprintf(`10\.180\.1\.%d:80 .* lc +1 +4 `, i+1), "get", "backends", "web")
	}
}

// A new endpoint with slow start gets a part of its share at first.
func TestSlowStartGovernsSockets(t *testing.T) {
	s := newSockets(t, "ebpf")
	slow := object{"sluice-proxy.github.io/slow-start": "10m"}
	for _, pods := range [][]int{{0, 1}, {0, 1, 2}} {
		objects := withUDP(web(pods...))
		objects[0].(object)["metadata"].(object)["annotations"] = slow
		s.write("web.json", objects)
		s.waitAnswered(len(pods))
	}
	const n = 150
	if count := s.spread(n); count[2] > n/6 {
		t.Errorf("the new pod gets %d of %d connections, want about a thirtieth", count[2], n)
	}
	s.shows(`10\.180\.1\.3:80`, "get", "backends", "web")
}

// waitAnswered waits until the daemon has so many backends of the Service.
func (s *sockets) waitAnswered(backends int) {
	s.Helper()
	s.eventually(func() error {
		status, err := s.status()
		if err == nil && (status.Counts.Backends != 4*backends || status.Pending > 0) {
			err = fmt.Errorf("%d backends, %d pending, want %d", status.Counts.Backends, status.Pending, 4*backends)
		}
		return err
	})
}
