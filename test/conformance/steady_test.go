//go:build linux

package conformance

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// setUpForSteps sets up a scenario with the real proxy in which a test runs single steps.
func setUpForSteps(t *testing.T) *env {
	t.Helper()
	return scenario{
		cluster: exposed("Cluster", "10.180.0.1 A", "10.180.1.1 B"),
		lab:     lab.Options{Timeout: time.Second},
	}.setUpAlone(t, nftablesPlane())
}

func TestSequenceEndsAtTheFirstFailure(t *testing.T) {
	var done []string
	record := func(name string, err error) step {
		return func(*env) error {
			done = append(done, name)
			return err
		}
	}
	want := errors.New("wrong")
	err := sequence(record("a", nil), record("b", want), record("c", nil))(nil)
	if !errors.Is(err, want) || strings.Join(done, " ") != "a b" {
		t.Errorf("ran %v and returned %v", done, err)
	}
	if err := sequence()(nil); err != nil {
		t.Errorf("the empty sequence returned %v", err)
	}
}

func TestUninterruptedDetectsGaps(t *testing.T) {
	endpoint := func(text string) step { return apply(slice("web", "80", text)) }
	local, remote := endpoint("10.180.0.1 A"), endpoint("10.180.1.1 B")
	for _, c := range []struct {
		name  string
		from  string
		steps []step
		want  string // in the error; "" for none
	}{
		{
			"a pod stops before the proxy stops using it", aPod,
			[]step{local, dropNew("10.180.0.1"), connections(20), remote},
			"timed out",
		},
		{
			"a pod stops after the proxy stopped using it", aPod,
			[]step{local, remote, dropNew("10.180.0.1"), connections(20)},
			"",
		},
		{"a pod of node B stops", aPod, []step{remote, dropNew("10.180.1.1"), connections(20)}, "timed out"},
		{"the slice is deleted", aPod, []step{remove("EndpointSlice/web"), connections(20), local}, "refused"},
		{"a step fails", aPod, []step{remove("Service/other")}, "no Service/other"},
		{"no such client", "no-such-host", nil, "unknown host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := uninterrupted(c.from, inside, c.steps...)(setUpForSteps(t))
			if c.want == "" && err != nil {
				t.Errorf("uninterrupted returned %v", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("uninterrupted returned %v, want %q", err, c.want)
			}
		})
	}
}

func TestForgottenDetectsAffinity(t *testing.T) {
	e := setUpForSteps(t)
	always := []string{slice("web", "80", "10.180.0.1 A")}
	err := forgotten(aPod, inside, always, "10.180.0.1:80", "10.180.1.1:80")(e)
	if err == nil || !strings.Contains(err.Error(), "always reached") {
		t.Errorf("always the same backend: %v", err)
	}
}

func TestRefusedByDistinguishesMessages(t *testing.T) {
	e := setUpForSteps(t)
	if err := remove("EndpointSlice/web")(e); err != nil {
		t.Fatal(err)
	}
	if err := refusedBy(aPod, inside, lab.ICMP{Type: 3, Code: 3})(e); err != nil {
		t.Error(err)
	}
	if err := refusedBy(aPod, inside, lab.ICMP{Type: 3, Code: 13})(e); err == nil {
		t.Error("accepted port unreachable as another message")
	}
}
