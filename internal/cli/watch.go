package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/text"
)

// What happens to an item of a list that is watched.
const (
	listed  = "listed" // it was there at first
	added   = "added"
	changed = "changed"
	gone    = "gone"
)

// change is an item of a list with what happened to it.
type change struct {
	Change string          `json:"change"`
	Item   json.RawMessage `json:"item"`
}

// changeRows prints changes for people, their items by print.
func changeRows(print person) person {
	return func(t *text.Table, answer json.RawMessage) error {
		var c change
		if err := admin.Decode(answer, &c); err != nil {
			return err
		}
		t.Before = []text.Cell{{"CHANGE", fmt.Sprintf("%-*s", len(changed), c.Change)}}
		return print(t, c.Item)
	}
}

// item is what tells an item of a list from others.
type item struct {
	Namespace, Name, Service         string
	PortName, Protocol, Family, Pool string
	Port, Address, TargetPort        any // numbers or texts
}

func (i item) service() string { return i.Namespace + "/" + cmp.Or(i.Service, i.Name) }

// matches reports whether a filter selects the item: by its Service, or by the number of a node port.
func (i item) matches(f inspect.Filter) bool {
	name := cmp.Or(i.Service, i.Name)
	return (f.Namespace == "" || f.Namespace == i.Namespace) &&
		(f.Name == "" || f.Name == name || f.Name == fmt.Sprint(i.Port))
}

// itemLines are the answers of the items of a Service.
type itemLines map[item]string

// watching prints the changes of a list. It asks for the items of a Service after each Event of the Service, so that a
// change costs the daemon what the Service costs. It keeps what it has printed.
type watching struct {
	*getting

	printer *printer
	filters []inspect.Filter
	known   map[string]itemLines
	behind  bool // what was printed last may be out of date
}

// watch prints what there is, then changes, until the context ends.
func (g *getting) watch(ctx context.Context) error {
	filters, err := g.filters(g.names)
	if err != nil {
		return err
	}
	p := newPrinter(g.env.Stdout, g.format(), changeRows(g.person))
	w, last := &watching{getting: g, printer: p, filters: filters, known: map[string]itemLines{}}, uint64(0)
	for events, err := range eventBatches(ctx) {
		switch {
		case err != nil:
		case last == 0:
			err = w.update(listed, w.ask(ctx, w.names), nil)
			err = errors.Join(append(w.missing, err)...)
		default:
			err = w.follow(ctx, events, last)
		}
		if ctx.Err() != nil {
			return nil // interrupted, as intended
		}
		if err != nil {
			return err
		}
		if len(events) > 0 {
			last = events[len(events)-1].Number
		}
	}
	return nil
}

// follow prints what has changed since the Event with the number last. If the daemon cannot answer now, such as after a
// change of its configuration, follow says so, and the next call prints it.
func (w *watching) follow(ctx context.Context, events []eventLine, last uint64) error {
	touched := w.touched(events, last)
	var err error
	if w.behind {
		touched, err = nil, w.update(added, w.ask(ctx, w.names), slices.Collect(maps.Keys(w.known)))
	}
	for _, service := range touched {
		if err = w.update(added, w.ask(ctx, []string{service}), []string{service}); err != nil {
			break
		}
	}
	if _, w.behind = errors.AsType[admin.RefusedError](err); w.behind {
		fmt.Fprintln(w.env.Stderr, err)
		return nil
	}
	return err
}

// touched returns the Services that Events are about. It notes if Events are missing, or if one stands for many.
func (w *watching) touched(events []eventLine, last uint64) []string {
	var touched []string
	for _, e := range events {
		w.behind = w.behind || e.Number > last+1 || e.Kind == ""
		last = e.Number
		concerns := func(f inspect.Filter) bool { return e.Matches(anyPort(f)) }
		if e.Kind == "Service" && slices.ContainsFunc(w.filters, concerns) {
			touched = append(touched, e.Namespace+"/"+e.Name)
		}
	}
	slices.Sort(touched)
	return slices.Compact(touched)
}

// anyPort returns a filter for all Services in place of one for a node port, as any may have it.
func anyPort(f inspect.Filter) inspect.Filter {
	if _, err := strconv.Atoi(f.Name); err == nil {
		f.Name = ""
	}
	return f
}

// update prints answers that differ from those printed last, the new ones as appeared, and items of Services in scope
// that are gone.
func (w *watching) update(appeared string, answers answerLines, scope []string) error {
	now := map[string]itemLines{}
	for answer, err := range answers {
		if _, unknown := errors.AsType[admin.NotFoundError](err); unknown {
			break
		}
		var i item
		if err == nil {
			err = admin.Decode(answer, &i)
		}
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(w.filters, i.matches) {
			continue
		}
		if now[i.service()] == nil {
			now[i.service()] = itemLines{}
		}
		now[i.service()][i] = string(answer)
		before, known := w.known[i.service()][i]
		switch {
		case !known:
			err = w.print(appeared, string(answer))
		case !alike(before, string(answer)):
			err = w.print(changed, string(answer))
		}
		if err != nil {
			return err
		}
	}
	return w.forget(scope, now)
}

// alike reports whether two answers differ at most in numbers of connections, which change all the time.
func alike(a, b string) bool {
	numbers := regexp.MustCompile(`"(open|active|inactive)Connections":[0-9]+`)
	return a == b || numbers.ReplaceAllLiteralString(a, "") == numbers.ReplaceAllLiteralString(b, "")
}

// forget prints the items of Services that are gone, and keeps those that are there now.
func (w *watching) forget(services []string, now map[string]itemLines) error {
	var ended []string
	for _, service := range services {
		for i, line := range w.known[service] {
			if _, remains := now[service][i]; !remains {
				ended = append(ended, line)
			}
		}
		delete(w.known, service)
	}
	maps.Copy(w.known, now)
	slices.Sort(ended)
	for _, line := range ended {
		if err := w.print(gone, line); err != nil {
			return err
		}
	}
	return w.printer.flush()
}

func (w *watching) print(what, line string) error {
	answer, err := json.Marshal(change{what, json.RawMessage(line)})
	if err != nil {
		return fmt.Errorf("print a change: %w", err)
	}
	return w.printer.print(answer)
}

func newEvents(env Env) *cobra.Command {
	var s scope
	var watch bool
	o := newOutput(append([]format{{name: "text"}}, streamFormats()...))
	cmd := &cobra.Command{
		Use:     "events [SERVICE...]",
		Short:   "List what changed when: Services, their endpoints and frontends, and what the daemon reported",
		Long:    about("events"),
		Example: about("events: examples"),
	}
	s.register(cmd)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print new ones, too, until interrupted")
	o.register(cmd, cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filters, err := s.filters(args)
		if err != nil {
			return err
		}
		p := newPrinter(env.Stdout, o.format, prose[inspect.Event])
		for events, err := range eventBatches(cmd.Context()) {
			if err == nil {
				err = p.events(events, filters)
			}
			if err != nil || !watch {
				return noneOf("events", p.n, err, env)
			}
		}
		return nil
	}
	return cmd
}

// events prints the Events that a filter matches.
func (p *printer) events(events []eventLine, filters []inspect.Filter) error {
	for _, e := range events {
		if !slices.ContainsFunc(filters, e.Matches) {
			continue
		}
		if err := p.print(e.line); err != nil {
			return err
		}
	}
	return p.flush()
}

// eventLine is an Event with its line in the answer of the daemon.
type eventLine struct {
	inspect.Event

	line json.RawMessage
}

// eventBatches yields the Events that the daemon has kept, then new ones as they come, until the context ends.
func eventBatches(ctx context.Context) iter.Seq2[[]eventLine, error] {
	return func(yield func([]eventLine, error) bool) {
		last, query := uint64(0), url.Values(nil)
		for {
			batch, err := askEvents(ctx, query)
			if ctx.Err() != nil || !yield(batch, err) || err != nil {
				return
			}
			if len(batch) > 0 {
				last = batch[len(batch)-1].Number
			}
			query = url.Values{"after": {strconv.FormatUint(last, 10)}}
		}
	}
}

func askEvents(ctx context.Context, query url.Values) (events []eventLine, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for line, err := range admin.DialNearest().Ask(ctx, "/events", query) {
		e := eventLine{line: slices.Clone(line)}
		if err == nil {
			err = admin.Decode(line, &e.Event)
		}
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}
