package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
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

const topLong = `Show what happens at the ports of Services on this node, the busiest first: new connections per second,
live ones, bytes per second from clients and to them, and connections that no backend accepted.

On a terminal it is a live table until it is interrupted. Otherwise, and with -o json or yaml, it prints
once, after one interval. Ports that have had no connection are left out, except with NAME, which is NAME
or NAMESPACE/NAME. --output wide adds the sums since the proxy, or the kernel, began to count.

Modes nftables, iptables, ebpf, ipvs and userspace count; a dash is a number that the mode does not know.
Modes nftables and iptables know new connections only. Mode ipvs knows no failures. Mode ebpf counts only connections that sockets of this node open; LIVE are all connections of
this node to the backends of the Service, including direct ones.`

// minInterval bounds what a live table costs the daemon.
const minInterval = 100 * time.Millisecond

// top are the arguments of a command.
type top struct {
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
		Use:     "top [NAME]",
		Short:   "Show what happens at Services: new and live connections, bytes, failures",
		Long:    topLong,
		Example: "  sluice top\n  sluice top -n default --sort bytes\n  sluice top default/web -o json",
		Args:    cobra.MaximumNArgs(1),
	}
	in.register(cmd)
	cmd.Flags().DurationVar(&t.interval, "interval", 2*time.Second, "time between two readings of the counters")
	cmd.Flags().StringVar(&t.sort, "sort", sortNames()[0], "the first in the table: "+strings.Join(sortNames(), ", "))
	o.register(cmd, cmd.Flags())
	complete(cmd, "sort", sortNames())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if t.interval < minInterval {
			return fmt.Errorf("--interval %s: want at least %s", t.interval, minInterval)
		}
		if err := t.sorted(nil); err != nil {
			return err
		}
		t.query, t.format = in.queries(args)[0], o.format
		if o.encode == nil {
			t.terminal = screen(stdout)
		}
		return t.run(cmd.Context())
	}
	return cmd
}

func (t *top) run(ctx context.Context) error {
	now, err := t.read(ctx)
	if err == nil && t.terminal != nil {
		err = t.draw(now)
	}
	for at := time.Now(); err == nil; {
		before, since := now, at
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(t.interval):
			now, err = t.read(ctx)
		}
		if err != nil {
			break
		}
		at = time.Now()
		all := rates(before, now, at.Sub(since))
		if t.terminal == nil {
			return t.once(all)
		}
		err = t.draw(all)
	}
	if t.terminal != nil && ctx.Err() != nil {
		return nil // interrupted, as intended
	}
	return err
}

func (t *top) read(ctx context.Context) ([]inspect.Traffic, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return admin.All[inspect.Traffic](admin.DialNearest().Ask(ctx, "/traffic", t.query))
}

// rates returns the later of two lists with what happened in between.
func rates(before, now []inspect.Traffic, elapsed time.Duration) []inspect.Traffic {
	type port struct{ namespace, service, name, protocol string }
	of := func(t inspect.Traffic) port { return port{t.Namespace, t.Service, t.PortName, t.Protocol} }
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

func (t *top) once(all []inspect.Traffic) error {
	if err := t.sorted(all); err != nil {
		return err
	}
	n, err := show(t.env.Stdout, t.format, answered(all...), rows[inspect.Traffic])
	return noneOf("Service with connections", n, err, t.env)
}

// draw replaces what is on the terminal by a table of as many rows as it has room for.
func (t *top) draw(all []inspect.Traffic) error {
	if err := t.sorted(all); err != nil {
		return err
	}
	_, height := size(t.terminal)
	const titles = 3 // lines above the rows
	rowsShown := min(len(all), max(height-titles-1, 1))
	var table bytes.Buffer
	fmt.Fprintf(&table, "%s: %d of %s, sorted by %s\n\n", time.Now().Format(time.TimeOnly), rowsShown,
		text.Count(len(all), "Service port"), t.sort)
	if _, err := show(text.Safe(&table), t.format, answered(all[:rowsShown]...), rows[inspect.Traffic]); err != nil {
		return err
	}
	return redraw(t.terminal, table.String())
}

// sortNames are the values of --sort.
func sortNames() []string { return []string{"new", "live", "bytes", "failures", "name"} }

// sorted sorts a list that is sorted by name: the greatest value comes first.
func (t *top) sorted(all []inspect.Traffic) error {
	by, known := map[string][]plane.Signal{
		"new": {plane.Connections}, "live": {plane.Live}, "bytes": {plane.Received, plane.Sent},
		"failures": {plane.Failures}, "name": nil,
	}[t.sort]
	if !known {
		return fmt.Errorf("--sort %s: want %s", t.sort, strings.Join(sortNames(), ", "))
	}
	for _, signal := range by {
		for _, v := range all {
			if _, counted := v.Signals[signal]; !counted && len(v.Signals) > 0 {
				return fmt.Errorf("--sort %s: the mode of this node does not count %s", t.sort, t.sort)
			}
		}
	}
	value := func(v inspect.Traffic) (sum float64) {
		for _, signal := range by {
			if sum += v.PerSecond[signal]; signal == plane.Live {
				sum += float64(v.Signals[signal])
			}
		}
		return sum
	}
	slices.SortStableFunc(all, func(a, b inspect.Traffic) int { return cmp.Compare(value(b), value(a)) })
	return nil
}
