package kube

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/source"
)

// waitForState waits until the Source has a state. Of Trouble it compares the beginning, of times whether they are set.
func (f *testSource) waitForState(want source.State) {
	f.t.Helper()
	f.until(func() string {
		got := f.src.State()
		if want.Trouble != "" && strings.HasPrefix(got.Trouble, want.Trouble) {
			got.Trouble = want.Trouble
		}
		for _, at := range []*time.Time{&got.Since, &got.LastEvent} {
			if !at.IsZero() {
				*at = someTime
			}
		}
		return cmp.Diff(want, got)
	})
}

var someTime = time.Unix(1, 0)

// The state of a source from the start through an outage of its server.
func TestStateThroughAnOutage(t *testing.T) {
	testEncodings(t, func(t *testing.T, api *apiServer) {
		t.Helper()
		api.set(nodesPath, node("n1", "192.0.2.1"))
		api.set(servicesPath, service("web", "10.96.0.1"))
		api.set(slicesPath, endpointSlice("web-x", "web", "10.0.0.1"))
		api.set(slicesPath, endpointSlice("web-y", "web", "10.0.0.2"))
		p := closedPort(t)
		f := startWith(t, clientOf(t, p.url()))
		f.waitForState(source.State{From: p.url(), Trouble: "unreachable: dial tcp", Objects: map[string]int{}})

		p.open(api)
		up := source.State{
			From: p.url(), Connected: true, Since: someTime, LastEvent: someTime,
			Objects: map[string]int{"services": 1, "endpointslices": 2, "nodes": 1, "servicecidrs": 0},
		}
		f.waitForState(up)
		first := f.src.State()

		p.close()
		down := up
		down.Connected, down.Trouble = false, "unreachable: dial tcp"
		f.waitForState(down)
		if lost := f.src.State(); !lost.Since.After(first.Since) || lost.LastEvent.Before(first.LastEvent) {
			t.Errorf("connected since %v, lost since %v", first.Since, lost.Since)
		}
		p.open(api)
		f.waitForState(up)
	})
}

// The counts follow the objects, and a problem is counted as long as its object has it.
func TestStateCountsObjects(t *testing.T) {
	api := newAPIServer(t)
	api.set(nodesPath, node("n1", "192.0.2.1"))
	f := start(t, api)
	f.ready()
	want := source.State{
		From: api.http.URL, Connected: true, Since: someTime, LastEvent: someTime,
		Objects: map[string]int{"services": 0, "endpointslices": 0, "nodes": 1, "servicecidrs": 0},
	}
	f.waitForState(want)

	bad := service("bad", "10.96.0.2")
	bad.Spec.ExternalIPs = []string{"nonsense"}
	api.set(servicesPath, service("web", "10.96.0.1"))
	api.set(servicesPath, bad)
	api.set(servicesPath, service("web", "10.96.0.3")) // a change of the same Service
	want.Objects["services"], want.Problems = 2, 1
	f.waitForState(want)

	api.expire() // a new list has the same objects
	api.cutOff()
	api.remove(servicesPath, "default/bad")
	want.Objects["services"], want.Problems = 1, 0
	f.waitForState(want)
}

// A server that refuses one kind counts as connected.
func TestStateNamesRefusedObjects(t *testing.T) {
	api := newAPIServer(t)
	api.set(nodesPath, node("n1", "192.0.2.1"))
	api.setStatus(slicesPath, http.StatusForbidden)
	f := start(t, api)
	want := source.State{
		From: api.http.URL, Connected: true, Since: someTime, LastEvent: someTime,
		Trouble: "endpointslices: forbidden: set by the test",
		Objects: map[string]int{"services": 0, "nodes": 1, "servicecidrs": 0},
	}
	f.waitForState(want)
	api.setStatus(slicesPath, 0)
	want.Objects["endpointslices"], want.Trouble = 0, ""
	f.waitForState(want)
}
