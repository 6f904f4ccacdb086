package relay

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// An engine that ends while clients connect leaves no connection open, also none that a loop has accepted for another
// one.
func TestEndWhileClientsConnect(t *testing.T) {
	for range 20 {
		both(t, Options{NetNS: kerneltest.Namespace(t)}, func(b *bench) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			l, _ := b.front(one(b.echo()))
			var clients sync.WaitGroup
			for range 8 {
				clients.Go(func() {
					for ctx.Err() == nil {
						if c, err := b.try(l.Addr(), time.Second); err == nil {
							b.Cleanup(func() { _ = c.Close() })
						}
					}
				})
			}
			b.Cleanup(clients.Wait)
			time.Sleep(20 * time.Millisecond)
		})
	}
}
