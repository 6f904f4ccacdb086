//go:build linux

package main

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// Round robin gives every backend the same share, and so the slow one as well; least connections gives it less.
func TestSlowBackend(t *testing.T) {
	kerneltest.NeedIPVS(t)
	h, err := newHost(t.Context())
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
