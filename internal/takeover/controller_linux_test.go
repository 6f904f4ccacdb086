package takeover

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
)

// stage is a controller at work, on a node and machine that are in memory.
type stage struct {
	*node
	*machine
	controller *Controller
	ready      chan struct{}
	log        *bytes.Buffer
}

// play has a controller run in a bubble of time, for as long as the story takes.
func play(t *testing.T, n *node, story func(*stage)) {
	t.Helper()
	playWith(t, n, Options{}, story)
}

// playWith is play with options of its own.
func playWith(t *testing.T, n *node, o Options, story func(*stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{node: n, machine: &machine{}, ready: make(chan struct{}), log: &bytes.Buffer{}}
		plain := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}}
		o.Log = slog.New(slog.NewTextHandler(s.log, plain))
		s.controller = New(o, s.ready)
		s.controller.platform.rules, s.controller.platform.detector = n.rules(), s.machine.detector()
		s.controller.platform.rules.ours = o.Ours
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.controller.Run(ctx) }()
		synctest.Wait()
		story(s)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("it ended with: %v", err)
		}
	})
}

// after lets time pass, so that the controller detects the changes of the story.
func (s *stage) after(d time.Duration) State {
	s.machine.changes.Add(1) // tells the race detector the order
	time.Sleep(d)
	synctest.Wait()
	return s.controller.State()
}

// said returns the log since the last call.
func (s *stage) said() string {
	defer s.log.Reset()
	return s.log.String()
}

func TestNothingIsRemovedBeforeSluicesRulesAreWritten(t *testing.T) {
	play(t, afterNFTables(), func(s *stage) {
		if state := s.after(time.Hour); s.done != nil || s.looks > 0 || state.Searched {
			t.Errorf("done: %v, %d looks, %+v", s.done, s.looks, state)
		}
		close(s.ready)
		state := s.after(0)
		want := State{
			Searched: true, Leftovers: map[Mechanism]int{}, Removed: map[Mechanism]int{NFTables: 23},
			Gone: []string{"removed nftables: table ip kube-proxy with 20 chains, table ip6 kube-proxy with 1 chain"},
		}
		if diff := cmp.Diff(want, state); diff != "" {
			t.Errorf("state (-want +got):\n%s", diff)
		}
		compare(t, "log", `msg="Removed leftovers of kube-proxy or of another mode" mechanism=nftables `+
			`removed="table ip kube-proxy with 20 chains, table ip6 kube-proxy with 1 chain"`+"\n", s.said())
	})
}

func TestACleanNodeIsScannedRarelyAndNothingIsLogged(t *testing.T) {
	play(t, &node{}, func(s *stage) {
		close(s.ready)
		s.after(0)
		s.done, s.looks = nil, 0
		s.broken = map[string]error{"read": errors.New("a quiet node's rules are not read")}
		state := s.after(time.Hour)
		if s.looks != 60 || s.done != nil || state.Err != nil || s.said() != "" {
			t.Errorf("in an hour %d looks for processes, done %v, %+v, logged %q", s.looks, s.done, state, s.said())
		}
	})
}

// runsBeside is the message while the take-over waits for a kube-proxy.
const runsBeside = "kube-proxy (pid 7, /usr/local/bin/kube-proxy) in mode nftables runs beside Sluice " +
	"(it listens on port 10256): stop it, then Sluice removes its rules; to remove them although it runs, " +
	"start Sluice with --ignore-kube-proxy"

func TestTheRulesOfAKubeProxyThatRunsStayUntilItStops(t *testing.T) {
	play(t, afterNFTables(), func(s *stage) {
		s.pids, s.answers = []int{7}, speaking("nftables")
		close(s.ready)
		state := s.after(time.Hour)
		want := State{
			Searched: true, KubeProxy: &KubeProxy{7, theirProgram, "nftables", "it listens on port 10256"},
			Leftovers: map[Mechanism]int{NFTables: 23}, Removed: map[Mechanism]int{},
		}
		if diff := cmp.Diff(want, state); diff != "" {
			t.Errorf("beside it (-want +got):\n%s", diff)
		}
		s.answers = nil // about to stop
		s.after(time.Minute)
		if s.done != nil {
			t.Errorf("beside it was done: %v", s.done)
		}
		compare(t, "log", `msg="A kube-proxy runs beside this proxy; its rules stay until it is stopped" `+
			`pid=7 mode=nftables program=/usr/local/bin/kube-proxy noticed="it listens on port 10256"`+"\n", s.said())
		compare(t, "in words", runsBeside,
			strings.Join(state.Lines(), "\n"))

		s.pids, s.answers = nil, speaking("nftables") // it ends: its socket has no process any more
		s.listeners = []sockdiag.Listener{{At: netip.MustParseAddrPort("127.0.0.1:10249"), Inode: 7}}
		if diff := cmp.Diff(want.KubeProxy, s.after(3*time.Second).KubeProxy); diff != "" || s.said() != "" {
			t.Errorf("while it ends (-want +got):\n%s", diff)
		}

		s.listeners, s.answers = nil, nil
		state = s.after(3 * time.Second)
		if state.KubeProxy != nil || len(state.Leftovers) > 0 || state.Removed[NFTables] != 23 || len(s.tables) != 1 {
			t.Errorf("when it has stopped: %+v, tables %v", state, s.tables)
		}
		compare(t, "log", `msg="kube-proxy has stopped, removing its rules" pid=7 mode=nftables
msg="Removed leftovers of kube-proxy or of another mode" mechanism=nftables `+
			`removed="table ip kube-proxy with 20 chains, table ip6 kube-proxy with 1 chain"
`, s.said())
	})
}

func TestAKubeProxyThatStartsLaterIsDetectedWithinAMinute(t *testing.T) {
	play(t, &node{}, func(s *stage) {
		close(s.ready)
		s.after(10 * time.Minute)
		s.pids = []int{7}
		s.node.tables = afterNFTables().tables
		if state := s.after(time.Minute); state.KubeProxy == nil || state.Leftovers[NFTables] != 23 {
			t.Errorf("after a minute: %+v", state)
		}
		s.pids = []int{8} // it was restarted
		if state := s.after(5 * time.Second); state.KubeProxy == nil || state.KubeProxy.PID != 8 {
			t.Errorf("restarted: %+v", state)
		}
		s.pids = nil
		if state := s.after(5 * time.Second); len(state.Leftovers) > 0 || len(s.node.tables) > 1 {
			t.Errorf("stopped: %+v, tables %v", state, s.node.tables)
		}
	})
}

func TestRulesThatReappearAreRemovedLessAndLessOften(t *testing.T) {
	play(t, afterNFTables(), func(s *stage) {
		all := s.node.tables
		close(s.ready)
		removals := 0
		for range 3600 {
			if s.after(time.Second); len(s.node.tables) == 1 {
				removals++
				s.node.tables = all
			}
		}
		if removals < 50 || removals > 70 {
			t.Errorf("%d removals in an hour, want about one a minute", removals)
		}
		if n := len(s.controller.State().Gone); n > maxGone {
			t.Errorf("it remembers %d removals", n)
		}
	})
}

func TestAFailureIsLoggedOnceAndItsEndOnce(t *testing.T) {
	play(t, afterNFTables(), func(s *stage) {
		s.broken = map[string]error{"delete": errors.New("no permission")}
		close(s.ready)
		state := s.after(10 * time.Minute)
		if state.Err == nil || state.Leftovers[NFTables] != 23 {
			t.Errorf("state: %+v", state)
		}
		compare(t, "log", `msg="Cannot remove all leftovers, retrying" error="no permission"`+"\n", s.said())
		compare(t, "in words", "retrying: no permission", strings.Join(state.Lines(), "\n"))
		s.broken = nil
		state = s.after(time.Minute)
		if state.Err != nil || len(s.tables) != 1 {
			t.Errorf("state: %+v, tables %v", state, s.tables)
		}
		compare(t, "log", `msg="Removed leftovers of kube-proxy or of another mode" mechanism=nftables `+
			`removed="table ip kube-proxy with 20 chains, table ip6 kube-proxy with 1 chain"
msg="Leftovers can be removed again"
`, s.said())
	})
}

func TestConnectionsThatAreWaitedForAreLoggedOnce(t *testing.T) {
	n := afterIPVS()
	n.servers[tcp("10.96.0.1:443")] = 3
	play(t, n, func(s *stage) {
		close(s.ready)
		state := s.after(time.Hour)
		if state.Leftovers[IPVS] == 0 || len(state.Left) != 3 {
			t.Errorf("state: %+v", state)
		}
		if text := s.said(); strings.Count(text, "as long as connections go through") != 1 || strings.Count(text, "\n") != 4 {
			t.Errorf("log:\n%s", text)
		}
		s.node.servers[tcp("10.96.0.1:443")] = 0
		if state = s.after(time.Minute); len(state.Leftovers) > 0 || s.node.vips != nil {
			t.Errorf("state: %+v", state)
		}
	})
}

func TestTheControllerEndsAtOnceInEveryState(t *testing.T) {
	play(t, &node{}, func(*stage) {})
	play(t, afterNFTables(), func(s *stage) { close(s.ready) })
}

// What Sluice left in other modes goes first, also beside a kube-proxy.
func TestRulesOfSluiceInOtherModesAreRemovedFirst(t *testing.T) {
	n := afterNFTables()
	others := []Leftover{
		{"nftables", func(context.Context) ([]string, error) {
			return []string{"table ip sluice", "table ip6 sluice"}, n.do("take out nftables")
		}},
		{"ebpf", func(context.Context) ([]string, error) { return nil, n.do("take out ebpf") }},
	}
	playWith(t, n, Options{Others: others}, func(s *stage) {
		if s.after(time.Hour); s.done != nil {
			t.Errorf("before Sluice's rules are in force was done: %v", s.done)
		}
		s.pids, s.answers = []int{7}, speaking("nftables")
		close(s.ready)
		state := s.after(time.Hour)
		compare(t, "done beside a kube-proxy", "take out nftables, take out ebpf", strings.Join(s.done, ", "))
		const gone = "removed leftovers of Sluice in mode nftables: table ip sluice, table ip6 sluice"
		compare(t, "in words", runsBeside+"\n"+gone,
			strings.Join(state.Lines(), "\n"))
		if len(state.Removed) > 0 {
			t.Errorf("counted as kube-proxy's: %v", state.Removed)
		}
		text := s.said()
		if !strings.HasPrefix(text,
			`msg="Removed leftovers of Sluice in another mode" mode=nftables removed="table ip sluice, table ip6 sluice"`+"\n") {
			t.Errorf("log:\n%s", text)
		}
		s.pids, s.answers = nil, nil
		if s.after(time.Hour); strings.Count(strings.Join(s.done, ", "), "take out") != 2 {
			t.Errorf("when all is gone it is tried again: %v", s.done)
		}
	})
}

func TestRemovalOfOtherModesIsRetried(t *testing.T) {
	var tries atomic.Int32
	var permitted atomic.Bool
	others := []Leftover{{"nftables", func(context.Context) ([]string, error) {
		tries.Add(1)
		if !permitted.Load() {
			return nil, errors.New("no permission")
		}
		return []string{"table ip sluice"}, nil
	}}}
	playWith(t, afterNFTables(), Options{Others: others}, func(s *stage) {
		close(s.ready)
		state := s.after(time.Hour)
		if n := tries.Load(); n < 55 || n > 70 {
			t.Errorf("%d tries in an hour, want about one a minute", n)
		}
		const removed = "table ip kube-proxy with 20 chains, table ip6 kube-proxy with 1 chain" // of kube-proxy, all the same
		compare(t, "log",
			`msg="Removed leftovers of kube-proxy or of another mode" mechanism=nftables removed="`+removed+`"
msg="Cannot remove all leftovers, retrying" error="remove leftovers of Sluice in mode nftables: no permission"
`, s.said())
		compare(t, "in words",
			"retrying: remove leftovers of Sluice in mode nftables: no permission\nremoved nftables: "+removed,
			strings.Join(state.Lines(), "\n"))
		permitted.Store(true)
		state = s.after(time.Minute)
		compare(t, "log", `msg="Removed leftovers of Sluice in another mode" mode=nftables removed="table ip sluice"
msg="Leftovers can be removed again"
`, s.said())
		compare(t, "in words", "removed nftables: "+removed+"\nremoved leftovers of Sluice in mode nftables: table ip sluice",
			strings.Join(state.Lines(), "\n"))
	})
}

// The message about a kube-proxy that writes the same chains says so.
func TestAKubeProxyThatWritesTheSameChains(t *testing.T) {
	playWith(t, afterIPTables(iptables.NFT), Options{Ours: []Mechanism{IPTablesNFT}}, func(s *stage) {
		s.pids = []int{7} // it has just started and does not answer yet
		close(s.ready)
		s.after(time.Second)
		s.answers = speaking("iptables")
		state := s.after(time.Hour)
		compare(t, "log", `msg="A kube-proxy runs beside this proxy; its rules stay until it is stopped" pid=7 mode="" `+
			`program=/usr/local/bin/kube-proxy noticed="it listens on port 10256"
msg="A kube-proxy runs beside this proxy and each overwrites the chains of the other: stop it" `+
			`pid=7 mode=iptables program=/usr/local/bin/kube-proxy noticed="it listens on port 10256"
`, s.said())
		compare(t, "in words",
			"kube-proxy (pid 7, /usr/local/bin/kube-proxy) in mode iptables runs beside Sluice, "+
				"and each overwrites the chains of the other: stop it",
			strings.Join(state.Lines(), "\n"))
		if len(state.Leftovers) > 0 || s.done != nil {
			t.Errorf("ours were taken for left over: %v, done %v", state.Leftovers, s.done)
		}
		s.pids, s.answers = nil, nil
		state = s.after(time.Minute)
		compare(t, "log",
			`msg="kube-proxy has stopped, this proxy alone writes the chains that both wrote" pid=7 mode=iptables`+"\n",
			s.said())
		if len(state.Lines()) > 0 || state.Same {
			t.Errorf("then: %q, %+v", state.Lines(), state)
		}
	})
}

func TestKubeProxyModesThatWriteTheSameChains(t *testing.T) {
	for _, tt := range []struct {
		ours []Mechanism
		mode string
		want bool
	}{
		{nil, "iptables", false},
		{[]Mechanism{IPTablesNFT}, "iptables", true},
		{[]Mechanism{IPTablesLegacy}, "ipvs", true},
		{[]Mechanism{IPTablesLegacy}, "userspace", true},
		{[]Mechanism{IPTablesLegacy}, "nftables", false},
		{[]Mechanism{IPTablesLegacy}, "", false},
	} {
		if got := (&rules{ours: tt.ours}).shared(tt.mode); got != tt.want {
			t.Errorf("ours %v, kube-proxy in mode %q: the same chains %v, want %v", tt.ours, tt.mode, got, tt.want)
		}
	}
}

// With --ignore-kube-proxy the rules of a kube-proxy that runs are removed.
func TestAKubeProxyThatIsIgnored(t *testing.T) {
	playWith(t, afterNFTables(), Options{IgnoreKubeProxy: true}, func(s *stage) {
		s.pids, s.answers = []int{7}, speaking("nftables")
		close(s.ready)
		if state := s.after(time.Hour); state.KubeProxy != nil || state.Removed[NFTables] != 23 {
			t.Errorf("state %+v, want its rules removed", state)
		}
	})
}

func TestKubeProxysWhoseRulesCleanupKeeps(t *testing.T) {
	const kept = "kube-proxy (pid 7, /usr/local/bin/kube-proxy) runs (it listens on port 10256): left the rules"
	for _, ignore := range []bool{false, true} {
		m := machine{pids: []int{7}}
		a, err := cleanup(t.Context(), afterNFTables().rules(), m.detector(), Options{IgnoreKubeProxy: ignore})
		says := strings.HasPrefix(strings.Join(a.Lines(), "; "), kept)
		if err != nil || says == ignore || ignore != (len(a.Removed) > 0) {
			t.Errorf("ignore %v: account %q, %v", ignore, a.Lines(), err)
		}
	}
}
