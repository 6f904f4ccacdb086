package proxy

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// refuses makes the next write refuse these Services, each because of a reason.
func refuses(reason string, names ...string) error {
	refused := plane.Refused{}
	for _, name := range names {
		refused[cluster.Name{Namespace: "default", Name: name}] = errors.New(reason)
	}
	return refused
}

// complained compares the problems since the last call.
func (w *world) complained(want ...string) {
	w.t.Helper()
	synctest.Wait()
	var got []string
	for _, p := range w.problems {
		got = append(got, p.String())
	}
	w.problems = nil
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.t.Errorf("people were told:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func complaintOf(name, reason string) string {
	return "Service default/" + name + ": the kernel rejects its rules; Sluice retries periodically: " + reason
}

// All other Services are in the kernel, and whoever follows them is told; the
// refused one when it is taken, with what it was before.
func TestARefusedServiceDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.put("b", 1)
		w.listed()
		w.diary("refresh\napply +a +b")
		w.follower.read()

		release := w.slow()
		w.told("")
		w.plane.refuse = []error{nil, refuses("too long", "b")}
		w.put("a", 2)
		w.put("b", 2)
		release()
		w.diary("apply +a +b")
		w.told("slow ->1\na 1>2")
		w.complained(complaintOf("b", "too long"))
		w.logged()

		w.put("c", 1) // at once, and not about b
		w.diary("apply +c")
		w.told("c ->1")
		w.pass(firstRetry)
		w.diary("refresh\napply ") // there is a b in the recorder's kernel, of whatever version
		w.told("b 1>2")
		w.complained()
		w.logged("INFO msg=The kernel takes the rules of all Services again")
	})
}

// What stays refused is tried again ever more rarely, and people are told once,
// unless it is for another reason.
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
			w.plane.refuse = append(w.plane.refuse, refuses("too long", "a"))
		}
		w.plane.refuse = append(w.plane.refuse, refuses("too loud", "a"))
		w.put("a", 1)
		w.listed()
		w.pass(time.Hour)
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
		w.complained(complaintOf("a", "too long"), complaintOf("a", "too loud"))
		w.logged("INFO msg=The kernel takes the rules of all Services again")
	})
}

// Changes of others go on being written one by one, and neither hasten nor put
// off the next attempt; nor do they make it forgotten.
func TestOthersChangeWhileOneIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.refuse = []error{refuses("too long", "a"), refuses("too long", "a")}
		w.put("a", 1)
		w.listed()
		w.diary("refresh\napply +a")
		w.pass(firstRetry)
		w.diary("refresh\napply +a")
		for port := range uint16(5) {
			w.put("b", port+1)
			w.diary("apply +b")
			w.pass(firstRetry / 5)
		}
		synctest.Wait()
		if n := len(w.loop.refused.services); n != 1 {
			t.Errorf("%d Services are refused, want one", n)
		}
		w.pass(2 * firstRetry)
		w.diary("refresh\napply +a")
		w.logged("INFO msg=The kernel takes the rules of all Services again")
	})
}

// A Service that is refused and then deleted, or changed so that the kernel takes
// it, is no longer waited for.
func TestARefusedServiceIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.refuse = []error{refuses("too long", "a")}
		w.put("a", 1)
		w.put("b", 1)
		w.listed()
		w.told("b ->1, host")
		w.remove("a")
		w.pass(retryChanged)
		w.told("a ->-") // only once everything was compared: what the kernel had of it nobody knew
		w.logged("INFO msg=The kernel takes the rules of all Services again")
		if len(w.loop.refused.services) != 0 || w.loop.refused.again != nil {
			t.Error("it is still waited for")
		}
	})
}

// An error of the whole write while a Service is refused.
func TestAFailureWhileOneIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.refuse = []error{refuses("too long", "a"), errors.New("locked")}
		w.put("a", 1)
		w.listed()
		synctest.Wait()
		w.pass(time.Minute)
		w.told("host\na ->1")
		w.complained(complaintOf("a", "too long"))
		w.logged(
			"ERROR msg=Cannot write to the kernel, retrying error=locked",
			"INFO msg=The kernel takes the rules of all Services again",
			"INFO msg=Writing to the kernel works again",
		)
	})
}
