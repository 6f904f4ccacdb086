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
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/web"
)

// Status describes a daemon. `sluice status`, /statusz and monitoring read it. A zero time means that the event has not
// happened, an empty string that there is no trouble.
type Status struct {
	At      time.Time      `json:"at"` // when the status was taken; ages are relative to it
	Version string         `json:"version"`
	PID     int            `json:"pid"`
	Since   time.Time      `json:"since"`
	Health  health.Summary `json:"health"`

	Warnings []string `json:"warnings,omitempty"` // what needs attention now, one sentence each

	Mode     Mode         `json:"mode"`
	Families []string     `json:"families,omitempty"` // "IPv4", "IPv6"
	Node     cluster.Node `json:"node"`               // as the daemon last received it
	Source   Source       `json:"source"`

	Past

	Lag     cluster.Window `json:"lag"` // changes that are not in force yet
	Counts  Counts         `json:"counts"`
	Pending int            `json:"pending"` // Services with a change that may not be in the kernel yet
	Refused int            `json:"refused"` // Services whose rules the kernel rejects; not included in Pending

	Contest proxy.Contest `json:"contest,omitzero"` // with another program

	// WatchTrouble is why the daemon detects changes by other programs only by comparing all rules periodically.
	WatchTrouble string `json:"watchTrouble,omitempty"`

	// Busy is why Pending and Refused are unknown: a write takes a long time. Unlisted is why Counts are unknown, too: not
	// all objects have arrived yet.
	Busy     string `json:"busy,omitempty"`
	Unlisted string `json:"unlisted,omitempty"`

	// Direct says to which nodes this one passes connections of clients outside on. Nil: no Service requests that.
	Direct *plane.Direct `json:"direct,omitempty"`

	KubeProxy     string        `json:"kubeProxy,omitempty"` // the one that runs beside Sluice, and what to do
	Takeover      []string      `json:"takeover,omitempty"`  // what happened to another proxy's rules, one sentence each
	Configuration Configuration `json:"configuration"`
	HostSettings  []HostSetting `json:"hostSettings,omitempty"`
	Servers       []web.State   `json:"servers,omitempty"`
	HealthPorts   []HealthPort  `json:"healthPorts,omitempty"` // only those that could not be opened
	Problems      []Problem     `json:"problems,omitempty"`    // with objects; the latest, newest first
}

// Past is what the loop has written.
type Past struct {
	LastSync    Sync    `json:"lastSync"`              // the latest successful one
	Error       string  `json:"error,omitempty"`       // of the latest write; empty: it succeeded
	Comparisons []Tally `json:"comparisons,omitempty"` // of everything with the kernel, by cause
	Repairs     []Tally `json:"repairs,omitempty"`     // comparisons that repaired something, by cause
	Adopted     int     `json:"adopted"`               // correct entries that the start found in the kernel
}

const statusTimeout = time.Second

// Status returns the status of the daemon. It never waits long: if the loop is busy, Busy says so.
func (i *Inspector) Status(ctx context.Context) Status {
	s := i.opt.Status(ctx)
	s.At = time.Now()
	if own := i.opt.Store.Node(); own != nil {
		s.Node = *own
	}
	s.Lag = i.opt.Store.Backlog()
	s.Counts.Sizes = i.opt.Sizes()
	s.Past, s.Counts.Rejected, s.Problems = i.opt.History.past()
	routes := i.pending(ctx, &s)
	s.Warnings = s.warnings()
	if routes != nil {
		s.Warnings = append(s.Warnings, i.pressed(ctx, routes)...)
	}
	return s
}

// pending adds which changes are not in the kernel, and returns the Services; nil: they are not known.
func (i *Inspector) pending(ctx context.Context, s *Status) *route.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	v, err := i.opt.Loop.View(ctx)
	switch {
	case err != nil:
		s.Busy = "a write to the kernel is under way"
		return nil
	case !v.Listed:
		s.Unlisted = unlisted(s.Source).Error()
		return nil
	}
	s.Pending, s.Refused = v.Pending.Len(), len(v.Refused)
	for name := range v.Refused {
		if v.Pending.Has(name) {
			s.Pending--
		}
	}
	return v.Routes
}

// Mode is the data plane in use.
type Mode struct {
	Name   string `json:"name"`
	Reason string `json:"reason,omitempty"` // why it was chosen

	// Configured is the mode in whose place this one serves, and Fallback why this host does not support that one. Empty:
	// there is none.
	Configured string `json:"configured,omitempty"`
	Fallback   string `json:"fallback,omitempty"`

	How string `json:"how,omitempty"` // how it writes rules: "by iptables-nft, as ..."

	// Transient means that Services are not served while the process is down.
	Transient bool `json:"transient,omitempty"`
}

// Source is the origin of Services.
type Source struct {
	Kind string `json:"kind"` // "API server", "manifests"
	source.State
}

// Sync is one successful write.
type Sync struct {
	At       time.Time `json:"at,omitzero"` // when it ended
	Took     Duration  `json:"took"`
	Services int       `json:"services"` // touched
	Steps    int       `json:"steps"`
	Cause    string    `json:"cause"` // "change", or why everything was compared
}

// Counts are the numbers of programmed objects, as of the last sync.
type Counts struct {
	sizes.Sizes

	Rejected int `json:"rejected"` // problems with objects since the start
}

// Tally counts the events of one cause.
type Tally struct {
	Cause string    `json:"cause"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

// Configuration describes the configuration in force.
type Configuration struct {
	File      string    `json:"file,omitempty"`     // empty: flags only
	Loaded    time.Time `json:"loaded"`             // when the one in force was read
	Refused   string    `json:"refused,omitempty"`  // why a newer file is not in force
	RefusedAt time.Time `json:"refusedAt,omitzero"` // when that file was read
	Due       time.Time `json:"due,omitzero"`       // when a changed file takes effect
	Reloads   int       `json:"reloads"`            // changed files that took effect since the process started
	Warnings  []string  `json:"warnings,omitempty"` // deprecated settings, and those without effect
}

// HostSetting is a kernel parameter or similar setting of the host that Sluice sets.
type HostSetting struct {
	Name  string `json:"name"`
	Want  string `json:"want"`
	Was   string `json:"was,omitempty"` // before Sluice set it
	Is    string `json:"is,omitempty"`
	Error string `json:"error,omitempty"`
}

// HealthPort is a health check node port that the daemon cannot open.
type HealthPort struct {
	Service string `json:"service"`
	Port    uint16 `json:"port"`
	Error   string `json:"error"`
}

// Problem is a fault in an object. Problems that differ only in the object count as one.
type Problem struct {
	At time.Time `json:"at"`
	route.Problem
}

// Duration is formatted for people, "1.2ms", also in JSON.
type Duration time.Duration

// String returns the duration rounded to about three digits.
func (d Duration) String() string { return text.Duration(time.Duration(d)) }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

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
