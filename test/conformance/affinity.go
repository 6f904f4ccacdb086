//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// keepsBackend makes a client connect repeatedly and verifies that the same one of the backends answers each time. It
// stores the backend in env.answered under a key, and must find the same one there the next time.
func keepsBackend(key, from, to string, backends ...string) step {
	return func(e *env) error {
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		before, known := e.answered[key]
		if known && !slices.Contains(want, before) {
			return fmt.Errorf("the backend of %s is %s, which is not one of %s", key, before, want)
		}
		if known {
			want = []netip.AddrPort{before}
		}
		return e.checkAffinity(key, from, to, want)
	}
}

// changesBackend is keepsBackend for a client whose backend was removed: another one must
// answer now, and is stored under the key.
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

// checkAffinity connects so often that the same backend cannot have answered by chance.
func (e *env) checkAffinity(key, from, to string, want []netip.AddrPort) error {
	client, probe, err := e.probe(from, to)
	if err != nil {
		return err
	}
	got := observation{verdict: explain.Balanced, sticky: true}
	for i := range lab.Samples(2) {
		r := client.Try(alternately(probe, i))
		if r.Outcome != lab.Answered || !slices.Contains(want, r.Backend) {
			return fmt.Errorf("%s to %s: %s, want an answer of one of %s", from, to, r, want)
		}
		want = []netip.AddrPort{r.Backend}
		got.results = append(got.results, r)
	}
	e.answered[key] = want[0]
	return e.checkExplain(client, probe, got)
}

// removeBackendOf applies the slice of Service web again, without the backend that is stored
// under a key, or with other conditions for it, as in slice.
func removeBackendOf(key, conditions string, endpoints ...string) step {
	return func(e *env) error {
		var left []string
		for _, text := range endpoints {
			addr := strings.Fields(text)[0]
			if e.text(addr) != e.answered[key].Addr().String() {
				left = append(left, text)
			} else if conditions != "" {
				left = append(left, text+" "+conditions)
			}
		}
		return apply(slice("web", "8080", left...))(e)
	}
}

// choicePorts is how many ports the Service of manyPorts has. Each has its own affinity; so
// many cannot agree by chance.
const choicePorts = 35

// manyPorts is a Service web with session affinity, many ports from 1000 on, and a slice.
func manyPorts(seconds int, endpoints ...string) []string {
	ports := repeated("{name: p%d, port: 1%03[1]d}", ", ")
	return []string{
		service("web", fmt.Sprintf(`clusterIP: 172.30.0.41, sessionAffinity: ClientIP,
  sessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}, ports: [%s]`, seconds, ports)),
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

// choices are the backends that a client reached, by port of manyPorts.
type choices [choicePorts]netip.AddrPort

// changed counts the ports that reach another backend than before.
func (c choices) changed(before choices) int {
	n := 0
	for i := range c {
		if c[i] != before[i] {
			n++
		}
	}
	return n
}

// choose makes a client connect once to every port of manyPorts, stores the backends, and
// compares them with the previous ones by a rule.
func choose(key, from string, rule func(before, now choices) error) step {
	return func(e *env) error {
		before := e.choices(key)
		for i := range choicePorts {
			if _, err := e.choose(key, from, i); err != nil {
				return err
			}
		}
		return rule(before, e.choices(key))
	}
}

// firstChoice makes a client connect once to every port of manyPorts, and verifies that the
// choices are independent. IPVS chooses in turn: all ports may begin with the same backend.
func firstChoice(key, from string) step {
	return when(inIPVSMode, choose(key, from, anyChoice)).otherwise(choose(key, from, varied))
}

// choose makes a client connect once to a port of manyPorts, and stores the backend.
func (e *env) choose(key, from string, port int) (netip.AddrPort, error) {
	to := fmt.Sprintf("172.30.0.41:%d", 1000+port)
	client, probe, err := e.resolve(from, to)
	if err != nil {
		return netip.AddrPort{}, err
	}
	r := client.Try(probe)
	if r.Outcome != lab.Answered {
		return netip.AddrPort{}, fmt.Errorf("%s to %s: %s", from, to, r)
	}
	e.answered[fmt.Sprintf("%s %d", key, port)] = r.Backend
	return r.Backend, nil
}

// renew makes a client connect to every port of manyPorts about once a second, until connections that followed each
// other within the timeout kept most ports at their backends for longer than the timeout. On a busy machine a
// connection may come too late: that port begins again.
func renew(key, from string, timeout time.Duration) step {
	const margin = 500 * time.Millisecond
	return func(e *env) error {
		var since, last [choicePorts]time.Time
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Second) {
			renewed, before := 0, e.choices(key)
			for i := range choicePorts {
				tried := time.Now()
				now, err := e.choose(key, from, i)
				if err != nil {
					return err
				}
				if time.Since(last[i]) > timeout-margin {
					since[i] = time.Now()
				} else if now != before[i] {
					return fmt.Errorf("port %d: from %s to %s, %v after the last connection",
						1000+i, before[i], now, time.Since(last[i]))
				}
				if last[i] = tried; time.Since(since[i]) > timeout+margin {
					renewed++
				}
			}
			if renewed > choicePorts/2 {
				return nil
			}
		}
		return fmt.Errorf("in a minute, connections to most ports did not follow each other within %v: "+
			"the machine is too busy", timeout)
	}
}

// choices returns the backends that choose stored under a key.
func (e *env) choices(key string) (c choices) {
	for i := range c {
		c[i] = e.answered[fmt.Sprintf("%s %d", key, i)]
	}
	return c
}

// choseIndependently verifies that two clients did not choose the same backends on all ports.
func choseIndependently(one, other string) step {
	return func(e *env) error {
		if n := e.choices(one).changed(e.choices(other)); n == 0 {
			return fmt.Errorf("%s and %s reached the same backends on all ports", one, other)
		}
		return nil
	}
}

// anyChoice accepts any backends.
func anyChoice(_, _ choices) error { return nil }

// varied requires that not all ports reach the same backend.
func varied(_, now choices) error {
	for _, b := range now {
		if b != now[0] {
			return nil
		}
	}
	return fmt.Errorf("all ports reach %s, want independent choices", now[0])
}

// same requires the same backends as before.
func same(before, now choices) error {
	if n := now.changed(before); n > 0 {
		return fmt.Errorf("%d of %d ports reach another backend than before", n, choicePorts)
	}
	return nil
}

// chosenAnew requires that some ports reach another backend than before.
func chosenAnew(before, now choices) error {
	if now.changed(before) == 0 {
		return fmt.Errorf("all %d ports reach the same backend as before", choicePorts)
	}
	return nil
}

// onlyMovedFrom requires that exactly those ports moved that reached a deleted pod, given by
// the last digits of its address.
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

func idle(d time.Duration) step {
	return func(*env) error {
		time.Sleep(d)
		return nil
	}
}

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
