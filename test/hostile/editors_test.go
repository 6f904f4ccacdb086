//go:build linux

package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// editors are other programs that remove rules in a loop.
func editors() []attack {
	var rows []attack
	for _, e := range []struct {
		name   string
		planes []plane
		script string
	}{
		{"nft flush ruleset", mainPlanes, "nft flush ruleset"},
		{"iptables -t nat -F", []plane{iptablesNFT}, "iptables-nft -t nat -F"},
		{"iptables-legacy -t nat -F", []plane{iptablesLegacy}, "iptables-legacy -t nat -F"},
		{"iptables-legacy -t nat -F PREROUTING", []plane{iptablesLegacy}, "iptables-legacy -t nat -F PREROUTING"},
	} {
		rows = append(rows, attack{
			name: e.name + " in a loop", planes: e.planes, edits: true,
			flags: []string{"--iptables-sync-period=5s"}, limits: limits{cpu: 0.75},
			lasts:  time.Millisecond,
			before: func(s *siege) { s.write("good-crowd.json", goodCrowd()) },
			after: func(s *siege) {
				for _, l := range s.plane.loops() {
					s.edited(e.script, l)
				}
			},
		})
	}
	return rows
}

// loop is how fast and for how long an editor edits, and in how many percent of
// looks the rules must be there meanwhile.
type loop struct {
	every, lasts time.Duration
	there        int
}

// loops become faster. Repairs that may take a fifth of a core, beside other tests,
// cannot win against fast ones: if rules are mostly missing for longer than the five
// seconds that the daemon looks back, it must call itself unhealthy.
func (p plane) loops() []loop {
	there := 50
	if p.variant != "" {
		there = 10
	}
	return []loop{
		{500 * time.Millisecond, 2500 * time.Millisecond, there},
		{100 * time.Millisecond, 7 * time.Second, 0},
		{30 * time.Millisecond, time.Second, 0},
		{0, time.Second, 0},
	}
}

// goodCrowd are 200 more Services, so that a repair is some work.
func goodCrowd() []object {
	var all []object
	for i := range 200 {
		all = append(all, service(fmt.Sprintf("crowd-%d", i), fmt.Sprintf("172.30.1.%d", 1+i), i%2)...)
	}
	return all
}

// edited runs an editor for a while. Meanwhile the rules must be there as often as
// the loop says, and if they are mostly not the daemon must say so; they must be
// back soon after the editor ends.
func (s *siege) edited(script string, l loop) {
	s.Helper()
	end := s.edit(script, l.every)
	ctx, cancel := context.WithTimeout(s.Context(), l.lasts)
	defer cancel()
	confession := make(chan bool)
	go func() { confession <- s.confesses(ctx) }()
	looks, seen := 0, 0
	for ctx.Err() == nil {
		looks++
		r := s.client.Try(lab.Probe{Protocol: lab.TCP, To: at(staysIP, 80), Timeout: 15 * time.Millisecond})
		if r.Outcome == lab.Answered {
			seen++
			s.pause(ctx, max(0, 15*time.Millisecond-r.Took)) // looks at a steady pace
		}
	}
	end()
	quiet, share, confessed := time.Now(), 100*seen/looks, <-confession
	s.eventually(giveUp, func() error {
		for _, way := range s.ways() {
			if !s.answers(way.From, way.To, s.pods[0]) {
				return fmt.Errorf("after edits every %v: %s is not answered", l.every, way)
			}
		}
		return nil
	})
	s.Logf("edits every %v: rules there in %d %% of %d looks, back %v after the last; not healthy: %v",
		l.every, share, looks, time.Since(quiet).Round(10*time.Millisecond), confessed)
	if share < l.there {
		s.Errorf("edits every %v: rules are there in %d %% of looks, want %d at least", l.every, share, l.there)
	}
	if share < 40 && !confessed && l.lasts > 5*time.Second {
		s.Errorf("edits every %v: rules are there in %d %% of looks, and the daemon calls itself healthy", l.every, share)
	}
	s.succeed("diff")
}

// edit runs a script again and again until the function it returns is called.
func (s *siege) edit(script string, every time.Duration) (end func()) {
	s.Helper()
	loop := fmt.Sprintf("while :; do %s; sleep %g; done >/dev/null 2>&1", script, every.Seconds())
	if every == 0 {
		loop = fmt.Sprintf("while :; do %s; done >/dev/null 2>&1", script)
	}
	cmd := exec.Command("sh", "-c", loop)
	wait, err := s.lab.NodeA.Start(cmd)
	s.must(err)
	return func() {
		_ = cmd.Process.Kill()
		_ = wait()
	}
}

// confesses asks until the daemon says that something is wrong, by its health
// code or by the state or the error of its status, and reports whether it does.
func (s *siege) confesses(ctx context.Context) bool {
	for ctx.Err() == nil {
		if code, err := s.health(); err == nil && code != 200 {
			return true
		}
		out, code := s.ask("status", "-o", "json")
		var status struct{ Error string }
		if code == 1 || json.Unmarshal([]byte(out), &status) == nil && status.Error != "" {
			return true
		}
		s.pause(ctx, 100*time.Millisecond)
	}
	return false
}
