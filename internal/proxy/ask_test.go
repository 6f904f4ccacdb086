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

// look has the loop show what it knows.
func (w *world) look() View {
	w.t.Helper()
	v, err := w.loop.View(w.t.Context())
	if err != nil {
		w.t.Error(err)
	}
	return v
}

func (w *world) compare(why Cause) {
	w.t.Helper()
	if err := w.loop.Compare(w.t.Context(), why); err != nil {
		w.t.Error(err)
	}
}

func TestViewWhileTheLoopWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		if v := w.look(); v.Started || v.Writes != 0 || v.Err != nil {
			t.Errorf("before anything was listed: %+v", v)
		}
		w.put("a", 1)
		w.listed()
		synctest.Wait()
		if v := w.look(); !v.Started || v.Writes != 1 || v.Routes.Len() != 1 || v.Pending.Len() != 0 {
			t.Errorf("after the first write: %+v", v)
		}
		broken := errors.New("no memory")
		w.plane.refuse = []error{broken}
		w.put("b", 1)
		synctest.Wait()
		v := w.look() // between two attempts
		if !errors.Is(v.Err, broken) || v.Pending.Len() != 1 || v.Writes != 2 {
			t.Errorf("after a write that failed: %+v", v)
		}
	})
}

// A View costs the loop the same however many Services there are, in the kernel,
// pending or refused: what follows their number happens elsewhere.
func TestViewTakesConstantTime(t *testing.T) {
	cost := func(n int) float64 {
		l := New(Options{Compiler: route.NewCompiler(route.Options{})})
		store, refused := cluster.NewStore(), plane.Refused{}
		for i := range n {
			store.SetService(&cluster.Service{
				Name: cluster.Name{Namespace: "default", Name: strconv.Itoa(i)}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
				Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
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
				t.Fatalf("%d Services, %d pending, %d refused, %v; want %d of each", v.Routes.Len(), v.Pending.Len(), len(v.Refused), err, n)
			}
		})
	}
	if few, many := cost(10), cost(10_000); few != many {
		t.Errorf("a View takes %v allocations with 10 Services and %v with 10,000, want as many", few, many)
	}
}

// What a View holds stays as it was while the loop goes on.
func TestAViewDoesNotChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.listed()
		synctest.Wait()
		w.plane.refuse = []error{errors.New("no memory")}
		w.put("b", 1)
		w.remove("a")
		synctest.Wait()
		v := w.look()
		w.pass(time.Minute)
		if now := w.look(); now.Pending.Len() != 0 {
			t.Fatalf("%d Services are pending after a minute", now.Pending.Len())
		}
		a, b := cluster.Name{Namespace: "default", Name: "a"}, cluster.Name{Namespace: "default", Name: "b"}
		if v.Pending.Len() != 2 || v.Pending.Of(a).Old == nil || v.Pending.Of(b).New == nil {
			t.Errorf("pending then: %v, %v; want a to go and b to come", v.Pending.Of(a), v.Pending.Of(b))
		}
		if v.Routes.Service(a) != nil || v.Routes.Service(b) == nil || v.Routes.Len() != 1 {
			t.Errorf("%d Services then, want b alone", v.Routes.Len())
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

// What others ask for is compared at once, and repaired.
func TestComparisonOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.listed()
		w.diary("refresh\napply +a")
		delete(w.plane.kernel, "a")
		began := time.Now()
		w.compare(ForeignEdit)
		w.diary("refresh\napply +a")
		if waited := time.Since(began); waited != 0 {
			t.Errorf("repaired after %v, want at once", waited)
		}
		w.compare(Request)
		w.diary("refresh\napply ")
		var causes []Cause
		for _, s := range w.syncs {
			causes = append(causes, s.Cause)
		}
		if r := w.follower.repaired; len(r) != 1 || r[0] != 1 {
			t.Errorf("followers were told of repairs of %v Services, want one of 1", r)
		}
		if len(causes) != 3 || causes[0] != Start || causes[1] != ForeignEdit || causes[2] != Request {
			t.Errorf("causes %q", causes)
		}
	})
}

// Half a picture is not written on request either.
func TestNoComparisonBeforeTheStoreIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.compare(Request)
		w.diary("")
		w.listed()
		w.diary("refresh\napply +a")
	})
}

func TestWrittenChangesAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.listed()
		synctest.Wait()
		if b := w.store.Backlog(); !b.Empty() {
			t.Errorf("after a write %+v waits, want nothing", b)
		}
		w.plane.refuse = []error{errors.New("no memory")}
		since := time.Now()
		w.put("b", 1)
		synctest.Wait()
		if b := w.store.Backlog(); !b.Since.Equal(since) || b.Services != 1 {
			t.Errorf("after a write that failed %+v waits, want one Service since %v", b, since)
		}
		w.pass(10 * time.Millisecond)
		w.put("c", 1)
		w.pass(firstRetry)
		synctest.Wait()
		last := w.syncs[len(w.syncs)-1]
		if !last.In.Since.Equal(since) || last.In.Services != 2 || last.Cause != Failure {
			t.Errorf("the write that went well brought in %+v (%s), want both since %v", last.In, last.Cause, since)
		}
		// What comes to nothing is no backlog.
		w.plane.read()
		release := w.slow()
		w.store.SetLocalAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
		w.remove("nobody")
		w.put("d", 1)
		w.remove("d")
		release()
		synctest.Wait()
		if b := w.store.Backlog(); !b.Empty() {
			t.Errorf("%+v waits, want nothing", b)
		}
		if n := w.store.Totals(); n != (cluster.Totals{Services: 7}) {
			t.Errorf("told %+v, want 7 events", n)
		}
	})
}
