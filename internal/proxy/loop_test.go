package proxy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func TestNoWriteBeforeTheStoreIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.advance(time.Hour)
		w.wantOps("refresh")
		w.setService("b", 1)
		w.listed()
		w.wantOps("apply +a +b")
		w.wantNotified("a ->1, b ->1, host")
	})
}

func TestAnEmptyClusterIsComparedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.kernel["left"] = true // from an earlier run
		w.listed()
		w.wantOps("refresh\napply -left")
	})
}

func TestOneChangeIsOneSmallWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.setService("b", 1)
		w.listed()
		w.wantOps("refresh\napply +a +b")
		w.follower.take()

		began := time.Now()
		w.setService("b", 2)
		w.wantOps("apply +b")
		w.wantNotified("b 1>2")
		w.deleteService("a")
		w.wantOps("apply -a")
		w.wantNotified("a 1>-")
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the changes took %v, want no delay", waited)
		}
	})
}

func TestAChangeWithoutEffectIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.listed()
		w.wantOps("refresh\napply +a")
		w.follower.take()
		w.setService("a", 1)
		w.deleteService("missing")
		w.wantOps("")
		release := w.blockWrite()
		w.setService("b", 1)
		w.deleteService("b")
		release()
		w.wantOps("")
		w.wantNotified("slow ->1")
	})
}

func TestChangesDuringAWriteAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.listed()
		w.wantOps("refresh\napply ")
		release := w.blockWrite()
		for port := range uint16(100) {
			w.setService("b", port+1)
			w.setService("c", port+1)
			synctest.Wait()
		}
		release()
		w.wantOps("apply +b +c")
		w.wantNotified("host\nslow ->1\nb ->100, c ->100")
	})
}

func TestMinPeriodKeepsWritesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		w := start(t, func(o *Options) { o.MinPeriod = time.Second })
		w.plane.onApply = func() { times = append(times, time.Now()) }
		w.listed()
		for port := range uint16(5) {
			w.setService("a", port+1)
			w.advance(300 * time.Millisecond)
		}
		synctest.Wait()
		for i := 1; i < len(times); i++ {
			if gap := times[i].Sub(times[i-1]); gap < time.Second {
				t.Errorf("write %d came %v after the one before, want at least 1s", i, gap)
			}
		}
		w.advance(time.Second)
		if len(times) != 3 {
			t.Errorf("%d writes, want 3: at the start, and one for the changes of each second", len(times))
		}
		// After a pause, the first change is written at once.
		w.advance(time.Minute)
		before := time.Now()
		w.setService("b", 1)
		synctest.Wait()
		if last := times[len(times)-1]; !last.Equal(before) {
			t.Errorf("written after %v, want at once", last.Sub(before))
		}
	})
}

func TestAfterAFailureEverythingIsCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.listed()
		w.wantOps("refresh\napply +a")
		w.follower.take()

		w.plane.applyErrs = []error{errors.New("no memory")}
		w.setService("b", 1)
		w.wantOps("apply +b")
		w.wantNotified("")
		delete(w.plane.kernel, "a") // another program deleted it meanwhile
		w.advance(firstRetry)
		w.wantOps("refresh\napply +a +b")
		w.wantNotified("b ->1")
	})
}

// The change that followers receive after several attempts is from the state before the
// first one to the state in the kernel.
func TestFollowersAreNotifiedOnceForManyAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.setService("b", 1)
		w.setService("c", 1)
		w.listed()
		w.wantOps("refresh\napply +a +b +c")
		w.follower.take()

		broken := errors.New("no memory")
		w.plane.applyErrs = []error{broken, broken, broken}
		w.setService("a", 2)
		synctest.Wait()
		w.setService("a", 3)
		w.deleteService("b")
		w.advance(firstRetry)
		w.setService("a", 4)
		w.setService("b", 5)
		w.deleteService("c")
		w.store.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
		w.advance(time.Minute)
		w.wantNotified("a 1>4, b 1>5, c 1>-, host")
	})
}

func TestRetriesBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		var times []time.Duration
		last := time.Now()
		w.plane.onApply = func() {
			times = append(times, time.Since(last))
			last = time.Now()
		}
		for range 13 {
			w.plane.applyErrs = append(w.plane.applyErrs, errors.New("no memory"))
		}
		w.listed()
		w.advance(minPeriod / 2)
		want := []time.Duration{0}
		for wait := firstRetry; len(want) < 14; wait = min(2*wait, lastRetry) {
			want = append(want, wait)
		}
		if len(times) != len(want) {
			t.Fatalf("%d writes, want %d", len(times), len(want))
		}
		for i := range want {
			if times[i] != want[i] {
				t.Errorf("write %d came after %v, want %v", i, times[i], want[i])
			}
		}
		// After a success the first retry has the shortest delay again.
		w.plane.applyErrs = []error{errors.New("no memory")}
		times = nil
		w.setService("a", 1)
		w.advance(minPeriod / 4)
		if len(times) != 2 || times[1] != firstRetry {
			t.Errorf("delays %v, want %v before the retry", times, firstRetry)
		}
	})
}

func TestAFailureIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		memory, lock := errors.New("no memory"), errors.New("locked")
		w.plane.applyErrs = []error{memory, memory, memory, lock, lock, nil, memory}
		w.listed()
		w.advance(time.Minute)
		w.wantLog(
			"ERROR msg=Cannot write to the kernel, retrying error=no memory",
			"ERROR msg=Cannot write to the kernel, retrying error=locked",
			"INFO msg=Writing to the kernel works again",
		)
		w.setService("a", 1)
		w.advance(time.Minute)
		w.wantLog(
			"ERROR msg=Cannot write to the kernel, retrying error=no memory",
			"INFO msg=Writing to the kernel works again",
		)
	})
}

func TestReadErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *Options) { o.Plane.(*recorder).refreshErr = errors.New("not permitted") })
		w.setService("a", 1)
		w.listed()
		w.wantOps("refresh\nrefresh")
		w.advance(firstRetry)
		w.wantOps("refresh")
		w.plane.refreshErr = nil
		w.advance(time.Minute)
		w.wantOps("refresh\napply +a")
		w.wantNotified("a ->1, host")
		w.wantLog(
			"ERROR msg=Cannot write to the kernel, retrying error=not permitted",
			"INFO msg=Writing to the kernel works again",
		)
	})
}

func TestStopping(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(w *testLoop)
	}{
		{"before the store is complete", func(*testLoop) {}},
		{"while idle", func(w *testLoop) { w.listed() }},
		{"while a write is under way", func(w *testLoop) {
			w.plane.hold = make(chan struct{})
			w.listed()
		}},
		{"between retries", func(w *testLoop) {
			w.plane.applyErrs = []error{errors.New("no memory")}
			w.listed()
		}},
		{"while waiting for MinPeriod", func(w *testLoop) {
			w.listed()
			synctest.Wait()
			w.setService("a", 1)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, func(o *Options) { o.MinPeriod = time.Hour })
				tt.before(w)
				synctest.Wait()
				w.wantEndAtOnce()
				if strings.Contains(w.log.String(), "canceled") {
					t.Errorf("stopping is logged as a failure:\n%s", &w.log)
				}
			})
		})
	}
}

func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.setService("b", 1)
		w.listed()
		synctest.Wait()
		w.plane.applyErrs = []error{errors.New("no memory")}
		w.setService("b", 2)
		w.advance(time.Minute)
		type seen struct {
			full            bool
			services, steps int
			failed          bool
		}
		want := []seen{{true, 2, 2, false}, {false, 1, 1, true}, {true, 0, 0, false}}
		var got []seen
		for _, s := range w.syncs {
			got = append(got, seen{s.Full(), s.Services, s.Steps, s.Err != nil})
		}
		if len(got) != len(want) {
			t.Fatalf("observed %v, want %v", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("sync %d = %+v, want %+v", i, got[i], want[i])
			}
		}
	})
}

func TestProblemsAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		addr := []netip.Addr{netip.MustParseAddr("10.96.0.1")}
		for i, name := range []string{"first", "second"} {
			w.store.SetService(&cluster.Service{
				Name: cluster.Name{Namespace: "default", Name: name}, ClusterIPs: addr,
				Created: time.Unix(int64(i), 0),
				Ports:   []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
			})
		}
		w.plane.applyErrs = []error{errors.New("no memory")}
		w.listed()
		w.advance(time.Minute)
		w.setService("x", 1)
		synctest.Wait()
		if len(w.problems) != 1 || w.problems[0].Object != "Service default/second" {
			t.Errorf("problems %v, want one, of the younger Service", w.problems)
		}
	})
}
