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
		w.put("a", 1)
		w.pass(time.Hour)
		w.diary("")
		w.put("b", 1)
		w.listed()
		w.diary("refresh\napply +a +b")
		w.told("a ->1, b ->1, host")
	})
}

func TestAnEmptyClusterIsComparedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.kernel["left"] = true // by an earlier run
		w.listed()
		w.diary("refresh\napply -left")
	})
}

func TestOneChangeIsOneSmallWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.put("b", 1)
		w.listed()
		w.diary("refresh\napply +a +b")
		w.follower.read()

		began := time.Now()
		w.put("b", 2)
		w.diary("apply +b")
		w.told("b 1>2")
		w.remove("a")
		w.diary("apply -a")
		w.told("a 1>-")
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the changes took %v, want no waiting", waited)
		}
	})
}

func TestAChangeWithoutEffectIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.listed()
		w.diary("refresh\napply +a")
		w.follower.read()
		w.put("a", 1)
		w.remove("nobody")
		w.diary("")
		release := w.slow()
		w.put("b", 1)
		w.remove("b")
		release()
		w.diary("")
		w.told("slow ->1")
	})
}

func TestChangesDuringAWriteAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.listed()
		w.diary("refresh\napply ")
		release := w.slow()
		for port := range uint16(100) {
			w.put("b", port+1)
			w.put("c", port+1)
			synctest.Wait()
		}
		release()
		w.diary("apply +b +c")
		w.told("host\nslow ->1\nb ->100, c ->100")
	})
}

func TestMinPeriodKeepsWritesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		w := start(t, func(o *Options) { o.MinPeriod = time.Second })
		w.plane.onApply = func() { times = append(times, time.Now()) }
		w.listed()
		for port := range uint16(5) {
			w.put("a", port+1)
			w.pass(300 * time.Millisecond)
		}
		synctest.Wait()
		for i := 1; i < len(times); i++ {
			if gap := times[i].Sub(times[i-1]); gap < time.Second {
				t.Errorf("write %d came %v after the one before, want at least 1s", i, gap)
			}
		}
		w.pass(time.Second)
		if len(times) != 3 {
			t.Errorf("%d writes, want 3: at the start, and one each for what came in a second", len(times))
		}
		// After quiet, the first change is written at once.
		w.pass(time.Minute)
		before := time.Now()
		w.put("b", 1)
		synctest.Wait()
		if last := times[len(times)-1]; !last.Equal(before) {
			t.Errorf("written after %v, want at once", last.Sub(before))
		}
	})
}

func TestAfterAFailureEverythingIsCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.listed()
		w.diary("refresh\napply +a")
		w.follower.read()

		w.plane.refuse = []error{errors.New("no memory")}
		w.put("b", 1)
		w.diary("apply +b")
		w.told("")
		delete(w.plane.kernel, "a") // whatever happened to it meanwhile
		w.pass(firstRetry)
		w.diary("refresh\napply +a +b")
		w.told("b ->1")
	})
}

// What followers are told spans all attempts: from what was last in the kernel
// to what is in it now.
func TestFollowersAreNotifiedOnceForManyAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.put("b", 1)
		w.put("c", 1)
		w.listed()
		w.diary("refresh\napply +a +b +c")
		w.follower.read()

		broken := errors.New("no memory")
		w.plane.refuse = []error{broken, broken, broken}
		w.put("a", 2)
		synctest.Wait()
		w.put("a", 3)
		w.remove("b")
		w.pass(firstRetry)
		w.put("a", 4)
		w.put("b", 5)
		w.remove("c")
		w.store.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
		w.pass(time.Minute)
		w.told("a 1>4, b 1>5, c 1>-, host")
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
			w.plane.refuse = append(w.plane.refuse, errors.New("no memory"))
		}
		w.listed()
		w.pass(time.Hour)
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
		// After a success the next failure waits as little as the first.
		w.plane.refuse = []error{errors.New("no memory")}
		times = nil
		w.put("a", 1)
		w.pass(time.Hour)
		if len(times) != 2 || times[1] != firstRetry {
			t.Errorf("waits %v, want %v before the retry", times, firstRetry)
		}
	})
}

func TestAFailureIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		memory, lock := errors.New("no memory"), errors.New("locked")
		w.plane.refuse = []error{memory, memory, memory, lock, lock, nil, memory}
		w.listed()
		w.pass(time.Minute)
		w.logged(
			"ERROR msg=Cannot write to the kernel, retrying error=no memory",
			"ERROR msg=Cannot write to the kernel, retrying error=locked",
			"INFO msg=Writing to the kernel works again",
		)
		w.put("a", 1)
		w.pass(time.Minute)
		w.logged(
			"ERROR msg=Cannot write to the kernel, retrying error=no memory",
			"INFO msg=Writing to the kernel works again",
		)
	})
}

func TestReadErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.blind = errors.New("not permitted")
		w.put("a", 1)
		w.listed()
		w.diary("refresh")
		w.pass(firstRetry)
		w.diary("refresh")
		w.plane.blind = nil
		w.pass(time.Minute)
		w.diary("refresh\napply +a")
		w.told("a ->1, host")
		w.logged(
			"ERROR msg=Cannot write to the kernel, retrying error=not permitted",
			"INFO msg=Writing to the kernel works again",
		)
	})
}

func TestStopping(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(w *world)
	}{
		{"before everything was listed", func(*world) {}},
		{"while idle", func(w *world) { w.listed() }},
		{"while a write is under way", func(w *world) {
			w.plane.hold = make(chan struct{})
			w.listed()
		}},
		{"between retries", func(w *world) {
			w.plane.blind = errors.New("not permitted")
			w.listed()
		}},
		{"while keeping writes apart", func(w *world) {
			w.listed()
			synctest.Wait()
			w.put("a", 1)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, func(o *Options) { o.MinPeriod = time.Hour })
				tt.before(w)
				synctest.Wait()
				before := time.Now()
				w.stop()
				if err := <-w.ended; err != nil {
					t.Errorf("Run = %v, want nil", err)
				}
				if waited := time.Since(before); waited != 0 {
					t.Errorf("stopped after %v, want at once", waited)
				}
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
		w.put("a", 1)
		w.put("b", 1)
		w.listed()
		synctest.Wait()
		w.plane.refuse = []error{errors.New("no memory")}
		w.put("b", 2)
		w.pass(time.Minute)
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
		w.plane.refuse = []error{errors.New("no memory")}
		w.listed()
		w.pass(time.Minute)
		w.put("x", 1)
		synctest.Wait()
		if len(w.problems) != 1 || w.problems[0].Object != "Service default/second" {
			t.Errorf("problems %v, want one, of the younger Service", w.problems)
		}
	})
}
