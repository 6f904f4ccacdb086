package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/conntracktest"
)

func TestScenarios(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) { s.run(t, &conntracktest.Table{}) })
	}
}

// What is read follows the change: nothing when nothing can be wrong, the gone
// backend rather than its many frontends, one reading of all when that is less.
func TestListings(t *testing.T) {
	many := func(format string, n int) string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf(format, i+1))
		}
		return strings.Join(s, " ")
	}
	cases := []struct {
		name          string
		before, after string
		want          []string
	}{
		{"a backend more", "a: 10.96.0.1:53 = 10.1.0.1:53", "a: 10.96.0.1:53 = 10.1.0.1:53 10.1.0.2:53", nil},
		{"the same", "a: 10.96.0.1:53 = 10.1.0.1:53", "a: 10.96.0.1:53 = 10.1.0.1:53", nil},
		{"still none", "a: 10.96.0.1:53 =", "a: 10.96.0.1:53 =", nil},
		{
			"the first backend", "a: 10.96.0.1:53 =", "a: 10.96.0.1:53 = 10.1.0.1:53",
			[]string{"IPv4 protocol 17 to 10.96.0.1:53"},
		},
		{
			"one backend less behind five frontends",
			"a: " + many("10.96.0.%d:53", 5) + " = 10.1.0.1:53 10.1.0.2:53",
			"a: " + many("10.96.0.%d:53", 5) + " = 10.1.0.2:53",
			[]string{"IPv4 protocol 17 answered by 10.1.0.1:53"},
		},
		{
			"all of many backends less behind one frontend",
			"a: 10.96.0.1:53 = " + many("10.1.0.%d:53", 20), "a: 10.96.0.1:53 =",
			[]string{"IPv4 protocol 17 to 10.96.0.1:53"},
		},
		{
			"a node port", "a: nodePort:30053 =", "a: nodePort:30053 = 10.1.0.1:53",
			[]string{"IPv4 protocol 17 to port 30053"},
		},
		{
			"many frontends", "a: " + many("10.96.0.%d:53", 9) + " =", "a: " + many("10.96.0.%d:53", 9) + " = 10.1.0.1:53",
			[]string{"IPv4 protocol 17"},
		},
		{
			"many frontends of both families", "b: 10.96.1.1:1 =",
			"a: " + many("10.96.0.%d:53", 9) + " [fd96::1]:53 = 10.1.0.1:53",
			[]string{"IPv4 protocol 17", "IPv6 protocol 17"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			x := newIndex()
			x.apply(change(t, allLocal(), c.before))
			var got []string
			for _, f := range x.apply(change(t, allLocal(), c.after)).listings() {
				got = append(got, f.String())
			}
			slices.Sort(got)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("listings (-want +got):\n%s", d)
			}
		})
	}
}

// counted is a Follower whose work is counted.
type counted struct {
	*Follower

	scans, deleted atomic.Int64
}

// waiting returns how many frontends wait for their first scan.
func (c *counted) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

// running starts a Follower in a bubble of made-up time.
func running(t *testing.T, table Table, report func(error)) *counted {
	t.Helper()
	f := &counted{}
	f.Follower = New(Options{Table: table, Report: report, Scanned: func(_ time.Duration, ended map[route.Family]int) {
		f.scans.Add(1)
		f.deleted.Add(int64(total(ended)))
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	f.SetLocal(localAddrs())
	return f
}

func mustCreate(t *testing.T, table creator, flows ...string) {
	t.Helper()
	for _, text := range flows {
		if err := table.Create(flow(t, text)); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	dns1 = "dns: 10.96.0.10:53 = 10.1.0.1:53"
	dns2 = "dns: 10.96.0.10:53 = 10.1.0.2:53"
	toB1 = "17 10.0.0.1:7 > 10.96.0.10:53 via 10.1.0.1:53"
	toB2 = "17 10.0.0.2:7 > 10.96.0.10:53 via 10.1.0.2:53"
)

// A change is followed at once; a flow that slipped in through the old rules
// just after is found by the second look. There is no third.
func TestSecondScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &conntracktest.Table{}
		f := running(t, table, nil)
		f.Applied(change(t, allLocal(), dns1))
		time.Sleep(time.Minute)
		mustCreate(t, table, toB1)
		f.Applied(change(t, allLocal(), dns2))
		synctest.Wait()
		if left := contents(t, table); len(left) != 0 {
			t.Fatalf("not at once: %v", left)
		}
		mustCreate(t, table, toB1, toB2)
		time.Sleep(secondScan + time.Second)
		if d := cmp.Diff([]string{toB2}, contents(t, table)); d != "" {
			t.Errorf("after the second look (-want +got):\n%s", d)
		}
		looks := f.scans.Load()
		time.Sleep(time.Hour)
		if again := f.scans.Load(); again != looks || looks != 4 {
			t.Errorf("%d looks, an hour later %d, want 4", looks, again)
		}
	})
}

// broken is a kernel that refuses one verb while it is told to.
type broken struct {
	mu       sync.Mutex
	verb     string // "": works
	tries    []time.Time
	reported error
}

var errBroken = errors.New("broken")

func (b *broken) fail(verb string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.verb != verb {
		return nil
	}
	b.tries = append(b.tries, time.Now())
	return errBroken
}

func (b *broken) report(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reported = err
}

func (b *broken) refuse(verb string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.verb = verb
}

// What fails is reported, kept, and tried again, ever less often.
func TestRetry(t *testing.T) {
	for _, verb := range []string{"each", "delete"} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { retry(t, verb) })
		})
	}
}

func retry(t *testing.T, verb string) {
	b := &broken{}
	table := &conntracktest.Table{Fail: b.fail}
	f := running(t, table, b.report)
	f.Applied(change(t, allLocal(), dns1))
	time.Sleep(time.Minute)
	mustCreate(t, table, toB1)
	b.refuse(verb)
	f.Applied(change(t, allLocal(), dns2))
	time.Sleep(time.Hour)
	b.refuse("")
	if !errors.Is(b.reported, errBroken) {
		t.Errorf("reported: %v", b.reported)
	}
	if n := len(b.tries); n < 700 || n > 740 {
		t.Errorf("%d tries in an hour, want one each 5 s", n)
	}
	if f.waiting() != 1 || f.deleted.Load() != 0 {
		t.Errorf("%d frontends wait, %d flows are deleted", f.waiting(), f.deleted.Load())
	}
	time.Sleep(10 * time.Second)
	if left := contents(t, table); len(left) != 0 || f.deleted.Load() != 1 {
		t.Errorf("left: %v, %d flows are deleted", left, f.deleted.Load())
	}
}

// One flow that cannot be deleted does not save the others.
func TestDeleteTheRest(t *testing.T) {
	table := &conntracktest.Table{}
	f := New(Options{Table: table})
	f.Applied(change(t, allLocal(), dns1))
	settle(t, f)
	mustCreate(t, table, toB1, "17 10.0.0.9:7 > 10.96.0.10:53 via 10.1.0.1:53")
	first := true
	table.Fail = func(verb string) error {
		if verb != "delete" || !first {
			return nil
		}
		first = false
		return errors.New("no")
	}
	f.Applied(change(t, allLocal(), dns2))
	if _, err := f.scan(t.Context(), f.pending); err == nil {
		t.Error("no error")
	}
	if left := contents(t, table); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// slow is a table whose listings wait until the test lets them go on.
type slow struct {
	*conntracktest.Table
	each func()
}

func (s slow) Each(ctx context.Context, f kernel.Filter, fn func(kernel.Entry) error) error {
	return s.Table.Each(ctx, f, func(e kernel.Entry) error {
		s.each()
		return fn(e)
	})
}

// A flow is judged by what is applied when it is seen, not by what was when the
// listing began; and changes do not wait for a listing.
func TestNewestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *counted
		table := slow{Table: &conntracktest.Table{}}
		back := true
		table.each = func() {
			if back { // while the kernel is being read, the backend comes back
				back = false
				f.Applied(change(t, allLocal(), "dns: 10.96.0.10:53 = 10.1.0.1:53 10.1.0.2:53"))
			}
			time.Sleep(time.Second)
		}
		f = running(t, &table, nil)
		f.Applied(change(t, allLocal(), dns1))
		synctest.Wait()
		mustCreate(t, table.Table, toB1, toB2)
		f.Applied(change(t, allLocal(), dns2))
		time.Sleep(time.Minute)
		if d := cmp.Diff([]string{toB1, toB2}, contents(t, table.Table)); d != "" {
			t.Errorf("flows (-want +got):\n%s", d)
		}
	})
}

// A storm of changes while the kernel is slow to answer ends in few looks, and the follower rests longer than it works.
func TestCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := slow{Table: &conntracktest.Table{}, each: func() { time.Sleep(100 * time.Millisecond) }}
		f := running(t, &table, nil)
		mustCreate(t, table.Table, "17 10.0.0.9:7 > 10.96.0.10:53 via 10.1.0.9:53")
		for i := range 1000 { // 10 s
			s := fmt.Sprintf("dns: 10.96.0.10:53 = 10.1.0.9:53 10.1.0.%d:53", i%5+1)
			f.Applied(change(t, allLocal(), s))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		if n := f.scans.Load(); n > 40 {
			t.Errorf("%d looks for 1000 changes in 10 s", n)
		}
		if f.deleted.Load() != 0 || f.waiting() != 0 {
			t.Errorf("%d frontends wait, %d flows are deleted", f.waiting(), f.deleted.Load())
		}
	})
}

// Addresses that come make their NodePorts be looked at; those that go do not.
func TestSetLocal(t *testing.T) {
	table := &conntracktest.Table{}
	f := New(Options{Table: table})
	f.Applied(change(t, allLocal(), "dns: nodePort:30053 = 10.1.0.1:53"))
	settle(t, f)
	const old = "17 203.0.113.9:7 > 192.0.2.1:30053 via 10.1.0.9:53"
	mustCreate(t, table, old)
	f.SetLocal(localAddrs())
	settle(t, f)
	if left := contents(t, table); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	f.SetLocal(localAddrs()[:3])
	if n := len(f.pending); n != 0 {
		t.Errorf("%d frontends to look at after addresses went", n)
	}
}

// The frontends of a port share the list of what is gone, however many they are, and a flow is found in it by search.
func TestFrontendsShareTheListOfDeletedBackends(t *testing.T) {
	var frontends, backends []string
	for i := range 200 {
		frontends = append(frontends, fmt.Sprintf("10.96.0.%d:53", i+1))
		backends = append(backends, fmt.Sprintf("10.1.0.%d:53", i+1))
	}
	text := "a: " + strings.Join(frontends, " ") + " ="
	x := newIndex()
	x.apply(change(t, allLocal(), text+" "+strings.Join(backends, " ")))
	w := x.apply(change(t, allLocal(), text))
	if len(w) != len(frontends) {
		t.Fatalf("%d frontends to look for, want %d", len(w), len(frontends))
	}
	lists := map[list]bool{}
	for _, n := range w {
		lists[listOf(n.gone)] = true
		if len(n.gone) != len(backends) || !slices.IsSortedFunc(n.gone, netip.AddrPort.Compare) {
			t.Fatalf("%d backends are gone, want %d, sorted: %v", len(n.gone), len(backends), n.gone)
		}
	}
	if len(lists) != 1 {
		t.Errorf("%d lists of what is gone, want one for all frontends", len(lists))
	}
	for _, n := range maps.Clone(w).with(w) {
		if len(n.gone) != len(backends) || !lists[listOf(n.gone)] {
			t.Errorf("the same work twice has another list of %d", len(n.gone))
		}
	}
}
