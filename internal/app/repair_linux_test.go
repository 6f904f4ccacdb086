package app

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// runNft runs nft in a namespace and returns its output.
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

// Every edit of our tables is detected and repaired. Foreign tables are not changed.
func TestForeignEditsAreRepaired(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	foreign := "table ip foreign { chain c { type filter hook input priority 0; tcp dport 9 drop; }; }"
	runNft(t, o.NetNS, "add "+foreign)
	r := run(t, o)
	r.sync()
	ours := runNft(t, o.NetNS, "list", "table", "ip", "sluice")
	foreignRules := runNft(t, o.NetNS, "list", "table", "ip", "foreign")
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
		t.Logf("%-50s repaired in %v (%d steps), including the time of nft", edit, time.Since(began).Round(time.Millisecond),
			s.Steps)
		if s.Cause != proxy.ForeignEdit || s.Steps == 0 {
			t.Errorf("%s: %+v, want a repair of a foreign edit", edit, s)
		}
		if got := runNft(t, o.NetNS, "list", "table", "ip", "sluice"); got != ours {
			t.Errorf("%s: not repaired:\n%s\nwant:\n%s", edit, got, ours)
		}
		if got := runNft(t, o.NetNS, "list", "table", "ip", "foreign"); got != foreignRules {
			t.Errorf("%s: the foreign table is now\n%s\nwant:\n%s", edit, got, foreignRules)
		}
	}
	// An edit of a foreign table causes no comparison: the next one is that for the edit of ours.
	runNft(t, o.NetNS, "flush table ip foreign")
	runNft(t, o.NetNS, "delete table ip sluice")
	if s := r.sync(); s.Steps == 0 {
		t.Errorf("an edit of a foreign table caused %+v", s)
	}
}
