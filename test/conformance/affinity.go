//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// keepsBackend has a client connect again and again; the same one of the backends must
// answer each time: the one remembered under a name (in env.answered), or, the
// first time, any.
func keepsBackend(key, from, to string, backends ...string) step {
	return func(e *env) error {
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		before, known := e.answered[key]
		if known && !slices.Contains(want, before) {
			return fmt.Errorf("%s remembers %s, which is none of %s", key, before, want)
		}
		if known {
			want = []netip.AddrPort{before}
		}
		return e.checkAffinity(key, from, to, want)
	}
}

// changesBackend is sticks for a client whose backend went: another one answers now, and
// is remembered from then on.
func changesBackend(key, from, to string, backends ...string) step {
	return func(e *env) error {
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		gone := e.answered[key]
		want = slices.DeleteFunc(want, func(b netip.AddrPort) bool { return b == gone })
		return e.checkAffinity(key, from, to, want)
	}
}

// checkAffinity connects so often that a random choice would not look like a sticky one.
func (e *env) checkAffinity(memory, from, to string, want []netip.AddrPort) error {
	client, probe, err := e.probe(from, to)
	if err != nil {
		return err
	}
	saw := observation{verdict: explain.Balanced, sticky: true}
	for range lab.Samples(2) {
		r := client.Try(probe)
		if r.Outcome != lab.Answered || !slices.Contains(want, r.Backend) {
			return fmt.Errorf("%s to %s: %s, want an answer of one of %s", from, to, r, want)
		}
		want = []netip.AddrPort{r.Backend}
		saw.results = append(saw.results, r)
	}
	e.answered[memory] = want[0]
	return e.checkExplain(client, probe, saw)
}

// removeBackendOf applies the slice of Service web again, without the backend that is
// remembered. What is given for it, if not empty, is what becomes of its entry:
// conditions as in slice.
func removeBackendOf(memory, conditions string, endpoints ...string) step {
	return func(e *env) error {
		var left []string
		for _, text := range endpoints {
			addr := strings.Fields(text)[0]
			if e.text(addr) != e.answered[memory].Addr().String() {
				left = append(left, text)
			} else if conditions != "" {
				left = append(left, text+" "+conditions)
			}
		}
		return apply(slice("web", "8080", left...))(e)
	}
}

// choicePorts is how many ports the Service of manyPorts has. Each has a memory
// of its own: that all of them agree by chance does not happen.
const choicePorts = 35

// manyPorts is a Service web that remembers its clients for so long, with ports
// from 1000 on, and a slice of it.
func manyPorts(seconds int, endpoints ...string) []string {
	return []string{
		service("web", fmt.Sprintf(`clusterIP: 172.30.0.41, sessionAffinity: ClientIP,
  sessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}, ports: [%s]`, seconds, repeated("{name: p%d, port: 1%03[1]d}", ", "))),
		manyPortsSlice(endpoints...),
	}
}

func manyPortsSlice(endpoints ...string) string {
	return slice("web", repeated("p%d:8080", " "), endpoints...)
}

func repeated(format, separator string) string {
	var all []string
	for i := range choicePorts {
		all = append(all, fmt.Sprintf(format, i))
	}
	return strings.Join(all, separator)
}

// choices are the backends that a client reached, by port.
type choices [choicePorts]netip.AddrPort

// changed counts the ports that lead elsewhere than before.
func (c choices) changed(before choices) int {
	n := 0
	for i := range c {
		if c[i] != before[i] {
			n++
		}
	}
	return n
}

// choose has a client connect to every port of manyPorts, once, and remembers
// the backends. The rule compares them with those of the last time.
func choose(memory, from string, rule func(before, now choices) error) step {
	return func(e *env) error {
		before, now := e.choices(memory), choices{}
		for i := range now {
			to := fmt.Sprintf("172.30.0.41:%d", 1000+i)
			client, probe, err := e.probe(from, to)
			if err != nil {
				return err
			}
			r := client.Try(probe)
			if r.Outcome != lab.Answered {
				return fmt.Errorf("%s to %s: %s", from, to, r)
			}
			now[i] = r.Backend
			e.answered[fmt.Sprintf("%s %d", memory, i)] = r.Backend
		}
		return rule(before, now)
	}
}

func (e *env) choices(memory string) (c choices) {
	for i := range c {
		c[i] = e.answered[fmt.Sprintf("%s %d", memory, i)]
	}
	return c
}

// choseIndependently looks whether two clients have chosen without regard to each other.
func choseIndependently(one, other string) step {
	return func(e *env) error {
		if n := e.choices(one).changed(e.choices(other)); n == 0 {
			return fmt.Errorf("%s and %s have chosen the same on all ports", one, other)
		}
		return nil
	}
}

// anyChoice is the rule of the first look.
func anyChoice(_, _ choices) error { return nil }

// varied wants ports to be different from each other.
func varied(_, now choices) error {
	for _, b := range now {
		if b != now[0] {
			return nil
		}
	}
	return fmt.Errorf("all ports lead to %s, want each to choose for itself", now[0])
}

// same wants everything as before.
func same(before, now choices) error {
	if n := now.changed(before); n > 0 {
		return fmt.Errorf("%d of %d ports lead elsewhere than before", n, choicePorts)
	}
	return nil
}

// chosenAnew wants some ports to have moved, by chance.
func chosenAnew(before, now choices) error {
	if now.changed(before) == 0 {
		return fmt.Errorf("all %d ports lead where they did before", choicePorts)
	}
	return nil
}

// onlyMovedFrom wants those ports to have moved that led to pods that are gone, by the
// digits their addresses end with.
func onlyMovedFrom(suffix string) func(before, now choices) error {
	return func(before, now choices) error {
		for i := range now {
			gone := strings.HasSuffix(before[i].Addr().String(), suffix)
			if moved := now[i] != before[i]; moved != gone {
				return fmt.Errorf("port %d: from %s to %s", 1000+i, before[i], now[i])
			}
		}
		return nil
	}
}

// idle lets time pass.
func idle(d time.Duration) step {
	return func(*env) error {
		time.Sleep(d)
		return nil
	}
}

// times repeats steps.
func times(n int, steps ...step) step {
	return func(e *env) error {
		for i := range n {
			for _, s := range steps {
				if err := s(e); err != nil {
					return fmt.Errorf("round %d: %w", i+1, err)
				}
			}
		}
		return nil
	}
}
