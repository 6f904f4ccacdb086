//go:build linux

package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// editors are other programs that remove rules in a loop.
func editors() []attack {
	var rows []attack
	for _, e := range []struct {
		name         string
		planes, full []plane
		script       string
	}{
		{"nft flush ruleset", []plane{nftables}, []plane{iptablesNFT}, "nft flush ruleset"},
		{"iptables -t nat -F", []plane{iptablesNFT}, []plane{}, "iptables-nft -t nat -F"},
		{"iptables-legacy -t nat -F", []plane{iptablesLegacy}, []plane{}, "iptables-legacy -t nat -F"},
		{"iptables-legacy -t nat -F PREROUTING", []plane{}, []plane{iptablesLegacy}, "iptables-legacy -t nat -F PREROUTING"},
	} {
		rows = append(rows, attack{
			name: e.name + " in a loop", planes: e.planes, full: e.full, removesRules: true,
			flags: []string{"--iptables-sync-period=5s"}, limits: limits{cpu: 0.75},
			before: func(s *attackTest) { s.write("good-crowd.json", extraServices()) },
			after: func(s *attackTest) {
				for _, l := range s.plane.editRates() {
					s.runEditor(e.script, l)
				}
			},
		})
	}
	return rows
}

// editRate is how fast and for how long an editor runs, and the least percentage of probes that must find the rules
// present.
type editRate struct {
	interval, duration time.Duration
	minPresent         int
}

// editRates are increasingly fast. Repairs may take only a fifth of a core and cannot keep up with fast edits. If rules
// are mostly missing for longer than eight seconds, the daemon must report itself unhealthy.
func (p plane) editRates() []editRate {
	minPresent := 50
	if p.variant != "" {
		minPresent = 10
	}
	return []editRate{
		{machine.Scale(500 * time.Millisecond), machine.Scale(2500 * time.Millisecond), minPresent},
		{100 * time.Millisecond, 8*time.Second + machine.Scale(2*time.Second), 0},
		{30 * time.Millisecond, time.Second, 0},
		{0, time.Second, 0},
	}
}

// extraServices are 200 more Services, which make a repair take longer.
func extraServices() []object {
	var all []object
	for i := range 200 {
		all = append(all, service(fmt.Sprintf("crowd-%d", i), fmt.Sprintf("172.30.1.%d", 1+i), i%2)...)
	}
	return all
}

// runEditor runs an editor for a while. Meanwhile the rules must be present as often as the rate requires, and if they
// are mostly missing the daemon must report a fault. They must be restored soon after the editor ends.
func (s *attackTest) runEditor(script string, l editRate) {
	s.Helper()
	end, probeTime := s.startEditor(script, l.interval), machine.Scale(15*time.Millisecond)
	ctx, cancel := context.WithTimeout(s.Context(), l.duration)
	defer cancel()
	reported := make(chan bool)
	go func() { reported <- s.reportsFault(ctx) }()
	probes, answered := 0, 0
	for ctx.Err() == nil {
		probes++
		r := s.client.Try(lab.Probe{Protocol: lab.TCP, To: at(fixedIP, 80), Timeout: probeTime})
		if r.Outcome == lab.Answered {
			answered++
			s.pause(ctx, max(0, probeTime-r.Took)) // keep a constant rate
		}
	}
	end()
	ended, share, unhealthy := time.Now(), 100*answered/probes, <-reported
	s.eventually(changeTimeout(), func() error {
		for _, way := range s.ways() {
			if !s.answers(way.From, way.To, s.pods[0]) {
				return fmt.Errorf("after edits every %v: %s is not answered", l.interval, way)
			}
		}
		return nil
	})
	s.Logf("edits every %v: rules present in %d %% of %d probes, restored %v after the last edit; fault reported: %v",
		l.interval, share, probes, time.Since(ended).Round(10*time.Millisecond), unhealthy)
	if share < l.minPresent {
		s.Errorf("edits every %v: rules are present in %d %% of probes, want at least %d", l.interval, share, l.minPresent)
	}
	if share < 40 && !unhealthy && l.duration > 8*time.Second {
		s.Errorf("edits every %v: rules are present in %d %% of probes, but the daemon reports no fault", l.interval, share)
	}
	s.waitForSuccess("diff")
}

// startEditor runs a script repeatedly until the returned function is called.
func (s *attackTest) startEditor(script string, every time.Duration) (end func()) {
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

// reportsFault polls the daemon until it reports a fault, by its health code, or by the state
// or error of its status. It returns false if the context ends first.
func (s *attackTest) reportsFault(ctx context.Context) bool {
	for ctx.Err() == nil {
		if code, err := s.getHealth(); err == nil && code != 200 {
			return true
		}
		out, code := s.runSluice("status", "-o", "json")
		var status struct{ Error string }
		if code == 1 || json.Unmarshal([]byte(out), &status) == nil && status.Error != "" {
			return true
		}
		s.pause(ctx, 100*time.Millisecond)
	}
	return false
}
