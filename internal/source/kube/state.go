package kube

import (
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/source"
)

// State returns the state of the Source. It is connected from the first answer of the server until the server stops
// answering; a refusal is an answer. It is safe for concurrent use.
func (s *Source) State() source.State {
	st := s.health.state()
	st.From = s.options.Client.server
	st.Problems = s.report.Count()
	st.Objects = map[string]int{}
	for _, f := range s.feeds {
		if at := f.to.last.Load(); at != nil && at.After(st.LastEvent) {
			st.LastEvent = *at
		}
		if f.to.listed.Load() {
			st.Objects[f.name] = int(f.to.objects.Load())
		}
	}
	return st
}

func (h *serverHealth) state() source.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := source.State{Connected: h.connected, Since: h.since}
	var troubles []string
	for _, kind := range slices.Sorted(maps.Keys(h.failures)) { // the server itself first
		f := h.failures[kind]
		troubles = append(troubles, strings.TrimPrefix(kind+": "+string(f.trouble)+": "+f.reason, ": "))
	}
	st.Trouble = strings.Join(troubles, "; ")
	return st
}
