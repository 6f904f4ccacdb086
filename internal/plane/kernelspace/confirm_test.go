package kernelspace

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/kernel/hns/hnstest"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

// story is a plane, an HNS, and Services that change.
type story struct {
	testing.TB
	*subject
	store    *cluster.Store
	compiler *route.Compiler
	plane    *Plane
	reported []string
}

// newStory begins with a Service whose backends are two addresses of this node and one of another node.
func newStory(t testing.TB, kind func(*hnstest.Fake)) *story {
	t.Helper()
	o := options()
	o.NodeName = "a"
	s := &story{TB: t, subject: newSubject(hns.L2Bridge, kind), store: preserving(false, false), compiler: route.NewCompiler(o)}
	s.restart()
	s.backends(8080, "10.180.0.1", "10.180.0.2", "10.180.1.1")
	return s
}

// restart continues with a new plane that remembers nothing.
func (s *story) restart() {
	opt := s.options()
	opt.Report = func(list []route.Problem) {
		for _, p := range list {
			s.reported = append(s.reported, p.Reason)
		}
	}
	s.plane = New(s.fake, opt)
}

// backends replaces the backends of the Service.
func (s *story) backends(port uint16, addrs ...string) {
	slice := &cluster.Slice{
		Name: cluster.Name{Namespace: "ns", Name: "web-1"}, Service: cluster.Name{Namespace: "ns", Name: "web"},
		Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: port}},
	}
	for _, a := range addrs {
		node := "b"
		if strings.HasPrefix(a, "10.180.0.") {
			node = "a"
		}
		slice.Endpoints = append(slice.Endpoints, planetest.Endpoint(a, node))
	}
	s.store.SetSlice(slice)
}

// changed writes the change of Services since the last one, and returns the writes.
func (s *story) changed() []string {
	s.Helper()
	change, _ := s.compiler.Compile(s.store.Take())
	return s.writes(func() error { return s.plane.Plan(change).Apply(s.Context()) })
}

// compared compares everything with HNS, and returns the writes.
func (s *story) compared() []string {
	s.Helper()
	change, _ := s.compiler.Compile(s.store.Take())
	return s.writes(func() error {
		if err := s.plane.Refresh(s.Context()); err != nil {
			return err
		}
		return s.plane.Plan(route.Change{Table: change.Table}).Apply(s.Context())
	})
}

func (s *story) writes(do func() error) []string {
	s.Helper()
	before := len(s.fake.Written())
	if err := do(); err != nil {
		s.Fatal(err)
	}
	return s.fake.Written()[before:]
}

// quiet verifies that comparisons write nothing.
func (s *story) quiet() {
	s.Helper()
	for range 3 {
		if writes := s.compared(); len(writes) > 0 {
			s.Fatalf("a comparison with nothing to do writes\n%s", strings.Join(writes, "\n"))
		}
	}
}

// settled verifies that HNS has what a new plane would write into an empty one.
func (s *story) settled() {
	s.Helper()
	change, _ := s.compiler.Compile(s.store.Take())
	fresh := newSubject(s.network, func(*hnstest.Fake) {})
	write(s.TB, New(fresh.fake, s.options()), route.Change{Table: change.Table})
	normalize := s.fake.Normalize
	s.fake.Normalize = nil
	got, err := s.state(nil)
	s.fake.Normalize = normalize
	if err != nil {
		s.Fatal(err)
	}
	want, err := fresh.state(nil)
	if err != nil {
		s.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Error(diff)
	}
}

// only verifies that one problem was reported, which contains a text.
func (s *story) only(text string) {
	s.Helper()
	if len(s.reported) != 1 || !strings.Contains(s.reported[0], text) {
		s.Errorf("%q, want one problem with %q", s.reported, text)
	}
}

// allBegin reports whether there are lines and all begin with a word.
func allBegin(lines []string, word string) bool {
	return len(lines) > 0 && !slices.ContainsFunc(lines, func(l string) bool { return !strings.HasPrefix(l, word) })
}

// otherForm is an HNS that returns settings otherwise than they were written.
func otherForm(f *hnstest.Fake) {
	f.Normalize = func(l hns.LoadBalancer) hns.LoadBalancer {
		if !l.SourceVIP.IsValid() {
			l.SourceVIP = netip.MustParseAddr("192.168.0.2")
		}
		l.Flags.LocalRouted, l.Flags.Affinity, l.Other = false, false, true
		return l
	}
}

// HNS may return settings in another form than they were written. The plane finds that out with the first load balancer
// that it creates, says so once, and does not write them again and again. It notices when another program changes one.
func TestSettingsInAnotherForm(t *testing.T) {
	s := newStory(t, otherForm)
	s.compared()
	s.quiet()
	s.only("in another form")

	s.backends(8080, "10.180.0.1", "10.180.1.1")
	if writes := s.changed(); !allBegin(writes, "modify ") {
		t.Errorf("%q", writes)
	}
	s.quiet()
	s.settled()

	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	edited := list[0]
	edited.Flags.External = !edited.Flags.External
	if err := s.fake.ModifyLoadBalancer(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	if writes := s.compared(); len(writes) != 1 || !strings.HasPrefix(writes[0], "modify ") {
		t.Errorf("after an edit by another program: %q", writes)
	}
	s.quiet()
	s.settled()
	s.only("in another form")
}

// After a restart the form of what an earlier run wrote is not known: each load balancer is made anew once.
func TestSettingsInAnotherFormAfterARestart(t *testing.T) {
	s := newStory(t, otherForm)
	s.compared()
	s.restart()
	if writes := s.compared(); !allBegin(writes, "modify ") {
		t.Errorf("first comparison: %q", writes)
	}
	if writes := s.compared(); len(writes) != 10 {
		t.Errorf("second comparison: %q, want five load balancers deleted and created", writes)
	}
	s.quiet()
	s.settled()
	if slices.ContainsFunc(s.reported[1:], func(text string) bool { return strings.Contains(text, "131466") }) {
		t.Errorf("%q", s.reported)
	}
}

// A reader, which prints the difference to HNS, knows the form as well.
func TestReaderKnowsTheForm(t *testing.T) {
	s := newStory(t, otherForm)
	setup, _ := setup(config.HNS{Network: networkName})
	opened, err := Kind(s.fake, thisHost{}).Open(t.Context(), setup)
	if err != nil {
		t.Fatal(err)
	}
	change, _ := s.compiler.Compile(s.store.Take())
	for range 2 {
		apply(t, opened.Plane, route.Change{Table: change.Table})
	}
	reader, end, err := opened.Reader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if err := reader.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if plan := reader.Plan(route.Change{Table: change.Table}); plan.Steps() > 0 {
		t.Errorf("the reader finds a difference:\n%s", plan)
	}
}

// If changes in place are not implemented, though the version of HNS should have them, load balancers are made anew, and no
// Service is refused.
func TestChangesInPlaceAreMissing(t *testing.T) {
	s := newStory(t, func(f *hnstest.Fake) { f.ModifyMissing = true })
	s.compared()
	for _, addrs := range [][]string{{"10.180.0.1", "10.180.1.1"}, {"10.180.0.2", "10.180.1.1"}} {
		s.backends(8080, addrs...)
		writes := s.changed()
		if len(writes) == 0 || slices.ContainsFunc(writes, func(l string) bool { return strings.HasPrefix(l, "modify ") }) {
			t.Errorf("%q", writes)
		}
		s.settled()
		s.quiet()
	}
	s.only("E_NOTIMPL")
}

// If HNS changes the backends in place and nothing else, the next comparison makes the load balancers anew that lack something.
// Changes of backends are still made in place.
func TestChangesInPlaceInPart(t *testing.T) {
	s := newStory(t, func(f *hnstest.Fake) { f.ModifyBackendsOnly = true })
	s.compared()
	s.backends(8081, "10.180.0.1", "10.180.1.1")
	if writes := s.changed(); !allBegin(writes, "modify ") {
		t.Errorf("the change: %q", writes)
	}
	if writes := s.compared(); len(writes) != 8 {
		t.Errorf("the comparison: %q, want four load balancers created and deleted", writes)
	}
	s.settled()
	s.quiet()
	s.only("in part")
	s.backends(8081, "10.180.0.1")
	if writes := s.changed(); len(writes) != 5 || !allBegin(writes[:4], "modify ") {
		t.Errorf("a change of backends: %q, want four changes in place and the deletion of an endpoint", writes)
	}
	s.settled()
	s.only("in part")
}

// A backend of this node that HNS does not have yet is no proof that HNS ignores changes in place.
func TestABackendThatHNSDoesNotHave(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.compared()
	s.backends(8080, "10.180.0.1", "10.180.0.2", "10.180.0.254", "10.180.1.1")
	if writes := s.changed(); len(writes) > 0 {
		t.Errorf("nothing can be changed yet: %q", writes)
	}
	s.compared()
	s.addPod(t, "10.180.0.254")
	if writes := s.compared(); len(writes) != 4 || !allBegin(writes, "modify ") {
		t.Errorf("with the endpoint: %q", writes)
	}
	if len(s.reported) > 0 {
		t.Errorf("%q", s.reported)
	}
}

// A backend that ends after a change in place is no proof either.
func TestABackendThatEndsAfterAChange(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.backends(8080, "10.180.0.1", "10.180.1.1")
	s.compared()
	s.backends(8080, "10.180.0.1", "10.180.0.2", "10.180.1.1")
	s.changed()
	s.fake.KillEndpoint(s.idOf(t, "10.180.0.2"))
	s.compared()
	s.addPod(t, "10.180.0.2")
	if writes := s.compared(); len(writes) != 4 || !allBegin(writes, "modify ") {
		t.Errorf("with the endpoint made anew: %q", writes)
	}
	if len(s.reported) > 0 {
		t.Errorf("%q", s.reported)
	}
}
