package app

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/time/rate"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Very many changes cost no more than a thousand Events and a hundred lines in the log.
func TestManyChangesAreSummedUp(t *testing.T) {
	var out bytes.Buffer
	var recorded []event.Event
	c := newChanges(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: levelOfChanges})),
		func(e event.Event) { recorded = append(recorded, e) })
	change := route.Change{Table: &route.Table{Services: map[cluster.Name]*route.Service{
		{Name: "headless"}: {Ignored: "headless"}, {Name: "web"}: {Ports: make([]route.Port, 2)},
	}}}
	for i := range 5000 {
		name := cluster.Name{Namespace: "default", Name: fmt.Sprintf("s%04d", i)}
		change.Touched = append(change.Touched, route.Touch{Name: name, New: &route.Service{Name: name}})
	}

	c.Applied(change)
	if len(recorded) != 1 || recorded[0] != event.FirstServices(1) {
		t.Errorf("the first write: recorded %+v, want one Event", recorded)
	}
	recorded = nil
	c.Applied(change)
	if len(recorded) != 1+maxChanges || recorded[0] != event.ManyServices(4000) || recorded[maxChanges].Name != "s4999" {
		t.Errorf("recorded %d Events, the first %+v", len(recorded), recorded[0])
	}
	if n := strings.Count(out.String(), "\n"); n < changesAtOnce || n > maxChanges/2 {
		t.Errorf("logged %d lines, want some %d", n, changesAtOnce)
	}
	c.limit.SetLimit(rate.Inf) // as after a pause
	out.Reset()
	c.Applied(route.Change{Table: change.Table, Touched: change.Touched[:1]})
	if want := "reason=ServiceAdded note=\"has 0 endpoints\" omitted="; !strings.Contains(out.String(), want) {
		t.Errorf("logged %q, want %q", out.String(), want)
	}
}
