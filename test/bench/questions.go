//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// questionKind is a query of a command to the daemon, with its path on the control socket.
type questionKind struct{ name, path string }

func questionKinds() []questionKind {
	return []questionKind{
		{"none", ""},
		{"get services", "/services"},
		{"get backends", "/backends"},
		{"get nodeports", "/nodeports"},
		{"get services NAME", "/services?name=" + serviceName(7)},
		{"names for the shell", "/names?name=service-0"},
		{"status", "/status"},
		{"explain, an address", "/explain?source=node&destination=" + clusterIP(7).String() + ":80"},
		{"explain, a wrong name", "/explain?source=node&destination=" + namespace + "/" + serviceName(7) + "x"},
		{"diff", "/diff"},
	}
}

// delays are the times of changes from the store to the kernel during queries.
type delays struct {
	Question            string
	P50, P99, P999, Max time.Duration
	Changes, Answers    int
}

// daemon is the loop of the proxy in the network namespace of this process, and the handler that answers queries.
type daemon struct {
	store   *cluster.Store
	loop    *proxy.Loop
	handler http.Handler
	synced  chan error
	changed map[int]int // number of changes by Service
}

func newDaemon(o options) (*daemon, error) {
	p, err := newPipeline(o)
	if err != nil {
		return nil, err
	}
	reader, _, err := openPlane(o.plane, o.dir, route.Families())
	if err != nil {
		return nil, err
	}
	d := &daemon{store: p.store, synced: make(chan error, 1), changed: map[int]int{}}
	counted, history := sizes.New(), inspect.NewHistory()
	d.loop = proxy.New(proxy.Options{
		Store: p.store, Compiler: p.compiler, Plane: p.plane, Log: slog.New(slog.DiscardHandler),
		Followers: []proxy.Follower{counted},
		Observe: func(s proxy.Sync) {
			history.Observe(s)
			d.synced <- s.Err
		},
	})
	d.handler = inspect.New(inspect.Options{
		Loop: d.loop, Store: p.store, History: history, Sizes: counted.Sizes,
		Status: func(context.Context) inspect.Status { return inspect.Status{} },
		Diff:   d.diff(reader),
		Local:  func(context.Context) ([]netip.Addr, error) { return nil, nil },
		Plane:  nftables.Kind().Facts,
	}).Handler()
	return d, nil
}

// diff compares the kernel with the intended rules like the daemon, but only once, without waiting
// for a moment without a write.
func (d *daemon) diff(reader plane.Plane) func(context.Context) (plane.Plan, error) {
	return func(ctx context.Context) (plane.Plan, error) {
		if err := reader.Refresh(ctx); err != nil {
			return nil, err
		}
		v, err := d.loop.View(ctx)
		if err != nil {
			return nil, err
		}
		return reader.Plan(route.Change{Table: v.Routes.Table()}), nil
	}
}

// measureQuestions runs a loop with n Services, and measures changes while each kind of query is repeated.
func measureQuestions(o options) ([]delays, error) {
	d, err := newDaemon(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	feed := d.store.Feed()
	m := newGenerator()
	m.fill(d.store, o.child)
	feed()
	running.Go(func() { _ = d.loop.Run(ctx) })
	if err := <-d.synced; err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	var all []delays
	for _, kind := range questionKinds() {
		fmt.Fprintf(os.Stderr, "%d Services, question: %s\n", o.child, kind.name)
		got, err := d.changesDuring(kind, m, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.name, err)
		}
		all = append(all, got)
	}
	return all, nil
}

// changesDuring makes changes while a query is repeated.
func (d *daemon) changesDuring(kind questionKind, m generator, o options) (delays, error) {
	out := delays{Question: kind.name, Changes: o.changes}
	ctx, cancel := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	if kind.path != "" {
		asking.Go(func() { out.Answers = d.query(ctx, kind.path) })
	}
	took := make([]time.Duration, o.changes)
	var errs []error
	for i := range took {
		time.Sleep(changePause)
		at := i * 7919 % o.child
		d.changed[at]++
		sl := m.slice(at, 0, 1, 4+d.changed[at]%2)
		began := time.Now()
		d.store.SetSlice(sl)
		errs = append(errs, <-d.synced)
		took[i] = time.Since(began)
	}
	cancel()
	asking.Wait()
	slices.Sort(took)
	n := len(took)
	out.P50, out.P99, out.P999, out.Max = took[n/2], took[n*99/100], took[n*999/1000], took[n-1]
	return out, errors.Join(errs...)
}

// changePause is the time between two changes, queryPause that from one answer to the next query:
// in practice each query comes from a new process, which takes longer to start.
const (
	changePause = 5 * time.Millisecond
	queryPause  = time.Millisecond
)

// query repeats a query until the context ends, and returns the number of answers.
func (d *daemon) query(ctx context.Context, path string) int {
	n := 0
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, path, nil)
		if err != nil {
			return n
		}
		w := &discard{header: http.Header{}, code: http.StatusOK}
		d.handler.ServeHTTP(w, r)
		if w.code == http.StatusOK {
			n++
		}
		time.Sleep(queryPause)
	}
	return n
}

// discard is an http.ResponseWriter that stores only the status.
type discard struct {
	io.Writer

	header http.Header
	code   int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(code int)        { d.code = code }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// printQuestions prints a table for each size.
func printQuestions(w io.Writer, o options, results [][]delays) error {
	var b strings.Builder
	for i, n := range o.sizes {
		fmt.Fprintf(&b, "%d Services, %s: from a change in the store until the kernel has it, ms\n\n", n, o.plane)
		b.WriteString("| asked again and again | p50 | p99 | p99.9 | longest | changes | answers |\n" +
			"|---|---:|---:|---:|---:|---:|---:|\n")
		for _, d := range results[i] {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %d | %d |\n", d.Question,
				fineMillis(d.P50), fineMillis(d.P99), fineMillis(d.P999), fineMillis(d.Max), d.Changes, d.Answers)
		}
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func fineMillis(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1e3) }

// reportQuestions measures every size in its own process.
func reportQuestions(o options, w io.Writer) error {
	var results [][]delays
	for _, n := range o.sizes {
		out, err := child(o, n)
		if err != nil {
			return fmt.Errorf("measure %d Services: %w", n, err)
		}
		var r []delays
		if err := json.Unmarshal(out, &r); err != nil {
			return fmt.Errorf("read the result: %w", err)
		}
		results = append(results, r)
	}
	return printQuestions(w, o, results)
}
