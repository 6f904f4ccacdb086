//go:build linux

package conformance

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// setUpForSteps builds a scenario to try steps in, with the real proxy.
func setUpForSteps(t *testing.T) *env {
	t.Helper()
	return scenario{
		cluster: exposed("Cluster", "10.180.0.1 A", "10.180.1.1 B"),
		lab:     lab.Options{Timeout: time.Second},
	}.setUp(t, nftablesPlane(), translator{})
}

func TestTogetherEndsAtTheFirstFailure(t *testing.T) {
	var done []string
	does := func(name string, err error) step {
		return func(*env) error {
			done = append(done, name)
			return err
		}
	}
	want := errors.New("wrong")
	err := sequence(does("a", nil), does("b", want), does("c", nil))(nil)
	if !errors.Is(err, want) || strings.Join(done, " ") != "a b" {
		t.Errorf("did %v and said %v", done, err)
	}
	if err := sequence()(nil); err != nil {
		t.Errorf("nothing to do said %v", err)
	}
}

func TestUnbrokenDetectsGaps(t *testing.T) {
	endpoint := func(text string) step { return apply(slice("web", "80", text)) }
	local, remote := endpoint("10.180.0.1 A"), endpoint("10.180.1.1 B")
	for _, c := range []struct {
		says  string
		from  string
		steps []step
		want  string // in the error; "" for none
	}{
		{"a pod goes before the proxy stops using it", aPod, []step{local, dropNew("10.180.0.1"), connections(20), remote}, "timed out"},
		{"a pod goes after the proxy stopped using it", aPod, []step{local, remote, dropNew("10.180.0.1"), connections(20)}, ""},
		{"a pod of node B goes", aPod, []step{remote, dropNew("10.180.1.1"), connections(20)}, "timed out"},
		{"all pods go", aPod, []step{remove("EndpointSlice/web"), connections(20), local}, "refused"},
		{"a step fails", aPod, []step{remove("Service/other")}, "no Service/other"},
		{"nobody connects", "nobody", nil, "unknown host"},
	} {
		t.Run(c.says, func(t *testing.T) {
			t.Parallel()
			err := uninterrupted(c.from, inside, c.steps...)(setUpForSteps(t))
			if c.want == "" && err != nil {
				t.Errorf("unbroken returned %v", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("unbroken returned %v, want %q", err, c.want)
			}
		})
	}
}

func TestForgottenSeesMemory(t *testing.T) {
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
		t.Error("took port unreachable for another message")
	}
}
