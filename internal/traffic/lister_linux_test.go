package traffic

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/testing/conntracktest"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// fill adds entries of clients with a hundred connections each to a kernel.
func fill(t testing.TB, k *conntracktest.Kernel, n int) {
	t.Helper()
	for i := range uint32(n) {
		e := to(client, webIP, web1)
		e.OrigSrc = netip.AddrPortFrom(addr(10<<24+i/100), uint16(1024+i%100))
		e.ReplyDst = e.OrigSrc
		if err := k.Create(e); err != nil {
			t.Fatal(err)
		}
	}
}

// A Lister counts the entries of the kernel.
func TestListingOfTheKernel(t *testing.T) {
	k := conntracktest.Open(t)
	fill(t, k, 2000)
	l := run(t, k.Table)
	got, err := l.Listing(t.Context(), services(t, []string{"web"}, web1))
	if err != nil {
		t.Fatal(err)
	}
	flows := got.Ports[named("web")]
	if flows.Entries != 2000 || flows.Live != 2000 || got.Held != 2000 || got.Limit == 0 ||
		len(got.Clients) != 20 || got.Clients[0].Entries != 100 || got.Slack != 0 {
		t.Errorf("got %+v", got)
	}
	if again, err := l.Listing(t.Context(), services(t, nil)); err == nil && again != got && time.Since(got.At) < minAge {
		t.Error("another listing was made")
	}
}

// BenchmarkKernel measures a listing of 100,000 entries.
func BenchmarkKernel(b *testing.B) {
	k := conntracktest.Open(b)
	fill(b, k, 100_000)
	l, routes := NewLister(k.Table, plane.Translated), services(b, []string{"web"}, web1)
	b.ReportAllocs()
	for b.Loop() {
		if got, err := l.list(b.Context(), routes); err != nil || got.Entries != 100_000 {
			b.Fatal(got, err)
		}
	}
}
