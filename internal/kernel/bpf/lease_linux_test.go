package bpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Without a lease, the program leaves a connection to a frontend with affinity to the packet plane, and requests a lease. With one, it sends
// all connections of the client to the backend of the lease, until the lease expires or the backend is no member of the pool.
func TestLease(t *testing.T) {
	n := newNode(t)
	backends := scheduled(n, func(f *Frontend) { f.Sticky = true })
	requests := make(chan Request, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.conn.Requests(ctx, func(r Request) { requests <- r }) }()
	balanced := func() (answered string) {
		n.run(func() error {
			by, _, err := ask(vip)
			if err == nil {
				answered = by
			}
			return nil // without a lease the packet plane has the connection; this test has no packet plane
		})
		return answered
	}
	if by := balanced(); by != "" {
		t.Errorf("without a lease %s answers", by)
	}
	var r Request
	select {
	case r = <-requests:
	case <-time.After(30 * time.Second):
		t.Fatal("no request")
	}
	at := netip.MustParseAddrPort(vip)
	want := Request{LeaseKey{Pool{7}, at.Addr()}, at, unix.IPPROTO_TCP, OfNode}
	if r != want {
		t.Errorf("the request is %+v, want %+v", r, want)
	}
	for _, b := range backends {
		if err := n.conn.Lease(r.LeaseKey, netip.MustParseAddrPort(b), time.Minute); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if by := balanced(); by != b {
				t.Errorf("%q answers, want %s", by, b)
			}
		}
	}
	last := backends[len(backends)-1]
	member := Member{Pool{7, 15: 1}, netip.MustParseAddrPort(last)}.Entry()
	if err := n.conn.Write(ctx, []Step{{Entry: member, Remove: true}}); err != nil {
		t.Fatal(err)
	}
	if by := balanced(); by != "" {
		t.Errorf("%s answers, which is no member", by)
	}
	n.write(member)
	if by := balanced(); by != last {
		t.Errorf("%q answers, want %s", by, last)
	}
	if err := n.conn.Lease(r.LeaseKey, netip.MustParseAddrPort(last), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond)
	if by := balanced(); by != "" {
		t.Errorf("%s answers after the end of the lease", by)
	}
	if list, err := n.conn.Leases(); err != nil || len(list) != 1 || list[0] != r.LeaseKey {
		t.Errorf("leases %v, %v", list, err)
	}
	if err := n.conn.EndLeases([]LeaseKey{r.LeaseKey, {}}); err != nil {
		t.Error(err)
	}
	if list, err := n.conn.Leases(); err != nil || len(list) != 0 {
		t.Errorf("leases %v, %v, want none", list, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// If no process reads requests, packets serve connections. If the map of leases is full, Lease returns ErrFull.
func TestLimitsOfLeases(t *testing.T) {
	n := newNode(t)
	n.write()
	port := Pool{7}
	client := func(i int) LeaseKey {
		return LeaseKey{port, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
	}
	at := netip.MustParseAddrPort("127.0.0.1:80")
	for i := 0; ; i++ {
		err := n.conn.Lease(client(i), at, time.Minute)
		if errors.Is(err, ErrFull) {
			if i < 60_000 {
				t.Errorf("full with %d leases", i)
			}
			break
		}
		if err != nil || i > 100_000 {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	list, err := n.conn.Leases()
	if err = errors.Join(err, n.conn.EndLeases(list)); err != nil {
		t.Error(err)
	}
	if err := n.conn.Lease(client(0), at, time.Minute); err != nil {
		t.Error(fmt.Errorf("after all have ended: %w", err))
	}
}
