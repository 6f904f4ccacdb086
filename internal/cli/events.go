package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
)

// events are the arguments of a command.
type events struct {
	filter inspect.Filter
	format format
	watch  bool
	env    Env
}

// eventFormats are those of a list without an end: each answer is a line.
func eventFormats() []format {
	asLine := func(e json.RawMessage) ([]byte, error) { return append(e, '\n'), nil }
	return []format{{name: "text"}, {name: "json", encode: asLine}}
}

func newEvents(env Env) *cobra.Command {
	var namespace string
	e, o := events{env: env}, newOutput(eventFormats())
	cmd := &cobra.Command{
		Use:   "events [SERVICE]",
		Short: "List what changed when: Services, their endpoints and frontends, and what the daemon reported",
		Long: `List the last thousand changes of Services that are in the kernel, and Events of the daemon, the
oldest first. SERVICE, which is NAME or NAMESPACE/NAME, limits the list to one Service.

The daemon keeps the list in memory: it begins with the start of the daemon, or with a change of its
configuration. --output json prints one object per line. At -v 2 the daemon also logs the changes.`,
		Example: `  sluice events
  sluice events default/web
  sluice events --watch -o json | jq 'select(.type == "Warning")'`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "list this namespace only (default: all)")
	cmd.Flags().BoolVarP(&e.watch, "watch", "w", false, "print new ones, too, until interrupted")
	o.register(cmd, cmd.Flags())
	complete(cmd, "namespace", nil)
	cmd.ValidArgsFunction = completeNames(&namespace)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if e.filter, err = inspect.ParseFilter(strings.Join(args, ""), namespace); err != nil {
			return err
		}
		e.format = o.format
		return e.run(cmd.Context())
	}
	return cmd
}

func (e events) run(ctx context.Context) error {
	last := uint64(0)
	n, err := e.print(ctx, nil, &last)
	for e.watch && err == nil {
		_, err = e.print(ctx, url.Values{"after": {strconv.FormatUint(last, 10)}}, &last)
	}
	if e.watch && ctx.Err() != nil {
		return nil // interrupted, as intended
	}
	if err == nil && n == 0 {
		fmt.Fprintln(e.env.Stderr, "No events.")
	}
	return err
}

// print prints an answer, and sets last to the greatest number in it.
func (e events) print(ctx context.Context, query url.Values, last *uint64) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answers := admin.DialNearest().Ask(ctx, "/events", query)
	return show(e.env.Stdout, e.format, func(yield func(json.RawMessage, error) bool) {
		for line, err := range answers {
			var got inspect.Event
			if err == nil {
				err = admin.Decode(line, &got)
			}
			*last = max(*last, got.Number)
			if (err != nil || got.Matches(e.filter)) && !yield(line, err) {
				return
			}
		}
	}, prose[inspect.Event])
}
