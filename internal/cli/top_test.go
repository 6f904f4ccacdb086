package cli

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/plane"
)

func trafficOf(service string, signals plane.Traffic) inspect.Traffic {
	return inspect.Traffic{
		ServicePort: inspect.ServicePort{Namespace: "default", Service: service, Protocol: "tcp"}, Signals: signals,
	}
}

// A port that was not there before began with nothing.
func TestRates(t *testing.T) {
	before := []inspect.Traffic{trafficOf("web", plane.Traffic{plane.Connections: 10, plane.Live: 3})}
	now := []inspect.Traffic{
		trafficOf("new", plane.Traffic{plane.Connections: 1, plane.Live: 1}),
		trafficOf("web", plane.Traffic{plane.Connections: 15, plane.Live: 4}),
	}
	got := rates(before, now, 2*time.Second)
	began, grown := got[0].PerSecond, got[1].PerSecond
	if began[plane.Connections] != 0.5 || grown[plane.Connections] != 2.5 || len(grown) != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestOrders(t *testing.T) {
	list := func() []inspect.Traffic {
		all := []inspect.Traffic{
			trafficOf("a", plane.Traffic{plane.Connections: 9, plane.Live: 1}),
			trafficOf("b", plane.Traffic{plane.Connections: 1, plane.Live: 1}),
			trafficOf("c", plane.Traffic{plane.Connections: 5, plane.Live: 8}),
			trafficOf("d", nil),
		}
		all[1].PerSecond = map[plane.Signal]float64{plane.Connections: 1}
		return all
	}
	for name, want := range map[string]string{
		"new": "bacd", "live": "cabd", "name": "abcd",
		"bytes": "--sort bytes: the mode of this node does not count bytes",
	} {
		all := list()
		err := (&top{subject: subjects()[0], sort: name}).sorted(frame{traffic: all})
		var got strings.Builder
		for _, v := range all {
			got.WriteString(v.Service)
		}
		if err != nil {
			got.Reset()
			got.WriteString(err.Error())
		}
		if got.String() != want {
			t.Errorf("%s: got %s, want %s", name, &got, want)
		}
	}
}

// The first argument is a subject or a Service.
func TestSubjects(t *testing.T) {
	for args, want := range map[string]string{
		"":                     "services by new []",
		"web":                  "services by new [web]",
		"services":             "services by new []",
		"services web":         "services by new [web]",
		"default/backends":     "services by new [default/backends]",
		"backends default/web": "backends by new [default/web]",
		"clients":              "clients by entries []",
		"web more":             `unknown subject "web": want services, backends, clients`,
		"clients --sort bytes": "--sort bytes: want entries, live, name",
		"--sort entries":       "--sort entries: want new, live, bytes, failures, name",
	} {
		before, by, _ := strings.Cut(args, "--sort ")
		tt := &top{sort: by}
		names, err := tt.choose(strings.Fields(before))
		got := fmt.Sprintf("%s by %s %v", tt.name, tt.sort, names)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", args, got, want)
		}
	}
}

func TestOrdersOfClients(t *testing.T) {
	at := func(addr string, entries, live uint64) inspect.Client {
		return inspect.Client{Client: netip.MustParseAddr(addr), Entries: entries, Live: live}
	}
	a, b, c := at("10.0.0.2", 9, 1), at("10.0.0.3", 8, 8), at("10.0.0.1", 7, 4)
	for by, want := range map[string][]inspect.Client{"entries": {a, b, c}, "live": {b, c, a}, "name": {c, a, b}} {
		got := []inspect.Client{a, b, c}
		err := (&top{subject: subjects()[2], sort: by}).sorted(frame{clients: got})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("by %s: got %v, %v, want %v", by, got, err, want)
		}
	}
}

// What is older than two readings is marked.
func TestAgeOfConntrack(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]string{
		0: "", time.Second: "", 2 * time.Second: "", 15 * time.Second: ", conntrack as of 15s ago",
	} {
		f := frame{at: now, table: inspect.Conntrack{At: now.Add(-age)}}
		if got := f.age(time.Second); got != want {
			t.Errorf("%s: got %q, want %q", age, got, want)
		}
	}
	if got := (frame{at: now}).age(time.Second); got != "" {
		t.Errorf("without a listing: got %q", got)
	}
}
