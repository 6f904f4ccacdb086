package cluster

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		if b := s.Backlog(); !b.Empty() {
			t.Errorf("an empty store has a backlog: %+v", b)
		}
		first := time.Now()
		trigger := first.Add(-time.Second)
		name := Name{Namespace: "default", Name: "web"}
		s.SetService(&Service{Name: name})
		time.Sleep(time.Second)
		s.SetSlice(&Slice{Name: name, Service: name, Trigger: trigger})
		s.SetSlice(&Slice{Name: name, Service: name, Trigger: trigger}) // not a change
		s.Take()
		time.Sleep(time.Second)
		later := &Slice{Name: name, Service: name, Trigger: first, Endpoints: []Endpoint{{Ready: true}}}
		s.SetSlice(later)

		want := Window{Since: first, Last: first.Add(2 * time.Second), Services: 1, Slices: 2}
		if b := s.Backlog(); !same(b, want) {
			t.Errorf("backlog %+v, want %+v", b, want)
		}
		// Only taken changes are marked.
		done := s.MarkWritten()
		if done.Services != 1 || done.Slices != 1 || !slices.EqualFunc(done.Triggers, []Trigger{{At: trigger}}, sameTrigger) {
			t.Errorf("marked %+v, want the taken changes", done)
		}
		if b := s.Backlog(); b.Slices != 1 || !b.Since.Equal(want.Last) {
			t.Errorf("backlog %+v, want the changes after Take", b)
		}
		// The changes of two Takes without MarkWritten are one backlog.
		s.Take()
		s.DeleteSlice(name)
		s.DeleteService(name)
		s.Take()
		if done := s.MarkWritten(); done.Services != 1 || done.Slices != 2 || !done.Since.Equal(want.Last) {
			t.Errorf("marked %+v, want the changes of both Takes", done)
		}
		if n := s.Totals(); n != (Totals{Services: 2, Slices: 4}) {
			t.Errorf("totals %+v, want all objects", n)
		}
	})
}

// If the kernel refuses writes for long, only the latest triggers are kept.
func TestTriggersAreBounded(t *testing.T) {
	s, name, began := NewStore(), Name{Namespace: "default", Name: "web"}, time.Now()
	at := func(i int) time.Time { return began.Add(time.Duration(i) * time.Second) }
	const changes = 2*maxTriggers + 10
	for i := range changes {
		s.SetSlice(&Slice{Name: name, Service: name, Trigger: at(i), Endpoints: make([]Endpoint, i%2)})
		if i%7 == 0 {
			s.Take()
		}
	}
	s.Take()
	done := s.MarkWritten()
	if done.Slices != changes || len(done.Triggers) != maxTriggers {
		t.Fatalf("%d changes leave %d triggers, want %d and %d", done.Slices, len(done.Triggers), changes, maxTriggers)
	}
	first, last := done.Triggers[0], done.Triggers[maxTriggers-1]
	if !first.At.Equal(at(changes-maxTriggers)) || !last.At.Equal(at(changes-1)) {
		t.Errorf("kept triggers are from %v to %v, want the latest", first, last)
	}
}

func same(a, b Window) bool {
	return a.Since.Equal(b.Since) && a.Last.Equal(b.Last) && a.Services == b.Services && a.Slices == b.Slices &&
		slices.EqualFunc(a.Triggers, b.Triggers, sameTrigger)
}

func sameTrigger(a, b Trigger) bool { return a.At.Equal(b.At) && a.IPv6 == b.IPv6 }

// A node that is about to be removed causes no change in the kernel.
func TestALeavingNodeIsNotAChange(t *testing.T) {
	s := NewStore()
	s.SetService(&Service{Name: Name{Namespace: "default", Name: "a"}})
	s.SetNode(&Node{Name: "node-a"})
	s.Take()
	s.SetNode(&Node{Name: "node-a", Leaving: true})
	if c := s.Take(); len(c.Services) != 0 || c.Facts != nil {
		t.Errorf("taken %+v, want nothing", c)
	}
	if n := s.Node(); n == nil || !n.Leaving {
		t.Errorf("the node is %+v, want it leaving", n)
	}
}
