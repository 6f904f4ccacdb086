package cli

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
)

func newEvents(env Env) *cobra.Command {
	var s scope
	var watch bool
	o := newOutput(append([]format{{name: "text"}}, streamFormats()...))
	cmd := &cobra.Command{
		Use:   "events [SERVICE...]",
		Short: "List what changed when: Services, their endpoints and frontends, and what the daemon reported",
		Long: `List the last thousand changes of Services that are in the kernel, and Events of the daemon, the
oldest first. SERVICE, which is NAME or NAMESPACE/NAME, limits the list to these Services.

The daemon keeps the list in memory: it begins with the start of the daemon, or with a change of its
configuration. --output json prints one object per line. At -v 2 the daemon also logs the changes.`,
		Example: `  sluice events
  sluice events default/web
  sluice events --watch -o json | jq 'select(.type == "Warning")'`,
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
