package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Limits.
const (
	concurrency   = 32               // nodes that are asked at a time
	answerTimeout = 10 * time.Second // for one node, unless the user chose another
	maxAnswer     = 4 << 20          // bytes; usual are some thousand
)

// Answer is the status of Sluice on one node, or why there is none.
type Answer struct {
	Node    string   `json:"node"`
	Pod     string   `json:"pod"`
	Error   string   `json:"error,omitempty"`   // why there is no status
	Differs []string `json:"differs,omitempty"` // how the node differs from most others, one clause each
	Status  *Status  `json:"status,omitempty"`
}

// Status is the answer of a daemon. As JSON it has all fields, including those that this version does not know.
type Status struct {
	inspect.Status

	all json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Status) UnmarshalJSON(b []byte) error {
	s.all = bytes.Clone(b)
	return json.Unmarshal(b, &s.Status)
}

// MarshalJSON implements json.Marshaler.
func (s *Status) MarshalJSON() ([]byte, error) { return s.all, nil }

// Ask asks the daemon in each pod for its status, and returns the answers with outliers first. A node that does not
// answer is no error. It calls progress with the number of nodes that are done, one call at a time.
func (c *Cluster) Ask(ctx context.Context, pods []Pod, progress func(done int)) ([]Answer, error) {
	var mu sync.Mutex
	done, answers := 0, make([]Answer, len(pods))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i, p := range pods {
		group.Go(func() error {
			answer, err := c.ask(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			answers[i], done = answer, done+1
			progress(done)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return arrange(answers), nil
}

// ask returns an error only if no other node would answer either.
func (c *Cluster) ask(ctx context.Context, p Pod) (Answer, error) {
	a := Answer{Node: p.Node, Pod: p.Name, Error: p.Trouble}
	if a.Error != "" {
		return a, nil
	}
	limit := cmp.Or(c.Timeout, answerTimeout)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out, messages limited
	err := c.Run(ctx, p, []string{"status", "-o", "json"}, Streams{&out, &messages})
	_, ended := errors.AsType[*ExitError](err)
	switch {
	case errors.Is(err, errForbidden):
		return a, err
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded): // also of a connection
		a.Error = "no answer within " + text.Duration(limit)
	case ctx.Err() != nil:
		a.Error = "interrupted"
	case out.full:
		a.Error = "the answer has more than " + text.Bytes(maxAnswer)
	case err != nil && !ended:
		a.Error = err.Error()
	case len(out.Bytes()) == 0:
		a.Error = cmp.Or(strings.TrimPrefix(strings.TrimSpace(messages.String()), "sluice: "), "the answer is empty")
	default:
		if err := json.Unmarshal(out.Bytes(), &a.Status); err != nil {
			a.Status, a.Error = nil, fmt.Sprintf("read the answer (does it have another version?): %v", err)
		}
	}
	return a, nil
}

// limited is a buffer that refuses more than maxAnswer bytes.
type limited struct {
	bytes.Buffer

	full bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.full = l.full || l.Len()+len(p) > maxAnswer; l.full {
		return 0, errors.New("too long")
	}
	return l.Buffer.Write(p)
}

// arrange says how nodes differ from most others, and sorts them: no answer by reason, then those that are not healthy,
// that differ, that have warnings, and the others.
func arrange(all []Answer) []Answer {
	for _, trait := range []struct {
		say string
		of  func(*Status) string
	}{
		{"most nodes run ", func(s *Status) string { return s.Version }},
		{"most nodes use mode ", func(s *Status) string { return s.Mode.Name }},
		{"direct: most nodes have the owners ", func(s *Status) string {
			if s.Direct == nil {
				return "none"
			}
			return s.Direct.Checksum
		}},
	} {
		usual := most(all, trait.of)
		for i, a := range all {
			if a.Status != nil && trait.of(a.Status) != usual {
				all[i].Differs = append(all[i].Differs, trait.say+usual)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Answer) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Node, b.Node))
	})
	return all
}

// most returns the value that most answers have; of equally many the smallest.
func most(all []Answer, value func(*Status) string) string {
	counts := map[string]int{}
	for _, a := range all {
		if a.Status != nil {
			counts[value(a.Status)]++
		}
	}
	best := ""
	for v, n := range counts {
		if n > counts[best] || n == counts[best] && v < best {
			best = v
		}
	}
	return best
}

// rank is low for what a person must see first.
func (a Answer) rank() int {
	switch {
	case a.Status == nil:
		return 0
	case a.Status.Health.State == health.Sick:
		return 1
	case a.Status.Health.State != health.Healthy:
		return 2
	case len(a.Differs) > 0:
		return 3
	case len(a.Status.Warnings) > 0:
		return 4
	}
	return 5
}

// problems returns what a person should know of a node, the most important first.
func (a Answer) problems() (all []string) {
	if a.Status == nil {
		return []string{a.Error}
	}
	if s := a.Status.Health; s.State != health.Healthy && s.Reason != "" {
		all = append(all, s.Reason)
	}
	return slices.Concat(all, a.Differs, a.Status.Warnings)
}

// Rows returns the answer as a row of a table.
func (a Answer) Rows() []text.Row {
	var s inspect.Status
	state, synced, up, services := "no answer", "", "", ""
	if a.Status != nil {
		s = a.Status.Status
		state, services = string(s.Health.State), strconv.Itoa(s.Counts.Services)
		up = inspect.Duration(max(0, s.At.Sub(s.Since))).String()
		if at := s.LastSync.At; !at.IsZero() {
			synced = inspect.Duration(max(0, s.At.Sub(at))).String() + " ago"
		}
	}
	problem := ""
	if all := a.problems(); len(all) > 0 {
		problem = all[0]
		if more := len(all) - 1; more > 0 {
			problem += fmt.Sprintf(" (+%d more)", more)
		}
	}
	marks := [...]text.Mark{text.Bad, text.Bad, text.Warning, text.Warning, text.Warning, ""}
	return []text.Row{{
		Mark: marks[a.rank()],
		Cells: []text.Cell{
			{"NODE", a.Node},
			{"VERSION", s.Version},
			{"MODE", s.Mode.Name},
			{"HEALTH", state},
			{"LAST-SYNC", synced},
			{"PROBLEMS", problem},
		},
		Wide: []text.Cell{{"POD", a.Pod}, {"RUNNING", up}, {"SERVICES", services}},
	}}
}

// Summary counts the answers for people, and returns how many nodes are not healthy and how many did not answer.
func Summary(all []Answer) (line string, unhealthy, unanswered int) {
	counts := map[string]int{}
	for _, a := range all {
		if a.Status == nil {
			unanswered++
			continue
		}
		counts[string(a.Status.Health.State)]++
		if a.Status.Health.State != health.Healthy {
			unhealthy++
		}
		if len(a.Differs) > 0 {
			counts["unlike most"]++
		}
	}
	counts["did not answer"] = unanswered
	line = text.Count(len(all), "node") + ":"
	for _, what := range []string{
		string(health.Healthy), string(health.Sick), string(health.Starting), "did not answer", "unlike most",
	} {
		if n := counts[what]; n > 0 {
			line += fmt.Sprintf(" %d %s,", n, what)
		}
	}
	return strings.TrimSuffix(line, ","), unhealthy, unanswered
}
