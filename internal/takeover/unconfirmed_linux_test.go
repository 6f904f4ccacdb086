package takeover

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/kernel/process"
)

// renamed is a process that has nothing of a kube-proxy but the name, and could
// change rules.
func renamed() []process.Process {
	return []process.Process{{PID: 6, Program: "/tmp/kube-proxy", Admin: true}}
}

// A process of kube-proxy's name alone holds up the removal for two minutes.
func TestAProcessWithOnlyTheNameDelaysTheTakeoverForALimitedTime(t *testing.T) {
	var events []string
	playWith(t, afterNFTables(), Options{Record: func(note string) { events = append(events, note) }}, func(s *stage) {
		s.called = renamed()
		close(s.ready)
		state := s.after(defaultGrace - time.Second)
		if state.KubeProxy == nil || state.KubeProxy.Confirmed || s.done != nil {
			t.Errorf("within the time that it is given: %+v, done %v", state, s.done)
		}
		waiting := "a process called kube-proxy (pid 6, /tmp/kube-proxy) runs: unless it listens or changes rules as a kube-proxy does, " +
			"Sluice removes kube-proxy's rules after 00:02:00 UTC; to remove them although it runs, start Sluice with --ignore-kube-proxy"
		compare(t, "in words", waiting, strings.Join(state.Lines(), "\n"))
		s.said()
		state = s.after(10 * time.Second)
		const why = "a process called kube-proxy (pid 6, /tmp/kube-proxy) is not waited for: it listens on none of kube-proxy's ports, " +
			"and kube-proxy's rules did not change for 2m0s"
		if state.KubeProxy != nil || state.Ignored != why || state.Removed[NFTables] != 23 || len(s.tables) != 1 {
			t.Errorf("after that: %+v, tables %v", state, s.tables)
		}
		compare(t, "log", `msg="Removing kube-proxy's rules although a process of its name runs" reason="`+why+`"
msg="Removed what kube-proxy left" mechanism=nftables removed="table ip kube-proxy with 20 chains, table ip6 kube-proxy with 1 chain"
`, s.said())
		compare(t, "events", waiting+"\n"+why, strings.Join(events, "\n"))
		if state = s.after(time.Hour); state.Ignored != why || s.said() != "" {
			t.Errorf("an hour later: %+v", state)
		}
		s.called = nil
		if state = s.after(time.Hour); state.Ignored != "" {
			t.Errorf("when it has ended: %q", state.Ignored)
		}
	})
}

// One that cannot change rules does not hold it up at all.
func TestAProcessWithoutNetAdminDoesNotDelayTheTakeover(t *testing.T) {
	play(t, afterNFTables(), func(s *stage) {
		s.called = renamed()
		s.called[0].Admin = false
		close(s.ready)
		if state := s.after(0); state.KubeProxy != nil || state.Removed[NFTables] != 23 || len(state.Lines()) != 1 {
			t.Errorf("state %+v", state)
		}
	})
}

// Rules that change while it runs show that it is a kube-proxy, for as long as
// they do.
func TestTakeoverWaitsForAProcessThatChangesRules(t *testing.T) {
	play(t, afterNFTables(), func(s *stage) {
		s.called = renamed()
		close(s.ready)
		for i := range 10 {
			state := s.after(defaultGrace - time.Second)
			if state.KubeProxy == nil || s.done != nil {
				t.Fatalf("after change %d: %+v, done %v", i, state, s.done)
			}
			s.node.tables[0].Chains = append(s.node.tables[0].Chains, nft.ChainOutline{Name: "new"})
		}
		if state := s.after(3 * defaultGrace); state.KubeProxy != nil || len(s.node.tables) != 1 {
			t.Errorf("when they do not change any more: %+v, tables %v", state, s.node.tables)
		}
	})
}

// One that begins to listen within the time that it is given has shown what it
// is, also when it stops listening because it ends.
func TestTakeoverWaitsForAKubeProxyThatStarts(t *testing.T) {
	play(t, afterNFTables(), func(s *stage) {
		s.called = []process.Process{{PID: 7, Program: theirProgram, Admin: true}}
		close(s.ready)
		s.after(time.Minute)
		s.called, s.pids = nil, []int{7}
		if state := s.after(time.Hour); state.KubeProxy == nil || !state.KubeProxy.Confirmed || s.done != nil {
			t.Errorf("when it listens: %+v, done %v", state, s.done)
		}
		s.called, s.pids = []process.Process{{PID: 7, Program: theirProgram, Admin: true}}, nil
		if state := s.after(time.Hour); state.KubeProxy == nil || s.done != nil {
			t.Errorf("when it listens no more: %+v, done %v", state, s.done)
		}
	})
}

// A real one is not waited for if the operator says so.
func TestAKubeProxyIsIgnoredOnRequest(t *testing.T) {
	playWith(t, afterNFTables(), Options{IgnoreKubeProxy: true}, func(s *stage) {
		s.pids, s.answers = []int{7}, speaking("nftables")
		close(s.ready)
		state := s.after(time.Minute)
		want := "kube-proxy (pid 7, /usr/local/bin/kube-proxy) in mode nftables runs beside Sluice (it listens on port 10256) " +
			"and is ignored, as --ignore-kube-proxy says"
		if state.KubeProxy != nil || state.Ignored != want || state.Removed[NFTables] != 23 {
			t.Errorf("state %+v, want its rules removed and %q", state, want)
		}
	})
}

func TestKubeProxysWhoseRulesCleanupKeeps(t *testing.T) {
	old := renamed()
	old[0].Age = time.Hour
	const running = " runs and uses them"
	for _, tt := range []struct {
		name string
		machine
		ignore bool
		says   string
	}{
		{"a kube-proxy", machine{pids: []int{7}}, false, "kube-proxy (pid 7, /usr/local/bin/kube-proxy)" + running},
		{"a kube-proxy that is to be ignored", machine{pids: []int{7}}, true, "runs, and its rules were removed (it listens on port 10256)"},
		{"a process that was just started", machine{called: renamed()}, false, "kube-proxy (pid 6, /tmp/kube-proxy)" + running},
		{"a process that has long been there", machine{called: old}, false, "runs, and its rules were removed (a process of this name)"},
	} {
		a, err := cleanup(t.Context(), afterNFTables().rules(), tt.machine.detector(), Options{IgnoreKubeProxy: tt.ignore})
		if err != nil || !strings.Contains(strings.Join(a.Lines(), "; "), tt.says) || strings.Contains(tt.says, running) == (len(a.Removed) > 0) {
			t.Errorf("%s: account %q, %v, want %q", tt.name, a, err, tt.says)
		}
	}
}
