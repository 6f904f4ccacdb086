package iptables

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// replaceRestore makes a shell script run in place of the restore program of
// IPv4. In the script, "$restore" is the program and "$iptables" edits tables.
func replaceRestore(t *testing.T, tools *Tools, script string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "iptables-"+string(tools.variant)+"-restore")
	text := fmt.Sprintf("#!/bin/sh\nrestore=/usr/sbin/iptables-%[1]s-restore\niptables=/usr/sbin/iptables-%[1]s\n%[2]s\n", tools.variant, script)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	tools.programs = map[Family]programs{IPv4: {restore: path, save: tools.programs[IPv4].save}}
	tools.opts.Path = "/usr/sbin:/usr/bin:/bin"
}

// An edit that comes right behind a write of ours, before the write's effect on
// the table is known, is at least reported as possible. It touches no chain
// that the write did not touch.
func TestAnEditRightBehindAWriteIsReported(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		for _, edit := range []string{
			"-F KUBE-SERVICES", "-D PREROUTING -j KUBE-SERVICES", "-R KUBE-SERVICES 1 -p tcp -j ACCEPT",
		} {
			h := newHost(t, variant)
			replaceRestore(t, h.tools, `"$restore" "$@" && exec "$iptables" -w 5 -t nat `+edit)
			o := observeHost(t, h)
			o.restore(IPv4, "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -p tcp -j RETURN\n-I PREROUTING -j KUBE-SERVICES\nCOMMIT\n")
			if e := o.next(); variant == NFT && e.Possible {
				t.Errorf("%s: reported %+v, want an edit that was seen", edit, e)
			}
		}
	})
}

// A write that nobody interferes with is reported once as possibly interfered
// with, and no more while nothing is written.
func TestAWriteIsVerifiedOnce(t *testing.T) {
	o := observe(t, Legacy, func(*host) {})
	for range 3 {
		o.restore(IPv4, base)
		o.settle()
		if o.possible == 0 {
			t.Error("a write of a legacy table is not reported for verification")
		}
		o.possible = 0
		if reported := o.settle(); len(reported) > 0 || o.possible > 0 {
			t.Errorf("without a write, reported %v and %d possible edits", reported, o.possible)
		}
	}
}
