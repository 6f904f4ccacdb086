package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/web"
)

// now is when the answers of these tests are made.
var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// quiet is a daemon of which there is little to tell.
func quiet() Status {
	return Status{
		At: now, Version: "v1.2.0", PID: 812, Since: ago(192 * time.Second), Health: health.Summary{State: health.Healthy},
		Mode: Mode{Name: "nftables", Reason: "the default, and this kernel supports it"}, Families: []string{"IPv4", "IPv6"},
		Node: cluster.Node{Name: "node-a", Zone: "zone-1", Addresses: []netip.Addr{
			netip.MustParseAddr("192.168.0.4"), netip.MustParseAddr("fd00::4"),
		}},
		Source: Source{
			"API server",
			source.State{
				From: "https://10.96.0.1:443", Connected: true, Since: ago(190 * time.Second), LastEvent: ago(4 * time.Second),
			},
		},
		Past: Past{
			LastSync: Sync{
				At: ago(4 * time.Second), Took: Duration(1234 * time.Microsecond), Services: 1, Steps: 3, Cause: "change",
			},
			Comparisons: []Tally{{"start", 1, ago(191 * time.Second)}},
			Adopted:     4321,
		},
		Counts:        Counts{Sizes: sizes.Sizes{Services: 120, Ports: 140, Frontends: 160, Backends: 700}},
		Configuration: Configuration{File: "/var/lib/kube-proxy/config.conf", Loaded: ago(192 * time.Second)},
		Servers: []web.State{
			{Name: "healthz", Address: "0.0.0.0:10256"}, {Name: "metrics", Address: "127.0.0.1:10249"},
		},
	}
}

// troubled is one of which there is a lot.
func troubled() Status {
	s := quiet()
	s.Since, s.Health = ago(75*time.Hour), health.Summary{State: health.Sick, Reason: "no complete sync for 2m0s"}
	s.Node.Leaving = true
	s.Direct = &plane.Direct{Ports: 2, Checksum: "1a2b3c4d", Peers: []plane.Peer{
		{Node: "node-b", Family: "IPv4"}, {Node: "node-c", Family: "IPv4", Why: "it is behind a gateway"},
	}}
	s.Mode.Configured, s.Mode.Fallback = "ebpf", "maps have no place to stay"
	s.Source = Source{
		"API server",
		source.State{
			From: "https://10.96.0.1:443", Since: ago(2*time.Hour + 5*time.Minute),
			Trouble: "connection refused", LastEvent: ago(3 * time.Hour),
		},
	}
	s.LastSync = Sync{
		At: ago(500 * time.Millisecond), Took: Duration(5 * time.Second), Services: 2, Steps: 1, Cause: "foreign-edit",
	}
	s.Lag = cluster.Window{Since: ago(9500 * time.Millisecond), Services: 1, Slices: 4}
	s.Counts.NotProgrammed, s.Counts.Rejected, s.Pending, s.Refused = 1, 2, 3, 1
	s.Error = "apply 7 steps: no space left on device"
	s.Repairs = []Tally{{"foreign-edit", 2, ago(500 * time.Millisecond)}, {"failure", 1, ago(time.Minute)}}
	s.KubeProxy = "kube-proxy runs beside this (pid 77): stop it"
	s.Takeover = []string{"kube-proxy's iptables rules: removed 1,204", s.KubeProxy}
	s.Configuration = Configuration{
		File: "/etc/sluice.conf", Loaded: ago(time.Hour), RefusedAt: ago(time.Minute),
		Refused: "line 3: mode: Unsupported value",
		Due:     ago(-12 * time.Second), Reloads: 3,
	}
	s.Servers[1].Error = "listen on 127.0.0.1:10249: address already in use"
	s.Servers = append(s.Servers, web.State{Name: "debug"})
	s.HostSettings = []HostSetting{
		{Name: "net.netfilter.nf_conntrack_max", Want: "131072", Was: "65536", Is: "131072"},
		{Name: "oom_score_adj", Want: "-999", Was: "0", Is: "0", Error: "write -999 to oom_score_adj: permission denied"},
	}
	s.Contest = proxy.Contest{Since: ago(42 * time.Second), Repairs: 17, What: "table", By: "nft (thread 812)"}
	s.WatchTrouble = "list virtual servers: operation not permitted"
	s.HealthPorts = []HealthPort{{"default/web", 32000, "address already in use"}}
	s.Problems = []Problem{
		{
			ago(time.Second),
			route.Problem{
				Object: "Service default/web", Field: "spec.externalIPs[0]", Value: "bogus", Reason: "want an IP address", Count: 1,
			},
		},
		{ago(time.Hour), route.Problem{Object: "Node node-a", Reason: "has no address", Count: 1200}},
	}
	s.Counts.NoBackends, s.Counts.Hashed, s.Counts.Tables = 2, 1, 0x9f3a01c2
	s.Warnings = s.warnings()
	return s
}

func TestText(t *testing.T) {
	busy := Status{
		At: now, Version: "v1.2.0", PID: 1, Since: ago(1500 * time.Millisecond), Busy: "a write to the kernel is under way",
		Health: health.Summary{State: health.Starting, Reason: "not everything has been written once"},
		Counts: Counts{Sizes: sizes.Sizes{Services: 2, Ports: 2, Frontends: 3, Backends: 1}}, Mode: Mode{Name: "nftables"},
		Node: cluster.Node{Name: "node-a"}, Source: Source{"manifests", source.State{From: "services/", Connected: true}},
		Past:          Past{Error: "the lock is held"},
		Configuration: Configuration{Refused: "line 3: mode: Unsupported value"}, // read at a time that nobody noted
	}
	for name, s := range map[string]Status{"quiet": quiet(), "troubled": troubled(), "busy": busy} {
		golden(t, "status-"+name+".txt", []byte(text.Printed(s)))
	}
}

// What is read at the other end is what was said.
func TestJSONIsTheWholeStatus(t *testing.T) {
	said, err := json.MarshalIndent(troubled(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "status-troubled.json", append(said, '\n'))
	var heard Status
	if err := json.Unmarshal(said, &heard); err != nil {
		t.Fatal(err)
	}
	if want := troubled(); !reflect.DeepEqual(heard, want) {
		t.Errorf("heard:\n%+v\nsaid:\n%+v", heard, want)
	}
}

// A status is put together from what everybody knows.
func TestStatusOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(_ *world, o *Options) {
			o.Status = func(context.Context) Status {
				return Status{
					Version: "v1.2.0", Mode: Mode{Name: "nftables"}, Health: health.Summary{State: health.Healthy},
					Node: cluster.Node{Name: "from the flags"},
				}
			}
		})
		before := w.Status(t.Context())
		if before.Counts != (Counts{}) || before.Node.Name != "from the flags" || before.Mode.Name != "nftables" {
			t.Errorf("before anything was listed: %+v", before)
		}
		w.load()
		began := time.Now()
		s := w.Status(t.Context())
		want := Status{
			At: began, Version: "v1.2.0", Mode: Mode{Name: "nftables"}, Health: health.Summary{State: health.Healthy},
			Node: cluster.Node{Name: "node-a", Zone: "zone-1", Addresses: []netip.Addr{
				netip.MustParseAddr("192.168.0.4"), netip.MustParseAddr("fd00::4"),
			}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
			Past: Past{
				LastSync: Sync{At: began, Services: 6, Steps: 6, Cause: "start"}, Comparisons: []Tally{{"start", 1, began}},
				Adopted: 7,
			},
			Counts:   Counts{Sizes: s.Counts.Sizes, Rejected: 1},
			Warnings: []string{"no usable backend: 1 Service (see sluice get services --problems)"},
			Problems: []Problem{{
				began, route.Problem{
					Object: "Service staging/thief", Field: "spec.clusterIPs", Value: "10.96.0.81:80/tcp",
					Reason: "left out, as it belongs to Service default/empty", Count: 1,
				},
			}},
		}
		if n := s.Counts; fmt.Sprint(n.Services, n.Ports, n.Frontends, n.Backends, n.NotProgrammed) != "3 5 9 5 3" {
			t.Errorf("counted %+v", n)
		}
		if !reflect.DeepEqual(s, want) {
			t.Errorf("the status is\n%+v\nwant\n%+v", s, want)
		}

		// Another program's edit is repaired, a comparison that finds nothing is none.
		time.Sleep(time.Minute)
		w.kernel.edits = 2
		for range 2 {
			if err := w.loop.Compare(t.Context(), proxy.ForeignEdit); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			time.Sleep(time.Second)
		}
		s = w.Status(t.Context())
		repaired := []Tally{{"foreign-edit", 1, began.Add(time.Minute)}}
		compared := []Tally{{"start", 1, began}, {"foreign-edit", 2, began.Add(time.Minute + time.Second)}}
		if !reflect.DeepEqual(s.Repairs, repaired) || !reflect.DeepEqual(s.Comparisons, compared) {
			t.Errorf("repaired %v, compared %v, want %v and %v", s.Repairs, s.Comparisons, repaired, compared)
		}

		// The kernel refuses.
		w.between(func() { w.kernel.refuse = errors.New("no space") })
		failed := time.Now()
		w.store.DeleteService(name("default", "web"))
		synctest.Wait()
		s = w.Status(t.Context())
		if s.Error != "no space" || s.Pending != 1 || s.Counts.Services != 3 {
			t.Errorf("after a refusal: error %q, %d pending, %+v in the kernel", s.Error, s.Pending, s.Counts)
		}
		if want := (cluster.Window{Since: failed, Last: failed, Services: 1}); !reflect.DeepEqual(s.Lag, want) {
			t.Errorf("the lag is %+v, want %+v", s.Lag, want)
		}
	})
}

func TestHistoryKeepsTheLatestProblems(t *testing.T) {
	h := NewHistory()
	for i := range 3 * maxProblems {
		h.Report([]route.Problem{{Object: "Service a/b", Value: fmt.Sprint(i)}, {Object: "Node"}})
	}
	h.Observe(proxy.Sync{Cause: proxy.Failure, Err: errors.New("refused"), Steps: 5})
	var s Status
	s.Past, s.Counts.Rejected, s.Problems = h.past()
	if len(s.Problems) != maxProblems || s.Problems[0].Object != "Node" || s.Problems[0].Count != 3*maxProblems ||
		s.Problems[1].Value != fmt.Sprint(3*maxProblems-1) || s.Problems[maxProblems-1].Value != fmt.Sprint(2*maxProblems+1) {
		t.Errorf("kept: %+v", s.Problems)
	}
	if s.Counts.Rejected != 6*maxProblems || s.LastSync != (Sync{}) || len(s.Comparisons) != 0 {
		t.Errorf("counted: %+v", s)
	}
}

// The latest Events are kept, with their objects.
func TestHistoryKeepsTheLatestEvents(t *testing.T) {
	h := NewHistory()
	for i := range maxEvents + 5 {
		h.Record(event.Event{
			Object: event.Object{Kind: "Service", Namespace: "a", Name: fmt.Sprint(i)}, Type: event.Warning, Reason: "R",
			Note: "n",
		})
	}
	got, _ := h.Events(0)
	if len(got) != maxEvents || got[0].Name != "5" || got[maxEvents-1].Name != fmt.Sprint(maxEvents+4) {
		t.Errorf("%d Events from %+v", len(got), got[0])
	}
	want := Event{got[maxEvents-1].Number - maxEvents + 1, got[0].At, event.Event{
		Object: event.Object{Kind: "Service", Namespace: "a", Name: "5"}, Type: "Warning", Reason: "R", Note: "n",
	}}
	if got[0] != want || want.At.IsZero() {
		t.Errorf("got %+v", got[0])
	}
}

// After a change of the configuration the daemon has another History. A client that waits for Events after the last one
// of the former gets all, and their numbers show that it has missed some.
func TestALaterHistoryHasGreaterNumbers(t *testing.T) {
	former := NewHistory()
	former.Record(event.Event{Reason: "Former"})
	events, _ := former.Events(0)
	last := events[0].Number
	time.Sleep(time.Millisecond)
	later := NewHistory()
	later.Record(event.Event{Reason: "Later"})
	got, _ := later.Events(last)
	if len(got) != 1 || got[0].Number <= last+1 {
		t.Errorf("after Event %d: %+v", last, got)
	}
}

// Very many Services that ask for the same are one problem, and a count.
func TestHistoryCountsRepeatedProblems(t *testing.T) {
	h := NewHistory()
	report := func(service, field, value, reason string, count int) {
		h.Report([]route.Problem{
			{Object: "Service shop/" + service, Field: field, Value: value, Reason: reason, Count: count},
		})
	}
	for i := range 10_000 {
		report(fmt.Sprint("s", i), "spec.externalIPs", "192.0.2.1:80/tcp",
			fmt.Sprintf("left out, as it belongs to Service shop/s%d", i+1), 0)
	}
	report("bad", "spec.externalIPs[0]", "x", "not an IP address", 0)
	report("last", "spec.externalIPs", "192.0.2.1:80/tcp",
		"left out, as it belongs to Service shop/s0 (and 9 more like it)", 10)
	var s Status
	s.Past, s.Counts.Rejected, s.Problems = h.past()
	var got []string
	for _, p := range s.Problems {
		got = append(got, fmt.Sprint(p.Count, " ", p.Object, " ", p.Value))
	}
	want := []string{"10010 Service shop/last 192.0.2.1:80/tcp", "1 Service shop/bad x"}
	if !slices.Equal(got, want) || s.Counts.Rejected != 10_011 {
		t.Errorf("%d rejected, kept\n%q\nwant\n%q", s.Counts.Rejected, got, want)
	}
}

// Before all objects have arrived no query is answered as if there were no others.
func TestNotAllHaveArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reason = "not all Services have arrived yet (API server https://10.0.0.1:6443, certificate signed by unknown " +
			"authority)"
		var arrived func()
		w := start(t, func(w *world, o *Options) {
			arrived = w.store.Feed()
			o.Status = func(context.Context) Status {
				return Status{Source: Source{"API server", source.State{
					From: "https://10.0.0.1:6443", Trouble: "certificate signed by unknown authority",
				}}}
			}
			o.Diff = func(context.Context) (plane.Plan, error) { return made("delete a\ndelete b\n"), nil }
			o.Plan = o.Diff
		})
		for path, more := range map[string]string{
			"/services": "", "/backends": "", "/nodeports": "", "/names": "", "/plan": "",
			"/explain?source=10.244.0.5&destination=10.96.0.10:80": "", "/diff": "in the kernel: 2 objects",
		} {
			code, answer := ask(t, w.Handler(), path)
			if code != http.StatusServiceUnavailable || !strings.HasPrefix(answer, reason) || !strings.HasSuffix(answer, more) {
				t.Errorf("%s: %d, %q", path, code, answer)
			}
		}
		status := text.Printed(w.Status(t.Context()))
		if !strings.Contains(status, "unknown: "+reason) || strings.Contains(status, "0 services") {
			t.Errorf("the status is\n%s", status)
		}
		arrived()
		synctest.Wait()
		for _, path := range []string{"/services", "/plan", "/diff"} {
			if code, answer := ask(t, w.Handler(), path); code != http.StatusOK {
				t.Errorf("%s, when all have arrived: %d, %q", path, code, answer)
			}
		}
	})
}
