package source

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/route"
)

func TestEachProblemIsReportedOnce(t *testing.T) {
	a := route.Problem{Object: "Service default/web", Field: "spec.type", Reason: "unknown"}
	b := route.Problem{Object: "Service default/web", Field: "spec.ports[0]", Reason: "unknown"}
	steps := []struct {
		name     string
		object   string
		problems []route.Problem
		want     []route.Problem
	}{
		{"new", "web", []route.Problem{a}, []route.Problem{a}},
		{"again", "web", []route.Problem{a}, nil},
		{"one more", "web", []route.Problem{b, a}, []route.Problem{b}},
		{"one less", "web", []route.Problem{b}, nil},
		{"another object", "db", []route.Problem{a}, []route.Problem{a}},
		{"again after it was gone", "web", []route.Problem{a, b}, []route.Problem{a}},
		{"twice in one list", "twice", []route.Problem{b, b}, []route.Problem{b}},
		{"none", "web", nil, nil},
		{"again after all were gone", "web", []route.Problem{a}, []route.Problem{a}},
	}
	var reported []route.Problem
	r := NewReporter(func(p []route.Problem) { reported = append(reported, p...) })
	for _, s := range steps {
		reported = nil
		r.Set(s.object, s.problems)
		if d := cmp.Diff(s.want, reported); d != "" {
			t.Errorf("%s (-want +got):\n%s", s.name, d)
		}
	}
}

func TestAReporterWithoutReceiver(t *testing.T) {
	r := NewReporter(nil)
	r.Set("web", []route.Problem{{Reason: "x"}})
	if r.Count() != 1 {
		t.Error("the problem was not kept")
	}
	r.Set("web", nil)
	if r.Count() != 0 {
		t.Error("an object without problems is kept")
	}
}
