package kube

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/source/state"
)

// State returns the state of the Source. It is connected from the first answer of
// the server until the server stops answering; a refusal is an answer. It is safe
// for concurrent use.
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

// state returns the state of the connection, as far as a contact knows it.
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

// counter counts the objects of one kind and records the last change.
type counter struct {
	listed  atomic.Bool
	objects atomic.Int64
	last    atomic.Pointer[time.Time]
}

func (s *counter) note() { s.last.Store(new(time.Now())) }

// watched is a sink that counts its objects.
type watched struct {
	*sink

	seen *counter
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
