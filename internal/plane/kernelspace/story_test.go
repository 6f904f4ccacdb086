package kernelspace

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
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
	s := &story{
		TB: t, subject: newSubject(hns.L2Bridge, kind), store: preserving(false, false), compiler: route.NewCompiler(o),
	}
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

// If HNS does not have a load balancer as it was written, each comparison deletes and creates it. A problem is
// reported once, and a restart changes nothing.
func TestSettingsInAnotherForm(t *testing.T) {
	s := newStory(t, func(f *hnstest.Fake) {
		f.Normalize = func(l hns.LoadBalancer) hns.LoadBalancer {
			l.Other = l.Port == 30080
			return l
		}
	})
	s.compared()
	for range 2 {
		want := []string{"delete invalid IP protocol 6 port 30080", "create invalid IP protocol 6 port 30080"}
		if writes := placesOf(s.compared()); !slices.Equal(writes, want) {
			t.Errorf("%q, want %q", writes, want)
		}
	}
	s.settled()
	s.only("load balancers are not as Sluice wrote them")
}

// Whatever HNS does with a change in place, the next comparison deletes and creates the load balancers that are not
// as they were written.
func TestChangesInPlaceThatFail(t *testing.T) {
	for name, tc := range map[string]struct {
		kind func(*hnstest.Fake)
		err  error // of the change
	}{
		"no effect": {func(f *hnstest.Fake) { f.StuckModify = true }, nil}, // kubernetes/kubernetes#131466
		"not implemented": {func(f *hnstest.Fake) {
			f.Refuse = func(line string) error {
				if strings.HasPrefix(line, "modify ") {
					return hns.ErrNotImplemented
				}
				return nil
			}
		}, hns.ErrNotImplemented},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t, tc.kind)
			s.compared()
			s.backends(8081, "10.180.0.1", "10.180.1.1")
			change, _ := s.compiler.Compile(s.store.Take())
			if err := s.plane.Plan(change).Apply(t.Context()); !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			writes := s.compared()
			if len(writes) != 8 || !allBegin(writes[:4], "delete ") || !allBegin(writes[4:], "create ") {
				t.Errorf("the comparison: %q, want four load balancers deleted and created", writes)
			}
			s.settled()
			s.quiet()
			s.only("load balancers are not as Sluice wrote them")
		})
	}
}

// A backend of this node that HNS does not have yet has no load balancer replaced.
func TestABackendThatHNSDoesNotHave(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.compared()
	s.backends(8080, "10.180.0.1", "10.180.0.2", "10.180.0.254", "10.180.1.1")
	if writes := s.changed(); len(writes) > 0 {
		t.Errorf("nothing can be changed yet: %q", writes)
	}
	s.compared()
	s.backends(8080, "10.180.0.254")
	s.changed()
	change, _ := s.compiler.Compile(s.store.Take())
	if err := s.plane.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if plan := s.plane.Plan(route.Change{Table: change.Table}); plan.Steps() > 0 {
		t.Errorf("a comparison would write what it cannot write yet:\n%s", plan)
	}
	s.backends(8080, "10.180.0.1", "10.180.0.2", "10.180.0.254", "10.180.1.1")
	s.compared()
	s.addPod(t, "10.180.0.254")
	if writes := s.compared(); len(writes) != 4 || !allBegin(writes, "modify ") {
		t.Errorf("with the endpoint: %q", writes)
	}
	if len(s.reported) > 0 {
		t.Errorf("%q", s.reported)
	}
}

// The endpoint of a container is created again: the next change reads the endpoints, and succeeds.
func TestTheEndpointOfAContainerIsCreatedAgain(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.compared()
	s.fake.KillEndpoint(s.idOf(t, "10.180.0.2"))
	s.addPod(t, "10.180.0.2")
	s.backends(8080, "10.180.0.2", "10.180.1.1")
	if writes := s.changed(); len(writes) != 4 || !allBegin(writes, "modify ") {
		t.Errorf("%q", writes)
	}
	s.checkWeb(2)
	s.quiet()
}

// A backend that ends after a change in place has no load balancer replaced.
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
