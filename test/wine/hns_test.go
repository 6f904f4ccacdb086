//go:build linux

package wine_test

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/hns/hnstest"
	"github.com/sluice-proxy/sluice/test/wine"
)

// The access to HNS, with the library of Microsoft, does what the fake does.
func TestAccessToHNS(t *testing.T) {
	t.Setenv("SLUICE_TEST_HNS", "1")
	p := wine.New(t)
	p.ServeHNS(hnstest.New(hnstest.ContractNetwork()))
	r := p.Run(p.BuildTests(module+"internal/kernel/hns"), "-test.run=TestContract", "-test.v")
	if r.Code != 0 || !strings.Contains(r.Stdout, "--- PASS: TestContract") {
		t.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}
