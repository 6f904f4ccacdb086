package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/text"
)

// minInterval bounds what a live table costs the daemon.
const minInterval = 100 * time.Millisecond

// subject is what the rows of a table are.
type subject struct {
	name  string
	path  string   // of the query
	row   string   // what a row is
	sorts []string // values of --sort
}

func subjects() []subject {
	signals := []string{"new", "live", "bytes", "failures", "name"}
	return []subject{
		{"services", "/traffic", "Service port", signals},
		{"backends", "/traffic/backends", "backend", signals},
		{"clients", "/clients", "client", []string{"entries", "live", "name"}},
	}
}

func subjectNames() (names []string) {
	for _, s := range subjects() {
		names = append(names, s.name)
	}
	return names
}

// top are the arguments of a command.
type top struct {
	subject

	query    url.Values
	interval time.Duration
	sort     string
	format   format

	env      Env
	terminal *os.File // of the live table; nil: print once
}

func newTop(env Env, stdout io.Writer) *cobra.Command {
	var in scope
	t, o := &top{env: env}, newOutput(listFormats())
	cmd := &cobra.Command{
		Use:   "top [services|backends|clients] [NAME]",
		Short: "Show what happens at Services: new and live connections, bytes, failures, clients",
		Long:  about("top"),
		Example: "  sluice top\n  sluice top -n default --sort bytes\n  sluice top default/web -o json\n" +
			"  sluice top backends default/web\n  sluice top clients",
		Args: cobra.MaximumNArgs(2),
	}
	in.register(cmd)
	cmd.Flags().DurationVar(&t.interval, "interval", 2*time.Second, "time between two readings of the counters")
	cmd.Flags().StringVar(&t.sort, "sort", "", "the first in the table: new, live, bytes, failures, name; "+
		"of clients: entries, live, name")
	o.register(cmd, cmd.Flags())
	complete(cmd, "sort", []string{"new", "live", "bytes", "failures", "entries", "name"})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if t.interval < minInterval {
			return fmt.Errorf("--interval %s: want at least %s", t.interval, minInterval)
		}
		names, err := t.choose(args)
		if err != nil {
			return err
		}
		t.query, t.format = in.queries(names)[0], o.format
		if o.encode == nil {
			t.terminal = screen(stdout)
		}
		return t.run(cmd.Context())
	}
	return cmd
}

// choose sets the subject, and returns the other arguments.
func (t *top) choose(args []string) ([]string, error) {
	at := -1
	if len(args) > 0 {
		at = slices.Index(subjectNames(), args[0])
	}
	if at < 0 && len(args) > 1 {
		return nil, fmt.Errorf("unknown subject %q: want %s", args[0], strings.Join(subjectNames(), ", "))
	}
	t.subject = subjects()[max(at, 0)]
	t.sort = cmp.Or(t.sort, t.sorts[0])
	if !slices.Contains(t.sorts, t.sort) {
		return nil, fmt.Errorf("--sort %s: want %s", t.sort, strings.Join(t.sorts, ", "))
	}
	if at >= 0 {
		args = args[1:]
	}
	return args, nil
}

// frame is a reading.
type frame struct {
	at      time.Time
	traffic []inspect.Traffic
	clients []inspect.Client
	table   inspect.Conntrack
}

func (f frame) len() int { return len(f.traffic) + len(f.clients) }

func (t *top) run(ctx context.Context) error {
	now, err := t.read(ctx)
	switch {
	case err == nil && t.terminal != nil:
		err = t.draw(now)
	case err == nil && t.name == "clients": // nothing in it is per second
		return t.once(now)
	}
	for err == nil {
		before := now
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(t.interval):
			now, err = t.read(ctx)
		}
		if err != nil {
			break
		}
		shown := now
		shown.traffic = rates(before.traffic, now.traffic, now.at.Sub(before.at))
		if t.terminal == nil {
			return t.once(shown)
		}
		err = t.draw(shown)
	}
	if t.terminal != nil && ctx.Err() != nil {
		return nil // interrupted, as intended
	}
	return err
}

func (t *top) read(ctx context.Context) (f frame, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	daemon := admin.DialNearest()
	if t.name == "clients" {
		f.clients, err = admin.All[inspect.Client](daemon.Ask(ctx, t.path, t.query))
	} else {
		f.traffic, err = admin.All[inspect.Traffic](daemon.Ask(ctx, t.path, t.query))
	}
	if f.at = time.Now(); err != nil || t.format.encode != nil {
		return f, err
	}
	var answer json.RawMessage
	if err := daemon.Get(ctx, "/conntrack", nil, &answer); err != nil {
		return f, err
	}
	return f, admin.Decode(answer, &f.table)
}

// rates returns the later of two lists with what happened in between.
func rates(before, now []inspect.Traffic, elapsed time.Duration) []inspect.Traffic {
	type port struct {
		namespace, service, name, protocol string
		backend                            netip.AddrPort
	}
	of := func(t inspect.Traffic) port { return port{t.Namespace, t.Service, t.PortName, t.Protocol, t.Backend} }
	was := map[port]plane.Traffic{}
	for _, t := range before {
		was[of(t)] = t.Signals
	}
	all := slices.Clone(now)
	for i, t := range all {
		all[i].PerSecond = map[plane.Signal]float64{}
		for signal, n := range t.Signals.Since(was[of(t)]) {
			all[i].PerSecond[signal] = math.Round(10*float64(n)/elapsed.Seconds()) / 10
		}
	}
	return all
}

func (t *top) once(f frame) error {
	if err := t.sorted(f); err != nil {
		return err
	}
	for _, why := range f.table.Warnings {
		fmt.Fprintf(t.env.Stdout, "Warning: %s\n", why)
	}
	n, err := t.print(t.env.Stdout, f, f.len())
	return noneOf(t.row+" with connections", n, err, t.env)
}

// print prints the first n rows.
func (t *top) print(w io.Writer, f frame, n int) (int, error) {
	if t.name == "clients" {
		return show(w, t.format, answered(f.clients[:n]...), rows[inspect.Client])
	}
	return show(w, t.format, answered(f.traffic[:n]...), rows[inspect.Traffic])
}

// draw replaces what is on the terminal by a table of as many rows as it has room for.
func (t *top) draw(f frame) error {
	if err := t.sorted(f); err != nil {
		return err
	}
	_, height := size(t.terminal)
	titles := 3 + len(f.table.Warnings) // lines above the rows
	rowsShown := min(f.len(), max(height-titles-1, 1))
	var table bytes.Buffer
	fmt.Fprintf(&table, "%s: %d of %s, sorted by %s%s\n", f.at.Format(time.TimeOnly), rowsShown,
		text.Count(f.len(), t.row), t.sort, f.age(t.interval))
	for _, why := range f.table.Warnings {
		fmt.Fprintf(&table, "Warning: %s\n", why)
	}
	fmt.Fprintln(&table)
	if _, err := t.print(text.Safe(&table), f, rowsShown); err != nil {
		return err
	}
	return redraw(t.terminal, table.String())
}

// age says how old what comes from conntrack is, unless it is newer than two readings.
func (f frame) age(interval time.Duration) string {
	age := f.at.Sub(f.table.At)
	if f.table.At.IsZero() || age <= max(2*interval, 2*time.Second) {
		return ""
	}
	return ", conntrack as of " + text.Duration(age.Round(time.Second)) + " ago"
}

// sorted sorts the lists of a frame, which are sorted by name or by entries: the greatest value comes first.
func (t *top) sorted(f frame) error {
	if t.name == "clients" {
		slices.SortStableFunc(f.clients, func(a, b inspect.Client) int {
			switch t.sort {
			case "live":
				return cmp.Compare(b.Live, a.Live)
			case "name":
				return a.Client.Compare(b.Client)
			}
			return 0
		})
		return nil
	}
	return t.sortTraffic(f.traffic)
}

func (t *top) sortTraffic(all []inspect.Traffic) error {
	by := map[string][]plane.Signal{
		"new": {plane.Connections}, "live": {plane.Live}, "bytes": {plane.Received, plane.Sent},
		"failures": {plane.Failures, plane.Unanswered, plane.Refusals}, "name": nil,
	}[t.sort]
	known := len(by) == 0 || len(all) == 0
	value := func(v inspect.Traffic) (sum float64) {
		for _, signal := range by {
			if sum += v.PerSecond[signal]; signal == plane.Live {
				sum += float64(v.Signals[signal])
			}
		}
		return sum
	}
	for _, v := range all {
		for _, signal := range by {
			_, counted := v.Signals[signal]
			known = known || counted
		}
	}
	if !known && t.sort != t.sorts[0] {
		return fmt.Errorf("--sort %s: the mode of this node does not count %s", t.sort, t.sort)
	}
	slices.SortStableFunc(all, func(a, b inspect.Traffic) int { return cmp.Compare(value(b), value(a)) })
	return nil
}
