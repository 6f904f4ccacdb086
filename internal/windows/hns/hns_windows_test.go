package hns_test

import (
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// contractVariable is set where HNS has the network of the contract and nothing else. test/wine sets it.
const contractVariable = "SLUICE_TEST_HNS"

// The access to HNS behaves as the fake does.
func TestContract(t *testing.T) {
	if os.Getenv(contractVariable) == "" {
		t.Skip("this HNS may have networks of others; test/wine runs the test")
	}
	hnstest.Contract(t, hns.New())
}
