package kube

import (
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/source"
)

// State returns the state of the Source. It is connected from the first answer of
// the server until the server stops answering; a refusal is an answer. It is safe
// for concurrent use.
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
	for kind, t := range h.kinds {
		troubles = append(troubles, kind+": "+string(t)+": "+h.why[kind])
	}
	slices.Sort(troubles)
	if h.outage != "" {
		troubles = append([]string{string(h.outage) + ": " + h.why[""]}, troubles...)
	}
	st.Trouble = strings.Join(troubles, "; ")
	return st
}
