package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// replaceRestore runs a shell script in place of the IPv4 restore program. In the script,
// "$restore" is the program and "$iptables" edits tables.
func replaceRestore(t *testing.T, tools *Tools, script string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "iptables-"+string(tools.variant)+"-restore")
	text := fmt.Sprintf("#!/bin/sh\nrestore=/usr/sbin/iptables-%[1]s-restore\niptables=/usr/sbin/iptables-%[1]s\n%[2]s\n",
		tools.variant, script)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	tools.programs = map[Family]programs{IPv4: {restore: path, save: tools.programs[IPv4].save}}
	tools.opts.Path = "/usr/sbin:/usr/bin:/bin"
}

// An edit immediately after our write, before the effect of the write on the table is known, is reported at least as
// possible. It changes only chains that the write changed as well.
func TestAnEditRightAfterAWriteIsReported(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		for _, edit := range []string{
			"-F KUBE-SERVICES", "-D PREROUTING -j KUBE-SERVICES", "-R KUBE-SERVICES 1 -p tcp -j ACCEPT",
		} {
			h := newHost(t, variant)
			replaceRestore(t, h.tools, `"$restore" "$@" && exec "$iptables" -w 5 -t nat `+edit)
			o := observeHost(t, h)
			o.restore(IPv4, "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -p tcp -j RETURN\n"+
				"-I PREROUTING -j KUBE-SERVICES\nCOMMIT\n")
			if e := o.next(); variant == NFT && (e.Possible || e.Unclear) {
				t.Errorf("%s: reported %+v, want an observed edit", edit, e)
			}
		}
	})
}

// drain waits until the watch has polled once more, and returns what it reported.
func (o *observer) drain() []Edit {
	o.t.Helper()
	w := o.tools.legacy.Load()
	for settled := false; !settled; time.Sleep(5 * time.Millisecond) {
		stamps, err := o.tools.kernel.Stamps(o.t.Context())
		if err != nil {
			o.t.Fatal(err)
		}
		w.mu.Lock()
		settled = !w.wrote && len(w.changed) == 0
		for id, s := range stamps {
			settled = settled && (id.Name == "raw" || w.stamps[id] == s)
		}
		w.mu.Unlock()
	}
	time.Sleep(2 * o.tools.opts.Poll) // the report follows
	var all []Edit
	for len(o.edits) > 0 {
		all = append(all, <-o.edits)
	}
	return all
}

// Every change of the number of rules in a table, or of their size, is reported with the table.
func TestEditsOfLegacyTables(t *testing.T) {
	o := observe(t, Legacy, func(*host) {})
	for _, tt := range []struct{ command, want string }{
		{"iptables -t nat -F KUBE-SERVICES", "rules in nat"},
		{"iptables -F KUBE-SERVICES", "rules in filter"},
		{"ip6tables -t nat -F KUBE-SVC-A", "rules in nat of IPv6"},
		{"iptables -t nat -X KUBE-EMPTY", "rules in nat"},
		{"iptables -t mangle -N KUBE-NEW", "rules in mangle"},
		{"iptables -D INPUT -j KUBE-SERVICES", "rules in filter"},
		{"iptables -t nat -R KUBE-SVC-A 1 -p udp --dport 53 -j ACCEPT", "rules in nat"},
		{"iptables -t nat -A DOCKER -j KUBE-SVC-A", "rules in nat"},
		{"iptables -t raw -A PREROUTING -j ACCEPT", ""},
		{"iptables -t nat -S", ""},
	} {
		o.reset()
		o.drain()
		o.run(tt.command)
		got := ""
		for _, e := range o.drain() {
			got += e.What
			if !e.Unclear || e.Possible {
				t.Errorf("after %q: reported %+v, want it unclear", tt.command, e)
			}
		}
		if got != tt.want {
			t.Errorf("after %q: reported %q, want %q", tt.command, got, tt.want)
		}
	}
}

// A write is reported once, as a possible edit. An edit before a write is reported all the same.
func TestOwnWritesOfLegacyTables(t *testing.T) {
	o := observe(t, Legacy, func(*host) {})
	for range 3 {
		o.restore(IPv4, base)
		if all := o.drain(); len(all) != 1 || !all[0].Possible {
			t.Errorf("after a write: reported %+v, want one possible edit", all)
		}
		if all := o.drain(); len(all) > 0 {
			t.Errorf("without a write: reported %+v", all)
		}
	}
	for range 5 { // a poll can come between the two
		o.run("iptables -w 10 -t nat -F KUBE-SVC-A")
		o.restore(IPv4, "*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j RETURN\nCOMMIT\n")
		if all := o.drain(); len(all) == 0 || all[0].What != "rules in nat" || !all[0].Unclear {
			t.Errorf("after an edit before a write: reported %+v", all)
		}
	}
}

// memory are stamps in memory.
type memory struct {
	size byte
	err  error
}

func (m *memory) read(context.Context) (map[TableID]Stamp, error) {
	return map[TableID]Stamp{{Legacy, IPv4, "nat"}: {m.size}, {Legacy, IPv4, "raw"}: {m.size}}, m.err
}

// newLegacyWatch watches a table in memory.
func newLegacyWatch(t *testing.T, m *memory) *legacyWatch {
	t.Helper()
	tools := &Tools{variant: Legacy, opts: Options{Poll: 3 * time.Second}}
	w := &legacyWatch{tools: tools, read: m.read}
	w.poll(t.Context())
	return w
}

// Without a change everything is compared every five minutes, for rules that were replaced by others of their size.
func TestLegacyTablesAreComparedEveryFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLegacyWatch(t, &memory{})
		for began := time.Now(); ; time.Sleep(time.Second) {
			e, after := w.poll(t.Context()), time.Since(began)
			if (e.What != "") != (after == comparePeriod) || (e.What != "") != e.Possible {
				t.Fatalf("after %v: %+v", after, e)
			}
			if after == comparePeriod {
				return
			}
		}
	})
}

// Tables whose sizes cannot be read are compared at each poll, and written. Later edits are detected again.
func TestTablesThatCannotBeRead(t *testing.T) {
	m := &memory{}
	w := newLegacyWatch(t, m)
	m.err = errors.New("no permission")
	for range 2 {
		if e := w.poll(t.Context()); !e.Possible {
			t.Errorf("reported %+v, want a possible edit", e)
		}
	}
	if err := w.write(t.Context(), func() error { return nil }); err != nil {
		t.Error(err)
	}
	m.err, m.size = nil, 1
	if e := w.poll(t.Context()); !e.Unclear || e.What != "rules in nat" {
		t.Errorf("reported %+v", e)
	}
}

// After an edit polls are frequent, then rarer until the period is reached.
func TestNextPoll(t *testing.T) {
	tools := &Tools{opts: Options{Poll: 3 * time.Second}}
	for _, tt := range []struct {
		last time.Duration
		edit Edit
		want time.Duration
	}{
		{3 * time.Second, Edit{}, 3 * time.Second},
		{3 * time.Second, Edit{Possible: true}, 3 * time.Second},
		{3 * time.Second, Edit{Unclear: true}, firstPoll},
		{firstPoll, Edit{}, firstPoll * 9 / 8},
		{2 * time.Second, Edit{}, 9 * time.Second / 4},
		{2900 * time.Millisecond, Edit{}, 3 * time.Second},
	} {
		if got := tools.nextPoll(tt.last, tt.edit); got != tt.want {
			t.Errorf("after %v, %+v: %v, want %v", tt.last, tt.edit, got, tt.want)
		}
	}
}
