package watch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/eject"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

var (
	web   = cluster.Name{Namespace: "shop", Name: "web"}
	other = cluster.Name{Namespace: "evil", Name: "other"}
)

func addr(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// world is a Part with a table in memory.
type world struct {
	t     *testing.T
	part  *Part
	table *table

	mu      sync.Mutex
	shares  map[cluster.Name]cluster.Shares
	saved   Saved
	changes int
	errs    []error
}

// table is a conntrack table in memory.
type table struct {
	mu      sync.Mutex
	entries []conntrack.Entry
	refused []conntrack.Entry
	lists   int
	err     error
}

func (f *table) Each(_ context.Context, filter conntrack.Filter, fn func(conntrack.Entry) error) error {
	f.mu.Lock()
	f.lists++
	entries, err := append([]conntrack.Entry(nil), f.entries...), f.err
	f.mu.Unlock()
	for _, e := range entries {
		if err == nil && filter.Match(e) {
			err = fn(e)
		}
	}
	return err
}

func (f *table) Get(_ context.Context, e conntrack.Entry) (conntrack.Entry, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, now := range f.entries {
		if now.ID == e.ID {
			return now, true, nil
		}
	}
	return conntrack.Entry{}, false, nil
}

func (f *table) SubscribeRefused(context.Context) (func() ([]conntrack.Entry, error), error) {
	return func() ([]conntrack.Entry, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		refused := f.refused
		f.refused = nil
		return refused, nil
	}, nil
}

// connect adds a connection of a client to a backend through a frontend, and returns its ID.
func (f *table) connect(client int, to, backend string, status conntrack.Status) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := uint32(len(f.entries) + 1)
	e := entry(client, to, backend, id)
	e.Status |= status
	f.entries = append(f.entries, e)
	return id
}

func entry(client int, to, backend string, id uint32) conntrack.Entry {
	src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(client)}), uint16(1024+id))
	e := conntrack.Entry{
		Protocol: conntrack.TCP, OrigSrc: src, OrigDst: addr(to), ReplySrc: addr(backend), ReplyDst: src,
		State: conntrack.SynSent, ID: id,
	}
	if to != backend {
		e.Status |= conntrack.DstNAT
	}
	return e
}

// refuse ends a connection with a reset.
func (f *table) refuse(e conntrack.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = append(f.refused, e)
}

// answer marks a connection as answered.
func (f *table) answer(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries[id-1].Status |= conntrack.Answered
}

func newWorld(t *testing.T, before Saved) *world {
	w := &world{t: t, table: &table{}, shares: map[cluster.Name]cluster.Shares{}}
	w.part = New(Options{
		Table: w.table, Before: before, CPU: func() time.Duration { return 0 },
		Shares: func(name cluster.Name, s cluster.Shares) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.shares[name] = s
		},
		Changed: func(Change) { w.mu.Lock(); defer w.mu.Unlock(); w.changes++ },
		Save:    func(s Saved) { w.mu.Lock(); defer w.mu.Unlock(); w.saved = s },
		Failed:  func(err error) { w.mu.Lock(); defer w.mu.Unlock(); w.errs = append(w.errs, err) },
	})
	return w
}

// run starts the Part for the rest of a bubble.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.part.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
}

// service returns a Service with ejection at 10.96.0.last, with three backends at 10.0.last.
func service(name cluster.Name, last byte, on cluster.Ejection) *route.Service {
	p := route.Port{Protocol: cluster.TCP, Family: route.IPv4, Ejection: on}
	p.Frontends = []route.Frontend{
		{Kind: route.ClusterIP, Addr: netip.AddrFrom4([4]byte{10, 96, 0, last}), Port: 80},
		{Kind: route.NodePort, Port: 30000 + uint16(last)},
	}
	for i := range byte(3) {
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, last, 1 + i}), 8080))
	}
	return &route.Service{Name: name, Ports: []route.Port{p}}
}

func (w *world) apply(services ...*route.Service) {
	var c route.Change
	for _, s := range services {
		c.Touched = append(c.Touched, route.Touch{Name: s.Name, New: s})
	}
	w.part.Applied(c)
}

// want verifies the shares that are not whole: "10.0.1.1:8080 0".
func (w *world) want(name cluster.Name, want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var got []string
	for k, s := range w.shares[name] {
		got = append(got, fmt.Sprint(k.Backend, " ", s.Part))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Fatalf("after %s the shares of %s are %v, want %v", time.Now().Format("04:05.0"), name, got, want)
	}
}

// waitPart waits until a backend has this part of its share, and returns how long that took.
func (w *world) waitPart(name cluster.Name, backend string, part uint8) time.Duration {
	w.t.Helper()
	began := time.Now()
	for ; time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		w.mu.Lock()
		s, has := w.shares[name][cluster.ShareKey{Backend: addr(backend)}]
		w.mu.Unlock()
		if has && s.Part == part {
			return time.Since(began)
		}
	}
	w.t.Fatalf("%s has not got %d/16 within a minute", backend, part)
	return 0
}

// Unanswered SYNs eject a backend in less than three seconds. On trial it gets its part for a tenth of a second, and
// nothing while a connection waits. After an answer its share rises. Other backends of the Service, and other Services
// with the backend, are not affected.
func TestSilentBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		defer w.run()()
		w.apply(service(web, 1, route.DefaultEjection()), service(other, 1, cluster.Ejection{}))
		time.Sleep(10 * time.Second)
		w.table.connect(1, "10.96.0.1:80", "10.0.1.1:8080", 0)
		w.table.connect(2, "192.168.0.7:30001", "10.0.1.1:8080", 0)
		w.table.connect(3, "10.96.0.1:80", "10.0.1.2:8080", 0)
		time.Sleep(3 * time.Second)
		w.want(web, "10.0.1.1:8080 0")
		const silent = "10.0.1.1:8080"
		w.waitPart(web, silent, 1)
		w.table.connect(1, "10.96.0.1:80", silent, 0)
		if open := w.waitPart(web, silent, 0); open > 110*time.Millisecond {
			t.Errorf("the window of the trial was %s", open)
		}
		if out := w.waitPart(web, silent, 1); out < 10*time.Second || out > 13*time.Second {
			t.Errorf("a trial that failed was followed by another one after %s", out)
		}
		w.table.connect(1, "10.96.0.1:80", silent, conntrack.Answered)
		w.waitPart(web, silent, 4)
		time.Sleep(9 * time.Second)
		w.want(web)
		w.want(other)
		failed := w.part.Failed()[plane.Target{Protocol: cluster.TCP, Backend: addr("10.0.1.1:8080")}]
		if want := (plane.Failed{Unanswered: 3}); failed != want {
			t.Errorf("failed %+v, want %+v", failed, want)
		}
		if got, want := w.part.Counts(), (Counts{Ejections: 2}); got != want || w.changes != 2 {
			t.Errorf("%+v, %d changes, want %+v", got, w.changes, want)
		}
	})
}

// Without connections the windows of a trial become longer. A connection that is answered late is a success.
func TestTrialsWithoutTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silent = "10.0.1.1:8080"
		w := newWorld(t, Saved{{
			Namespace: web.Namespace, Service: web.Name, Backend: addr(silent),
			State: eject.State{Phase: eject.Ejected, Times: 1, Since: time.Now(), Next: time.Now()},
		}})
		defer w.run()()
		w.apply(service(web, 1, route.DefaultEjection()))
		for before := time.Duration(0); before < 10*time.Second; {
			w.waitPart(web, silent, 1)
			open := w.waitPart(web, silent, 0)
			if open <= before {
				t.Fatalf("after a window of %s there was one of %s", before, open)
			}
			before = open
		}
		id := w.table.connect(1, "10.96.0.1:80", silent, 0)
		time.Sleep(time.Second)
		w.want(web, silent+" 0")
		w.table.answer(id)
		if after := w.waitPart(web, silent, 4); after > time.Second {
			t.Errorf("it was answered %s before", after)
		}
	})
}

// Connections that succeed in between keep a backend in, and so does one that is answered late.
func TestSuccessesInBetween(t *testing.T) {
	for name, succeed := range map[string]func(w *world, first uint32){
		"others":    func(w *world, _ uint32) { w.table.connect(9, "10.96.0.1:80", "10.0.1.1:8080", conntrack.Answered) },
		"the first": func(w *world, first uint32) { w.table.answer(first) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				defer w.run()()
				w.apply(service(web, 1, route.DefaultEjection()))
				time.Sleep(10 * time.Second)
				for client := range 20 {
					id := w.table.connect(client, "10.96.0.1:80", "10.0.1.1:8080", 0)
					time.Sleep(2 * time.Second)
					succeed(w, id)
					time.Sleep(2 * time.Second)
					w.want(web)
				}
			})
		})
	}
}

// Resets count only for the Service that the client used. So failures that a tenant causes at its own
// Service do not eject backends of other Services, and no more of its own than the limit.
func TestRefusalsCountForTheirService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		stop := w.run()
		tenant := service(other, 2, route.DefaultEjection())
		victim := service(web, 1, route.DefaultEjection())
		tenant.Ports[0].Cluster = append(tenant.Ports[0].Cluster, victim.Ports[0].Cluster...)
		w.apply(victim, tenant)
		time.Sleep(10 * time.Second)
		for i := range 3000 {
			for _, b := range []string{"10.0.2.1:8080", "10.0.1.1:8080", "10.0.1.2:8080", "10.0.1.3:8080"} {
				w.table.refuse(entry(i%250, "10.96.0.2:80", b, 0))
			}
		}
		time.Sleep(5 * time.Second)
		w.want(web)
		w.mu.Lock()
		if got := len(w.shares[other]); got != 1 {
			t.Errorf("the tenant has %d ejected backends of 6, want 1", got)
		}
		w.mu.Unlock()
		stop()
	})
}

// Ejections survive a restart, except those of deleted backends. Removing the annotation ends all ejections at once.
func TestStateOutlivesTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		stop := w.run()
		w.apply(service(web, 1, route.DefaultEjection()))
		time.Sleep(10 * time.Second)
		for client := range 3 {
			w.table.connect(client, "10.96.0.1:80", "10.0.1.1:8080", 0)
		}
		time.Sleep(3 * time.Second)
		w.want(web, "10.0.1.1:8080 0")
		stop()

		gone := w.saved[0]
		gone.Backend = addr("10.0.9.9:8080")
		next := newWorld(t, append(w.saved, gone).Valid(time.Now()))
		if n := len(next.shares[web]); n != 2 {
			t.Errorf("before the first change there are %d shares, want 2", n)
		}
		defer next.run()()
		next.apply(service(web, 1, route.DefaultEjection()))
		next.want(web, "10.0.1.1:8080 0")
		next.apply(service(web, 1, cluster.Ejection{}))
		next.want(web)
		if len(next.saved) != 0 {
			t.Errorf("saved %v", next.saved)
		}
	})
}

// An endpoint that was deleted or not ready is In when it is back.
func TestAReplacedBackendIsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		w := newWorld(t, Saved{{
			Namespace: web.Namespace, Service: web.Name, Backend: addr("10.0.1.1:8080"),
			State: eject.State{Phase: eject.Ejected, Times: 1, Since: now, Next: now.Add(5 * time.Second)},
		}})
		defer w.run()()
		w.apply(service(web, 1, route.DefaultEjection()))
		w.want(web, "10.0.1.1:8080 0")
		without := service(web, 1, route.DefaultEjection())
		without.Ports[0].Cluster = without.Ports[0].Cluster[1:]
		w.apply(without)
		w.apply(service(web, 1, route.DefaultEjection()))
		w.want(web)
	})
}

// A table that cannot be read is reported once, and read again later.
func TestReadErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.table.err = errors.New("not permitted")
		defer w.run()()
		time.Sleep(time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.table.mu.Lock()
		defer w.table.mu.Unlock()
		if len(w.errs) != 1 || w.table.lists < 10 || w.table.lists > 15 {
			t.Errorf("%d errors, %d listings in a minute", len(w.errs), w.table.lists)
		}
	})
}
