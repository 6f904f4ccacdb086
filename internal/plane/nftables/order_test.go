package nftables

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// A first load takes three transactions: sets and ranges, which packets see late; chains and what frontends
// lead to; frontends. Later changes are written in an order.
func TestTheFirstLoadIsThreeTransactions(t *testing.T) {
	fake := nft.NewFake()
	fake.Space = 64 << 20
	load(t, fake, planetest.Compile(cluster.NewStore(), route.Options{}))
	if fake.Commits != 2 {
		t.Errorf("the first load without Services is %d transactions, want 2", fake.Commits)
	}
	fake = nft.NewFake()
	fake.Space = 64 << 20
	load(t, fake, planetest.Compile(planetest.EveryShape(), route.Options{}))
	if fake.Commits != 3 {
		t.Errorf("the first load with Services is %d transactions, want 3", fake.Commits)
	}
	small := nft.NewFake()
	small.Space = 1 << 17
	load(t, small, planetest.Compile(planetest.EveryShape(), route.Options{}))
	if small.Commits < 5 {
		t.Errorf("the first load with small transactions is %d transactions, want at least one for each phase", small.Commits)
	}
	before := fake.Commits
	load(t, fake, planetest.Compile(cluster.NewStore(), route.Options{}))
	if n := fake.Commits - before; n < 2 {
		t.Errorf("to delete everything takes %d transactions, want an order", n)
	}
}
