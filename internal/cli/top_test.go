package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/plane"
)

func trafficOf(service string, signals plane.Traffic) inspect.Traffic {
	return inspect.Traffic{Namespace: "default", Service: service, Protocol: "tcp", Signals: signals}
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
		"cpu":   "--sort cpu: want new, live, bytes, failures, name",
	} {
		all := list()
		err := (&top{sort: name}).sorted(all)
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
