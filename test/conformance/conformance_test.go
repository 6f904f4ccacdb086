//go:build linux

package conformance

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

func TestConformance(t *testing.T) { Run(t, nftablesPlane()) }

func nftablesPlane() Plane {
	return Plane{
		Name: "nftables",
		Start: func(t testing.TB, host *lab.Host) plane.Plane {
			conn, err := nft.Open(nft.Options{NetNS: host.NetNSFD()})
			if err != nil {
				t.Fatalf("open nf_tables: %v", err)
			}
			t.Cleanup(func() { _ = conn.Close() }) // nothing is left to lose
			return nftables.New(conn, nftables.Options{
				Families: []route.Family{route.IPv4, route.IPv6}, Mark: 0x4000,
			})
		},
	}
}
