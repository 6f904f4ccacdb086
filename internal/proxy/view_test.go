package proxy

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// view returns a View of the loop.
func (w *testLoop) view() View {
	w.t.Helper()
	v, err := w.loop.View(w.t.Context())
	if err != nil {
		w.t.Error(err)
	}
	return v
}

func (w *testLoop) compare(why Cause) {
	w.t.Helper()
	if err := w.loop.Compare(w.t.Context(), why); err != nil {
		w.t.Error(err)
	}
}

func TestViewWhileTheLoopWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		if v := w.view(); v.Started || v.Writes != 0 || v.Err != nil {
			t.Errorf("before the store is complete: %+v", v)
		}
		w.setService("a", 1)
		w.listed()
		synctest.Wait()
		if v := w.view(); !v.Started || v.Writes != 1 || v.Routes.Len() != 1 || v.Pending.Len() != 0 {
			t.Errorf("after the first write: %+v", v)
		}
		broken := errors.New("no memory")
		w.plane.applyErrs = []error{broken}
		w.setService("b", 1)
		synctest.Wait()
		v := w.view() // between two attempts
		if !errors.Is(v.Err, broken) || v.Pending.Len() != 1 || v.Writes != 2 {
			t.Errorf("after a write that failed: %+v", v)
		}
	})
}

// The time in which the loop returns a View does not depend on the number of Services in
// the kernel, pending or refused.
func TestViewTakesConstantTime(t *testing.T) {
	cost := func(n int) float64 {
		l := New(Options{Compiler: route.NewCompiler(route.Options{})})
		store, refused := cluster.NewStore(), plane.Refused{}
		for i := range n {
			store.SetService(&cluster.Service{
				Name:       cluster.Name{Namespace: "default", Name: strconv.Itoa(i)},
				ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
				Ports:      []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
			})
			refused[cluster.Name{Namespace: "default", Name: strconv.Itoa(i)}] = errors.New("no such match")
		}
		change, _ := l.opt.Compiler.Compile(store.Take())
		l.remember(change)
		l.refused.services = refused
		go func() {
			for do := range l.requests {
				do()
			}
		}()
		defer close(l.requests)
		return testing.AllocsPerRun(100, func() {
			v, err := l.View(t.Context())
			if err != nil || v.Routes.Len() != n || v.Pending.Len() != n || len(v.Refused) != n {
				t.Fatalf("%d Services, %d pending, %d refused, %v; want %d of each", v.Routes.Len(), v.Pending.Len(),
					len(v.Refused), err, n)
			}
		})
	}
	if few, many := cost(10), cost(10_000); few != many {
		t.Errorf("a View takes %v allocations with 10 Services and %v with 10,000, want as many", few, many)
	}
}

// A View does not change while the loop continues.
func TestAViewDoesNotChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.listed()
		synctest.Wait()
		w.plane.applyErrs = []error{errors.New("no memory")}
		w.setService("b", 1)
		w.deleteService("a")
		synctest.Wait()
		v := w.view()
		w.advance(time.Minute)
		if now := w.view(); now.Pending.Len() != 0 {
			t.Fatalf("%d Services are pending after a minute", now.Pending.Len())
		}
		a, b := cluster.Name{Namespace: "default", Name: "a"}, cluster.Name{Namespace: "default", Name: "b"}
		if v.Pending.Len() != 2 || v.Pending.Of(a).Old == nil || v.Pending.Of(b).New == nil {
			t.Errorf("pending: %v, %v; want a deleted and b added", v.Pending.Of(a), v.Pending.Of(b))
		}
		if v.Routes.Service(a) != nil || v.Routes.Service(b) == nil || v.Routes.Len() != 1 {
			t.Errorf("%d Services, want b only", v.Routes.Len())
		}
	})
}

func TestViewAfterTheEndOfTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.stop()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.loop.View(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want the deadline", err)
		}
	})
}

// A comparison on request is made at once, and repairs.
func TestComparisonOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.listed()
		w.wantOps("refresh\napply +a")
		delete(w.plane.kernel, "a")
		began := time.Now()
		w.compare(ForeignEdit)
		w.wantOps("refresh\napply +a")
		if waited := time.Since(began); waited != 0 {
			t.Errorf("repaired after %v, want at once", waited)
		}
		w.compare(Request)
		w.wantOps("refresh\napply ")
		var causes []Cause
		for _, s := range w.syncs {
			causes = append(causes, s.Cause)
		}
		if r := w.follower.repaired; len(r) != 1 || r[0] != 1 {
			t.Errorf("followers were notified of repairs with %v Services, want one with 1", r)
		}
		if len(causes) != 3 || causes[0] != Start || causes[1] != ForeignEdit || causes[2] != Request {
			t.Errorf("causes %q", causes)
		}
	})
}

// Incomplete data is not written on request either.
func TestNoComparisonBeforeTheStoreIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.compare(Request)
		w.wantOps("refresh")
		w.listed()
		w.wantOps("refresh\napply +a")
	})
}

func TestWrittenChangesAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.listed()
		synctest.Wait()
		if b := w.store.Backlog(); !b.Empty() {
			t.Errorf("after a write the backlog is %+v, want none", b)
		}
		w.plane.applyErrs = []error{errors.New("no memory")}
		since := time.Now()
		w.setService("b", 1)
		synctest.Wait()
		if b := w.store.Backlog(); !b.Since.Equal(since) || b.Services != 1 {
			t.Errorf("after a failed write the backlog is %+v, want one Service since %v", b, since)
		}
		w.advance(10 * time.Millisecond)
		w.setService("c", 1)
		w.advance(firstRetry)
		synctest.Wait()
		last := w.syncs[len(w.syncs)-1]
		if !last.In.Since.Equal(since) || last.In.Services != 2 || last.Cause != Failure {
			t.Errorf("the successful write marked %+v (%s), want both Services since %v", last.In, last.Cause, since)
		}
		// Changes without an effect are not in the backlog.
		w.plane.takeOps()
		release := w.blockWrite()
		w.store.SetLocalAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
		w.deleteService("missing")
		w.setService("d", 1)
		w.deleteService("d")
		release()
		synctest.Wait()
		if b := w.store.Backlog(); !b.Empty() {
			t.Errorf("the backlog is %+v, want none", b)
		}
		if n := w.store.Totals(); n != (cluster.Totals{Services: 7}) {
			t.Errorf("received %+v, want 7 Services", n)
		}
	})
}
