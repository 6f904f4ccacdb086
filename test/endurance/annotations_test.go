//go:build linux

package endurance

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// opener opens sockets of one kind to Service web.
type opener struct {
	*sockets
	from  *lab.Host
	probe lab.Probe
}

// openers are all kinds of sockets of some clients.
func (s *sockets) openers(clients ...*lab.Host) (all []opener) {
	for _, from := range clients {
		for _, p := range longProbes() {
			all = append(all, opener{s, from, p})
		}
	}
	return all
}

// String names the sockets in messages.
func (o opener) String() string {
	name := fmt.Sprintf("%s to %s/%s", o.from.Name(), o.probe.To, o.probe.Protocol)
	if o.probe.Unconnected {
		name += " unconnected"
	}
	return name
}

// open opens a socket, and returns the index of the pod that answers.
func (o opener) open() (*lab.Flow, int) {
	o.Helper()
	f, r := o.from.Open(o.probe)
	if f != nil && o.probe.Protocol == lab.UDP {
		r = f.Ask(nil)
	}
	i := slices.IndexFunc(o.pods[:], func(pod *lab.Host) bool { return r.Backend.Addr() == pod.Addr(o.probe.To.Addr()) })
	if r.Outcome != lab.Answered || i < 0 {
		o.Fatalf("%s: %s", o, r)
	}
	return f, i
}

// spread opens n sockets, one after another, and counts the answers of each pod.
func (o opener) spread(n int) (count [3]int) {
	o.Helper()
	for range n {
		f, i := o.open()
		f.Close()
		count[i]++
	}
	return count
}

// chances returns the output of explain: the chance of each pod, and the reason.
func (o opener) chances() (chance [3]float64, why string) {
	o.Helper()
	from := "node"
	if o.from != o.lab.NodeA {
		from = o.from.Addr(o.probe.To.Addr()).String()
	}
	out, status := o.runSluice("explain", from, fmt.Sprint(o.probe.To, "/", o.probe.Protocol), "--output=json")
	var answer explain.Answer
	if err := json.Unmarshal([]byte(out), &answer); err != nil || status != 0 || len(answer.Cases) != 1 ||
		len(answer.Cases[0].Backends) != 3 {
		o.Fatalf("%s: explain exits with %d: %s", o, status, out)
	}
	for _, b := range answer.Cases[0].Backends {
		at := netip.MustParseAddrPort(b.Address).Addr()
		p, err := lab.Chance(b.Chance)
		o.must(err)
		chance[slices.IndexFunc(o.pods[:], func(pod *lab.Host) bool { return at == pod.Addr(at) })] = p
	}
	return chance, answer.Cases[0].Why
}

// checkSpread opens n sockets, and compares how often each pod answers with the chances that explain gives. A chance
// of 0 or 1 is exact; any other check fails by chance with a probability below 1e-10 (lab.Bounds), all of one test in
// less than one of a million runs.
func (o opener) checkSpread(n int) (count [3]int, chance [3]float64) {
	o.Helper()
	chance, why := o.chances()
	count = o.spread(n)
	for i, p := range chance {
		if lo, hi := lab.Bounds(n, p); count[i] < lo || count[i] > hi {
			o.Errorf("%s: the pods get %v of %d connections, but explain says %.3f: %s", o, count, n, chance, why)
			break
		}
	}
	return count, chance
}

// annotate replaces the annotations of Service web, and waits until a command shows that they are in force.
func (s *sockets) annotate(annotations object, pattern string, args ...string) {
	s.Helper()
	s.writeWeb(annotations, 0, 1, 2)
	s.shows(pattern, args...)
}

// writeWeb replaces Service web and its endpoints.
func (s *sockets) writeWeb(annotations object, pods ...int) {
	s.Helper()
	objects := withUDP(web(pods...))
	objects[0].(object)["metadata"].(object)["annotations"] = annotations
	s.write("web.json", objects)
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

// weights returns the weights of the pods by address, in both families.
func weights(of ...int) string {
	var list []string
	for i, w := range of {
		a := harness.PodAddr(i)
		list = append(list, fmt.Sprintf("%s=%d", a, w), fmt.Sprintf("%s=%d", lab.Analog(a), w))
	}
	return strings.Join(list, ", ")
}

const (
	annotationWeights   = "sluice-proxy.github.io/weights"
	annotationScheduler = "sluice-proxy.github.io/scheduler"
	annotationSlowStart = "sluice-proxy.github.io/slow-start"
)

// Annotations of a Service govern all kinds of sockets, of the node and of a pod, and get backends, top, explain and
// the metrics agree with them.
func TestAnnotationsGovernSockets(t *testing.T) {
	t.Parallel()
	s := newSockets(t, "ebpf")
	all := s.openers(s.lab.NodeA, s.client)
	const n = 300
	opened, before := 0, s.atSockets()
	s.shows(`program sluice_connect4 -> map frontends -> map slots`, "explain", "node", webIP4+":80")
	for _, c := range []struct {
		annotations object
		shows       string // by get backends
		chance      [3]float64
	}{
		{nil, `10\.180\.1\.1:80 .* random +1 `, [3]float64{0.333, 0.333, 0.333}},
		{object{annotationWeights: weights(0, 3, 1)}, `10\.180\.1\.1:80 .* random +0 `, [3]float64{0, 0.75, 0.25}},
	} {
		s.annotate(c.annotations, c.shows, "get", "backends", "web")
		for _, o := range all {
			_, chance := o.checkSpread(n)
			for i := range chance {
				if d := chance[i] - c.chance[i]; d < -0.001 || d > 0.001 {
					t.Errorf("%v, %s: explain says %.3f, want %.3f", c.annotations, o, chance, c.chance)
				}
			}
			opened += n
		}
	}

	s.annotate(object{annotationScheduler: "maglev", annotationWeights: weights(0, 2, 1)},
		`10\.180\.1\.1:80 .* maglev +0 `, "get", "backends", "web")
	opened += s.checkMaglev(all)
	s.annotate(object{annotationScheduler: "lc", annotationWeights: weights(0, 2, 1)},
		`10\.180\.1\.1:80 .* lc +0 `, "get", "backends", "web")
	s.waitMetric(`sluice_ebpf_map_entries{map="loads"}`, "12") // until then sockets choose by chance
	for _, o := range all {
		opened += o.checkLeast()
	}
	s.annotate(object{annotationScheduler: "lc"}, `10\.180\.1\.1:80 .* lc +1 `, "get", "backends", "web")
	opened += all[0].checkEven()
	if counted := s.atSockets() - before; counted != opened {
		t.Errorf("the metric counts %d connections, want %d", counted, opened)
	}
}

// checkMaglev verifies that all connections of a client go to one pod, the one that explain names. It adds clients,
// so that each pod has some, except the one of weight 0. It returns how many connections it has made.
func (s *sockets) checkMaglev(all []opener) (opened int) {
	s.Helper()
	for i := range 5 {
		a := netip.AddrFrom4([4]byte{10, 180, 0, byte(50 + i)})
		client := s.lab.Pod(s.lab.NodeA, a.String(), lab.Analog(a).String())
		s.awaitPod(s.bpf, client)
		all = append(all, s.openers(client)...)
	}
	const n = 5
	var sum [3]int
	for _, o := range all {
		count, _ := o.checkSpread(n)
		if slices.Max(count[:]) != n {
			s.Errorf("%s: by Maglev the pods get %v of %d, want one to get all", o, count, n)
		}
		for i := range sum {
			sum[i] += count[i]
		}
	}
	if sum[0] > 0 || sum[1] == 0 || sum[2] == 0 {
		s.Errorf("with weights 0, 2 and 1 the pods of several clients get %v", sum)
	}
	return n * len(all)
}

// checkLeast opens sockets that stay open: a pod of weight 2 gets about twice as many as one of weight 1. Connections
// that are opened while others are counted may count twice until the next count. It returns how many sockets it has
// opened.
func (o opener) checkLeast() (opened int) {
	o.Helper()
	var count [3]int
	for range 12 {
		f, i := o.open()
		defer f.Close()
		count[i]++
	}
	if count[0] > 0 || !o.probe.Unconnected && (count[1] < 6 || count[1] > 10) {
		o.Errorf("%s: by least connections the pods get %v, want about [0 8 4]", o, count)
	}
	if o.from == o.lab.NodeA && o.probe.Protocol == lab.TCP && o.probe.To.Addr().Is4() {
		o.shows(fmt.Sprintf(`10\.180\.1\.2:80 .* lc +2 +%d `, count[1]), "get", "backends", "web")
		o.shows(fmt.Sprintf(`10\.180\.1\.3:80 .* lc +1 +%d `, count[2]), "get", "backends", "web")
	}
	return 12
}

// checkEven opens a socket that stays open, and others that are closed at once: all pods get about as many. It
// returns how many sockets it has opened.
func (o opener) checkEven() (opened int) {
	o.Helper()
	const n = 600
	f, busy := o.open()
	defer f.Close()
	o.shows(fmt.Sprintf(`10\.180\.1\.%d:80 .* lc +1 +1 `, busy+1), "get", "backends", "web")
	o.shows(`web +[^ ]*80/tcp +0\.0 +1 `, "top", "web", "--interval=100ms")
	count := o.spread(n)
	for _, c := range count {
		if c < n/4 || c > n/2 {
			o.Errorf("%s: by least connections the pods get %v of %d that were closed at once, want about as many each",
				o, count, n)
			break
		}
	}
	return n + 1
}
