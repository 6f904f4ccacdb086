package iptables

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/text/texttest"
)

// failing is a kernel whose tables sometimes cannot be read.
type failing struct {
	tableReader
	stamps, rules atomic.Bool // reading these fails
}

var errUnreadable = errors.New("entry at byte 152 of 1320: target of 7 bytes")

func (f *failing) Stamps(ctx context.Context) (map[TableID]Stamp, error) {
	if f.stamps.Load() {
		return nil, errUnreadable
	}
	return f.tableReader.Stamps(ctx)
}

func (f *failing) read(ctx context.Context, id TableID) (*legacyTable, error) {
	if f.rules.Load() && id.Name == "nat" {
		return nil, errUnreadable
	}
	return f.tableReader.read(ctx, id)
}

// Tables that cannot be read from the first poll on do not prevent writes. Meanwhile every
// poll requests a full comparison, the other tables are watched, and the error and its end
// are logged once each. Afterwards edits are detected again.
func TestTablesThatCannotBeRead(t *testing.T) {
	for name, fail := range map[string]func(*failing, bool){
		"all":      func(f *failing, fails bool) { f.stamps.Store(fails) },
		"one only": func(f *failing, fails bool) { f.rules.Store(fails) },
	} {
		t.Run(name, func(t *testing.T) {
			var log texttest.Buffer
			h := newHostWith(t, Legacy, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			h.restore(IPv4, base)
			tables := &failing{tableReader: h.tools.tables}
			h.tools.tables = tables
			fail(tables, true)
			o := observeHost(t, h)
			o.restore(IPv4, "*nat\n:KUBE-SVC-B - [0:0]\nCOMMIT\n*filter\n:KUBE-SVC-B - [0:0]\nCOMMIT\n")
			for range 2 {
				if e := o.next(); !e.Possible {
					t.Errorf("reported %+v, want a possible edit", e)
				}
			}
			if !strings.Contains(h.tools.WatchTrouble(), errUnreadable.Error()) {
				t.Errorf("WatchTrouble is %q", h.tools.WatchTrouble())
			}
			if name == "one only" {
				o.run("iptables -F KUBE-SERVICES")
				if e := o.observed(); e.What != "rule of KUBE-SERVICES in filter" {
					t.Errorf("reported %+v", e)
				}
			}
			fail(tables, false)
			for deadline := time.Now().Add(20 * time.Second); h.tools.WatchTrouble() != ""; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("WatchTrouble still returns %s", h.tools.WatchTrouble())
				}
			}
			if reported := o.settle(); len(reported) > 0 {
				t.Errorf("reported %v without an edit", reported)
			}
			o.run("iptables -t nat -F KUBE-SVC-A")
			if e := o.observed(); e.What != "rule of KUBE-SVC-A in nat" {
				t.Errorf("reported %+v", e)
			}
			if got := log.String(); strings.Count(got, "level=WARN") != 1 || strings.Count(got, "can be read again") != 1 {
				t.Errorf("logged:\n%s", got)
			}
		})
	}
}

// After an edit polls are frequent, then rarer until the period is reached. After errors
// the pause doubles, up to a limit.
func TestNextPoll(t *testing.T) {
	tools := &Tools{opts: Options{Poll: 3 * time.Second}}
	for _, tt := range []struct {
		last    time.Duration
		changed bool
		err     error
		want    time.Duration
	}{
		{3 * time.Second, false, nil, 3 * time.Second},
		{3 * time.Second, true, nil, firstPoll},
		{firstPoll, false, nil, firstPoll * 9 / 8},
		{2 * time.Second, false, nil, 9 * time.Second / 4},
		{2900 * time.Millisecond, false, nil, 3 * time.Second},
		{3 * time.Second, false, errUnreadable, 6 * time.Second},
		{firstPoll, false, errUnreadable, 6 * time.Second},
		{24 * time.Second, true, errUnreadable, lastRetry},
		{lastRetry, false, nil, 3 * time.Second},
	} {
		if got := tools.nextPoll(tt.last, tt.changed, tt.err); got != tt.want {
			t.Errorf("after %v, changed %v, %v: %v, want %v", tt.last, tt.changed, tt.err, got, tt.want)
		}
	}
}

// An edit right before a Restore of the same chain is reported with the time of that Restore.
func TestAnEditBeforeARestoreHasATime(t *testing.T) {
	o := observe(t, Legacy, func(h *host) { h.restore(IPv4, base) })
	for range 50 { // a poll can come between the edit and the Restore
		o.settle()
		began := time.Now()
		o.run("iptables -w 10 -t nat -F KUBE-SVC-A")
		if err := o.tools.Restore(t.Context(), IPv4, []byte("*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j RETURN\nCOMMIT\n")); err != nil {
			t.Fatal(err)
		}
		ended := time.Now()
		for _, e := range o.settle() {
			if e.Until.IsZero() {
				continue
			}
			if e.What != "chains just written in nat" || e.Until.Before(began) || e.Until.After(ended) {
				t.Errorf("reported %+v, want an edit between %v and %v", e, began, ended)
			}
			return
		}
	}
	t.Error("no edit was reported with a time")
}
