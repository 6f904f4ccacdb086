package app

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// runNft runs nft in a namespace and returns what it printed.
func runNft(t *testing.T, netns int, args ...string) string {
	t.Helper()
	var out []byte
	kerneltest.Do(t, netns, func() error {
		var err error
		out, err = exec.Command("nft", args...).CombinedOutput()
		if err != nil {
			t.Errorf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	})
	return string(out)
}

// Whatever another program does to our tables is noticed and put right, and its
// own are left alone.
func TestForeignEditsArePutRight(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	foreign := "table ip foreign { chain c { type filter hook input priority 0; tcp dport 9 drop; }; }"
	runNft(t, o.NetNS, "add "+foreign)
	r := run(t, o)
	r.sync()
	ours := runNft(t, o.NetNS, "list", "table", "ip", "sluice")
	theirs := runNft(t, o.NetNS, "list", "table", "ip", "foreign")
	for _, edit := range []string{
		"delete table ip sluice",
		"flush table ip sluice",
		"flush chain ip sluice prerouting",
		"insert rule ip sluice prerouting drop",
		"add chain ip sluice intruder",
		"flush map ip sluice backends",
		"add element ip sluice cluster-ips { 10.96.0.99 }",
		"add table ip sluice { flags dormant; }",
		"chain ip sluice prerouting { policy drop; }",
		"chain ip sluice postrouting { policy drop; }",
		"flush ruleset; add " + foreign,
	} {
		began := time.Now()
		runNft(t, o.NetNS, edit)
		s := r.sync()
		t.Logf("%-50s put right in %v (%d steps), nft's own time included", edit, time.Since(began).Round(time.Millisecond), s.Steps)
		if s.Cause != proxy.ForeignEdit || s.Steps == 0 {
			t.Errorf("%s: %+v, want a repair of a foreign edit", edit, s)
		}
		if got := runNft(t, o.NetNS, "list", "table", "ip", "sluice"); got != ours {
			t.Errorf("%s: not put right:\n%s\nwant:\n%s", edit, got, ours)
		}
		if got := runNft(t, o.NetNS, "list", "table", "ip", "foreign"); got != theirs {
			t.Errorf("%s: the foreign table is now\n%s\nwant:\n%s", edit, got, theirs)
		}
	}
	// What happens to foreign tables is nobody's business: the next comparison is of
	// the edit after that, and finds it.
	runNft(t, o.NetNS, "flush table ip foreign")
	runNft(t, o.NetNS, "delete table ip sluice")
	if s := r.sync(); s.Steps == 0 {
		t.Errorf("an edit of a foreign table led to %+v", s)
	}
}
