package kube

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/source/state"
)

// State tells how the Source is doing. It is connected from the first answer of
// the server on, until nobody there answers any more; a server that refuses
// something answers. It is safe for concurrent use.
func (s *Source) State() state.State {
	st := s.contact.state()
	st.From = s.options.Client.server
	st.Problems = s.report.Count()
	st.Objects = map[string]int{}
	for _, f := range s.feeds {
		if at := f.seen.last.Load(); at != nil && at.After(st.LastEvent) {
			st.LastEvent = *at
		}
		if f.seen.listed.Load() {
			st.Objects[f.name] = int(f.seen.objects.Load())
		}
	}
	return st
}

// state is what a contact knows.
func (c *contact) state() state.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := state.State{Connected: c.connected, Since: c.since}
	var troubles []string
	for kind, t := range c.kinds {
		troubles = append(troubles, kind+": "+string(t)+": "+c.why[kind])
	}
	slices.Sort(troubles)
	if c.outage != "" {
		troubles = append([]string{string(c.outage) + ": " + c.why[""]}, troubles...)
	}
	st.Trouble = strings.Join(troubles, "; ")
	return st
}

// sight is what was seen of the objects of one kind.
type sight struct {
	listed  atomic.Bool
	objects atomic.Int64
	last    atomic.Pointer[time.Time]
}

func (s *sight) note() { s.last.Store(new(time.Now())) }

// watched is a sink that counts what comes by.
type watched struct {
	*sink

	seen *sight
}

// Add implements cache.ReflectorStore.
func (w watched) Add(obj any) error {
	w.seen.objects.Add(1)
	w.seen.note()
	return w.sink.Add(obj)
}

// Update implements cache.ReflectorStore.
func (w watched) Update(obj any) error {
	w.seen.note()
	return w.sink.Update(obj)
}

// Delete implements cache.ReflectorStore.
func (w watched) Delete(obj any) error {
	w.seen.objects.Add(-1)
	w.seen.note()
	return w.sink.Delete(obj)
}

// Replace implements cache.ReflectorStore.
func (w watched) Replace(list []any, version string) error {
	w.seen.objects.Store(int64(len(list)))
	w.seen.listed.Store(true)
	w.seen.note()
	return w.sink.Replace(list, version)
}
