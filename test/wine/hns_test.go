//go:build linux

package wine_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/test/wine"
)

// The access to HNS, with the library of Microsoft, behaves as the fake does. testdata/documents.txt has the documents
// that the library sends: of endpoints, local and remote, and of load balancers with every flag that Sluice sets, and
// of their changes. They conform to Microsoft's schema. testDocumentsOfServices has the documents of Services.
func testAccessToHNS(t *testing.T, p *wine.Prefix) {
	fake := hnstest.New(hnstest.ContractNetwork())
	p.ServeHNS(fake)
	r := p.Run(p.BuildTests(module+"internal/windows/hns"), "-test.run=TestContract", "-test.v")
	if r.Code != 0 || !strings.Contains(r.Stdout, "--- PASS: TestContract") {
		t.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, line := range fake.Documents() {
		call, document, _ := strings.Cut(line, " ")
		if err := checkDocument(call, document); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	want, err := os.ReadFile("testdata/documents.txt")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(fake.Documents(), "\n") + "\n"
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the library sends\n%s\n%s", got, diff)
	}
}
