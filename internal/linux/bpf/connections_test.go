package bpf

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/test/seeds"
)

// Of the map connections, as in sock.c.
const (
	buckets = 16384
	ways    = 4
)

// cookies gives out cookies of sockets as the kernel does (include/linux/cookie.h): each processor takes 4,096 at a
// time.
type cookies struct {
	last uint64
	next []uint64 // by processor
}

const batch = 4096

func (c *cookies) take(processor int) uint64 {
	if c.next[processor]%batch == 0 {
		c.next[processor] = c.last + 1
		c.last += batch
	}
	c.next[processor]++
	return c.next[processor] - 1
}

// However many processors a node has, and even if one of them opens nearly all sockets, 99 of 100 connections are
// remembered until 12,000 further sockets have connected, and half of them until 55,000 have.
func TestAgeOfConnections(t *testing.T) {
	seeds.Long(t)
	for processors := 2; processors <= 256; processors *= 2 {
		for name, choose := range map[string]func(int) int{
			"all alike":        rand.IntN,
			"one nearly alone": func(n int) int { return rand.IntN(n) * rand.IntN(2) * rand.IntN(2) * rand.IntN(2) },
		} {
			t.Run(fmt.Sprint(processors, " processors, ", name), func(t *testing.T) {
				c := cookies{next: make([]uint64, processors)}
				var stored [buckets][ways]int // when a connection was stored
				var next [buckets]int
				const sockets = 1 << 20
				var ages []int
				for now := 1; now <= sockets; now++ {
					at := mix(uint32(c.take(choose(processors)))) % buckets
					last := &stored[at][next[at]%ways]
					next[at]++
					if *last > 0 {
						ages = append(ages, now-*last)
					}
					*last = now
				}
				slices.Sort(ages)
				if p1, p50 := ages[len(ages)/100], ages[len(ages)/2]; p1 < 12_000 || p50 < 55_000 {
					t.Errorf("connections live until %d (p1) or %d (p50) further sockets have connected", p1, p50)
				}
			})
		}
	}
}
