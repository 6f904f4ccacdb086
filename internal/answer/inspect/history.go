package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// maxProblems is how many problems with objects a History keeps, and maxEvents how many Events.
const (
	maxProblems = 20
	maxEvents   = 1000
)

// History keeps the past events that a Status contains. It is safe for concurrent use.
type History struct {
	mu       sync.Mutex
	writes   Past
	rejected int
	problems []keptProblem // newest first
	events   []Event       // oldest first
	recorded uint64        // Event.Number of the last one
	more     chan struct{} // closed by the next Record
}

// NewHistory returns an empty History. Its Events have greater numbers than those of earlier ones, so that a client
// that asks for Events after one of an earlier History gets them: it has missed some if their numbers do not follow.
func NewHistory() *History {
	return &History{recorded: uint64(time.Now().UnixMicro()), more: make(chan struct{})}
}

// Observe records a write, successful or not (proxy.Options.Observe).
func (h *History) Observe(s proxy.Sync) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &h.writes
	w.Error = ""
	if s.Err != nil {
		w.Error = s.Err.Error()
		return
	}
	took := s.Took()
	w.LastSync = Sync{
		At: s.Began.Add(took), Took: Duration(took),
		Services: s.Services, Steps: s.Steps, Cause: s.Cause.String(),
	}
	if !s.Full() {
		return
	}
	if w.Comparisons == nil {
		w.Adopted = s.Adopted
	}
	w.Comparisons = addTo(w.Comparisons, w.LastSync)
	if s.Repair() {
		w.Repairs = addTo(w.Repairs, w.LastSync)
	}
}

// addTo adds one to the Tally of the cause of a Sync.
func addTo(list []Tally, s Sync) []Tally {
	i := slices.IndexFunc(list, func(t Tally) bool { return t.Cause == s.Cause })
	if i < 0 {
		return append(list, Tally{Cause: s.Cause, Count: 1, Last: s.At})
	}
	list[i].Count++
	list[i].Last = s.At
	return list
}

// keptProblem is a problem and the group of problems that it counts.
type keptProblem struct {
	Problem
	group event.Group
}

// Report records new problems with objects. Problems that differ only in the
// object are kept as one: the latest, with their number.
func (h *History) Report(problems []route.Problem) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range problems {
		h.rejected += p.Weight()
		k := keptProblem{Problem{now, p}, event.SameProblem(p)}
		k.Count = p.Weight()
		last := min(len(h.problems), maxProblems-1)
		if i := slices.IndexFunc(h.problems, func(old keptProblem) bool { return old.group == k.group }); i >= 0 {
			k.Count += h.problems[i].Count
			last = i
		}
		h.problems = slices.Insert(slices.Delete(h.problems, last, min(last+1, len(h.problems))), 0, k)
	}
}

// past returns copies for a Status.
func (h *History) past() (writes Past, rejected int, problems []Problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	writes = h.writes
	writes.Comparisons, writes.Repairs = slices.Clone(writes.Comparisons), slices.Clone(writes.Repairs)
	for _, k := range h.problems {
		problems = append(problems, k.Problem)
	}
	return writes, h.rejected, problems
}

// Event is an Event of the daemon: one that it has made, or a change of a Service.
type Event struct {
	Number uint64    `json:"number"` // one more than that of the previous Event since the start
	At     time.Time `json:"at"`
	event.Event
}

// Record keeps an Event.
func (h *History) Record(e event.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recorded++
	h.events = append(h.events[max(0, len(h.events)-maxEvents+1):], Event{h.recorded, time.Now(), e})
	close(h.more)
	h.more = make(chan struct{})
}

// Events returns the latest Events whose numbers are greater than after, the oldest first, and a channel that the next
// Record closes.
func (h *History) Events(after uint64) ([]Event, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearchFunc(h.events, after+1, func(e Event, n uint64) int { return cmp.Compare(e.Number, n) })
	return slices.Clone(h.events[i:]), h.more
}

// eventsWithin waits for an Event whose number is greater than after, until the context ends.
func (h *History) eventsWithin(ctx context.Context, after uint64) []Event {
	for {
		events, more := h.Events(after)
		if len(events) > 0 {
			return events
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}

// Matches reports whether a Filter selects the object of the Event.
func (e Event) Matches(f Filter) bool {
	return f.matches(cluster.Name{Namespace: e.Namespace, Name: e.Name})
}

// Print writes the Event as a line.
func (e Event) Print(out *text.Columns) {
	object := "Node"
	if e.Kind != "" {
		object = strings.TrimPrefix(e.Namespace+"/"+e.Name, "/")
	}
	if e.Type == event.Warning {
		out.Mark(text.Warning)
	}
	out.Printf("%s  %-7s  %-19s  %-30s  %s\n",
		e.At.Format(time.RFC3339), e.Type, e.Reason, text.Line(object), text.Line(e.Note))
}
