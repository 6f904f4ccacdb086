package nftables

import (
	"errors"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// A Service that is refused for a chain which it shares is not written in a later part of a
// first load either.
func TestRefusedInAllParts(t *testing.T) {
	const services = 20
	for _, perPart := range []int{1, 4, services} {
		table := &route.Table{Services: map[cluster.Name]*route.Service{}}
		for i := range services {
			svc := numberedService(i, 0, 1)
			if i%2 == 0 {
				affinity(svc)
			}
			table.Services[svc.Name] = svc
		}
		fake := nft.NewFake()
		fake.Refuse = refusing("update @clients")
		p := newPlane(fake, route.IPv4)
		p.perPart = perPart
		refused, is := errors.AsType[plane.Refused](apply(t, p, table))
		if !is || len(refused) != services/2 {
			t.Fatalf("parts of %d: %d Services are refused, want %d", perPart, len(refused), services/2)
		}
		if n := len(fake.Tables[bothTables[0]].Sets["fronts"].Elements); n != services/2 {
			t.Errorf("parts of %d: %d frontends, want those of the %d other Services", perPart, n, services/2)
		}
	}
}
