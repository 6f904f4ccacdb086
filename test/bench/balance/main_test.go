//go:build linux

package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

func TestParse(t *testing.T) {
	o, err := parse([]string{"-schedulers", "rr,lc", "-requests", "100"}, io.Discard)
	if err != nil || strings.Join(o.schedulers, " ") != "rr lc" || o.requests != 100 {
		t.Errorf("got %+v, %v", o, err)
	}
	if _, err := parse([]string{"-requests", "3"}, io.Discard); err == nil {
		t.Error("three requests of 64 clients are accepted")
	}
}

// Round robin gives every backend the same share, and so the slow one as well; least connections
// gives it less.
func TestSlowBackend(t *testing.T) {
	h, err := newHost(t.Context())
	if errors.Is(err, ipvs.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	slow := func(scheduler string) float64 {
		r, err := h.measure(t.Context(), options{requests: 640}, scenarios()[1], scheduler)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.took) != 640 || r.refused != 0 || len(r.shares) != backends {
			t.Errorf("%s: %d requests, %d refused, shares %v", scheduler, len(r.took), r.refused, r.shares)
		}
		return r.shares[backends-1]
	}
	if share := slow("rr"); share != 1.0/backends {
		t.Errorf("rr gives the slow backend %.3f, want %.3f", share, 1.0/backends)
	}
	if share := slow("lc"); share > 0.7/backends {
		t.Errorf("lc gives the slow backend %.3f, want less", share)
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	r := result{
		scheduler: "rr", took: []time.Duration{time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond}, refused: 1,
		shares: []float64{0.75, 0.25}, most: 7,
	}
	if err := printTable(&b, scenario{title: "T"}, []result{r}); err != nil {
		t.Fatal(err)
	}
	if want := "\n| rr | 25.0, 75.0 | 25.0 | 7 | 2 | 3 | 3 | 25.0 |\n"; !strings.Contains(b.String(), want) {
		t.Errorf("no line %q in\n%s", want, &b)
	}
}
