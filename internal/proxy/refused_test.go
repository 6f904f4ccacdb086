package proxy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// refuses returns the error of a write in which these Services are refused for a reason.
func refuses(reason string, names ...string) error {
	refused := plane.Refused{}
	for _, name := range names {
		refused[cluster.Name{Namespace: "default", Name: name}] = errors.New(reason)
	}
	return refused
}

// wantProblems compares the problems since the last call.
func (w *testLoop) wantProblems(want ...string) {
	w.t.Helper()
	synctest.Wait()
	var got []string
	for _, p := range w.problems {
		got = append(got, p.String())
	}
	w.problems = nil
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.t.Errorf("problems:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func problemOf(name, reason string) string {
	return "Service default/" + name + ": the kernel rejects its rules; Sluice retries periodically: " + reason
}

// All other Services are written, and followers receive their changes. They receive the
// change of the refused one when the kernel accepts it, from the state before the refusal.
func TestARefusedServiceDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.setService("b", 1)
		w.listed()
		w.wantOps("refresh\napply +a +b")
		w.follower.take()

		release := w.blockWrite()
		w.wantNotified("")
		w.plane.applyErrs = []error{nil, refuses("too long", "b")}
		w.setService("a", 2)
		w.setService("b", 2)
		release()
		w.wantOps("apply +a +b")
		w.wantNotified("slow ->1\na 1>2")
		w.wantProblems(problemOf("b", "too long"))
		w.wantLog()

		w.setService("c", 1) // at once, without b
		w.wantOps("apply +c")
		w.wantNotified("c ->1")
		w.advance(firstRetry)
		w.wantOps("refresh\napply ") // the kernel of the recorder has a b, without its version
		w.wantNotified("b 1>2")
		w.wantProblems()
		w.wantLog("INFO msg=The kernel accepts the rules of all Services again")
	})
}

// A Service that stays refused is retried with growing delays, and reported once for each reason.
func TestRefusalsAreRetriedAndReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		var times []time.Duration
		last := time.Now()
		w.plane.onApply = func() {
			times = append(times, time.Since(last))
			last = time.Now()
		}
		for range 12 {
			w.plane.applyErrs = append(w.plane.applyErrs, refuses("too long", "a"))
		}
		w.plane.applyErrs = append(w.plane.applyErrs, refuses("too wide", "a"))
		w.setService("a", 1)
		w.listed()
		w.advance(minPeriod / 2)
		want := []time.Duration{0}
		for wait := firstRetry; len(want) < 14; wait = min(2*wait, lastRetry) {
			want = append(want, wait)
		}
		if len(times) != len(want) {
			t.Fatalf("%d writes after %v, want %d", len(times), times, len(want))
		}
		for i := range want {
			if times[i] != want[i] {
				t.Errorf("write %d came after %v, want %v", i, times[i], want[i])
			}
		}
		w.wantProblems(problemOf("a", "too long"), problemOf("a", "too wide"))
		w.wantLog("INFO msg=The kernel accepts the rules of all Services again")
	})
}

// Changes of other Services are written one by one. They neither advance nor delay nor cancel the next attempt.
func TestOtherServicesChangeWhileOneIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.applyErrs = []error{refuses("too long", "a"), refuses("too long", "a")}
		w.setService("a", 1)
		w.listed()
		w.wantOps("refresh\napply +a")
		w.advance(firstRetry)
		w.wantOps("refresh\napply +a")
		for port := range uint16(5) {
			w.setService("b", port+1)
			w.wantOps("apply +b")
			w.advance(firstRetry / 5)
		}
		synctest.Wait()
		if n := len(w.loop.refused.services); n != 1 {
			t.Errorf("%d Services are refused, want one", n)
		}
		w.advance(2 * firstRetry)
		w.wantOps("refresh\napply +a")
		w.wantLog("INFO msg=The kernel accepts the rules of all Services again")
	})
}

// A refused Service that is deleted is not retried any more.
func TestARefusedServiceIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.applyErrs = []error{refuses("too long", "a")}
		w.setService("a", 1)
		w.setService("b", 1)
		w.listed()
		w.wantNotified("b ->1, host")
		w.deleteService("a")
		w.advance(retryChanged)
		w.wantNotified("a ->-") // after a comparison, as it was unknown what the kernel had of it
		w.wantLog("INFO msg=The kernel accepts the rules of all Services again")
		if len(w.loop.refused.services) != 0 || w.loop.refused.again != nil {
			t.Error("the deleted Service is still retried")
		}
	})
}

// The whole write fails while a Service is refused.
func TestAFailureWhileOneIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.applyErrs = []error{refuses("too long", "a"), errors.New("locked")}
		w.setService("a", 1)
		w.listed()
		synctest.Wait()
		w.advance(time.Minute)
		w.wantNotified("host\na ->1")
		w.wantProblems(problemOf("a", "too long"))
		w.wantLog(
			"ERROR msg=Cannot write to the kernel, retrying error=locked",
			"INFO msg=The kernel accepts the rules of all Services again",
			"INFO msg=Writing to the kernel works again",
		)
	})
}

// A refused Service changes all the time, and an attempt takes long: most of the time is left for the changes of
// other Services.
func TestARefusedServiceThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *Options) { o.Plane.(*recorder).refreshTime = 20 * time.Second })
		for range 400 {
			w.plane.applyErrs = append(w.plane.applyErrs, refuses("too long", "a"))
		}
		w.setService("a", 1)
		w.listed()
		for port := range uint16(300) {
			w.setService("a", port+2)
			w.advance(2 * time.Second)
		}
		if attempts := strings.Count(w.plane.takeOps(), "refresh"); attempts > 6 {
			t.Errorf("%d attempts of 20 s in 10 minutes", attempts)
		}
	})
}

// A write reports how many Services are refused, and whether a node does not work without one of them.
func TestVitalServices(t *testing.T) {
	dns := cluster.Name{Namespace: "kube-system", Name: "dns"}
	for refused, vital := range map[string]cluster.Name{
		"a": {}, "kubernetes": {Namespace: "default", Name: "kubernetes"}, "dns": dns,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t, nil)
			for i, name := range []cluster.Name{dns, {Namespace: "tenant", Name: "dns"}} { // that of a tenant is not vital
				w.store.SetService(&cluster.Service{
					Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})},
					Ports: []cluster.ServicePort{{Protocol: cluster.UDP, Port: 53}},
				})
			}
			w.setService("a", 1)
			w.setService("kubernetes", 1)
			all := plane.Refused{{Namespace: "tenant", Name: "dns"}: errors.New("too long")}
			all[cluster.Name{Namespace: "default", Name: refused}] = errors.New("too long")
			if refused == dns.Name {
				all[dns] = errors.New("too long")
			}
			w.plane.applyErrs = []error{all}
			w.listed()
			synctest.Wait()
			if s := w.syncs[0]; s.Refused != len(all) || s.Known != 4 || s.Vital != vital {
				t.Errorf("%s is refused: %+v", refused, s)
			}
		})
	}
}
