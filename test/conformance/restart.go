//go:build linux

package conformance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/test/lab"
)

// changeNoWait adds and replaces objects without waiting for the proxy, which may not be running.
func changeNoWait(docs ...string) step {
	return func(e *env) error { return e.change(e.texts(docs), nil) }
}

// removeNoWait deletes objects without waiting for the proxy.
func removeNoWait(keys ...string) step {
	return func(e *env) error { return e.change(nil, keys) }
}

// requireInProcess skips the scenario if the proxy is a separate process: a later step reads its memory.
func requireInProcess(e *env) error {
	if e.proxy.running != nil {
		e.t.Skip("needs the proxy in the process of the test")
	}
	return nil
}

// removeRules stops the proxy and removes its rules, as --cleanup does.
func removeRules(e *env) error {
	if err := requireInProcess(e); err != nil {
		return err
	}
	e.proxy.stop()
	e.proxy.skipExplain = true
	return e.proxy.plane.remove(e.lab.NodeA)
}

// cleanUp is removeRules on a host without rules of other programs: no rules may remain.
func cleanUp(e *env) error {
	if err := removeRules(e); err != nil {
		return err
	}
	return e.traits().checkRemoved(e.lab.NodeA)
}

// checkRemoved verifies that no rules of a plane remain.
func (n *Traits) checkRemoved(h *lab.Host) error {
	left, err := n.rules.remaining(h)
	if err == nil && left != "" {
		err = fmt.Errorf("rules remain:\n%s", left)
	}
	return err
}

// switchMode restarts the proxy in the next mode, and removes the rules of the first mode when the rules of the next
// are in the kernel.
func switchMode(e *env) error {
	if err := requireInProcess(e); err != nil {
		return err
	}
	e.alters("rules and connections of another mode")
	first := e.proxy.plane
	next := first.Others[0]()
	next.Others = append(slices.Clone(first.Others[1:]), func() Plane { return first })
	e.proxy.stop()
	e.proxy.plane = next
	e.proxy.options = options(e.settings, e.translator, next.Traits)
	clear(e.found)
	if err := e.proxy.start(e.objects); err != nil {
		return err
	}
	// The plane replaces the chains, which have the same names in both.
	replaced := usesIptables(&first.Traits) && usesIptables(&next.Traits)
	switch {
	case next.On == first.Name:
	case first.On == next.Name:
		if err := first.Leave(e.lab.NodeA); err != nil {
			return fmt.Errorf("remove what %s has besides its rules: %w", first.Name, err)
		}
	case !inIPVSMode(&first.Traits) && !replaced:
		if err := first.remove(e.lab.NodeA); err != nil {
			return fmt.Errorf("rules of %s: %w", first.Name, err)
		}
		if err := first.checkRemoved(e.lab.NodeA); err != nil {
			return err
		}
	}
	return e.takeOver()
}

// takeOver runs the take-over beside the proxy. It removes the rules of mode ipvs; rules with connections only when
// these have ended. It returns after the first attempt.
func (e *env) takeOver() error {
	const soon = 100 * time.Millisecond
	ready := make(chan struct{})
	close(ready)
	controller := takeover.New(takeover.Options{
		NetNS: e.lab.NodeA.NetNSFD(), Log: slog.New(slog.NewTextHandler(testLog{e.t}, nil)), Ours: e.traits().mechanisms(),
		IgnoreKubeProxy: true, Soon: soon, Rarely: soon,
	}, ready)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	stop := e.proxy.stop
	e.proxy.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			e.t.Errorf("the take-over ended: %v", err)
		}
		stop()
	})
	e.t.Cleanup(e.proxy.stop)
	return eventually(changeTimeout, func() error {
		s := controller.State()
		if !s.Searched {
			return errors.New("the take-over has not searched")
		}
		return s.Err
	})
}

// inEachMode runs the steps in each mode in turn, and then in the first one again.
func inEachMode(steps ...step) step {
	return func(e *env) error {
		if err := requireInProcess(e); err != nil {
			return err
		}
		if err := sequence(steps...)(e); err != nil {
			return err
		}
		return times(1+len(e.proxy.plane.Others), switchMode, sequence(steps...))(e)
	}
}

// unlessAmong runs the steps unless a mode is among the modes of inEachMode.
func unlessAmong(mode string, steps ...step) step {
	return func(e *env) error {
		modes := []string{e.traits().mode}
		for _, other := range e.proxy.plane.Others {
			modes = append(modes, other().mode)
		}
		if slices.Contains(modes, mode) {
			return nil
		}
		return sequence(steps...)(e)
	}
}

// replaceAllRules deletes every rule on node A, and programs that act without rules, and loads foreign rules that
// keep conntrack active.
func replaceAllRules(e *env) error {
	e.alters("rules of another program")
	if e.proxy.plane.Sockets {
		if err := removeRules(e); err != nil {
			return err
		}
	}
	if err := e.traits().rules.flush(e.lab.NodeA); err != nil {
		return err
	}
	e.lab.NodeA.Nft(`table inet foreign {
  chain prerouting { type filter hook prerouting priority filter; ct state established accept; }
  chain output { type filter hook output priority filter; ct state established accept; }
}`)
	return nil
}

// flushRules deletes every rule on node A, and waits until the proxy has restored the frontends, which it writes last.
// Connections that begin in between are not translated, and stay so.
func flushRules(e *env) error {
	rules := e.traits().rules
	before, err := rules.frontends(e.lab.NodeA)
	if err != nil {
		return err
	}
	if err := rules.flush(e.lab.NodeA); err != nil {
		return err
	}
	return soon(func(e *env) error {
		after, err := rules.frontends(e.lab.NodeA)
		if err == nil && !slices.Equal(after, before) {
			err = fmt.Errorf("all rules were flushed; the frontends are %q, want %q", after, before)
		}
		return err
	})(e)
}

// foreignRules are rules of other programs, at the same hooks and with names that Sluice might use.
const foreignRules = `
table inet foreign {
  map backends { type ipv4_addr : verdict; elements = { 172.30.0.41 : accept }; }
  chain prerouting { type nat hook prerouting priority dstnat; tcp dport 4242 redirect to :4243; }
  chain output { type nat hook output priority -100; }
  chain postrouting { type nat hook postrouting priority srcnat; }
  chain forward { type filter hook forward priority filter; tcp dport 4244 drop; }
  chain balance-2 { drop; }
}
table ip proxy-of-others {
  chain services { ip daddr 172.30.0.99 drop; }
}
table ip6 proxy-of-others {
  chain services { ip6 daddr fd00:172:30::99 drop; }
}
table ip other {
  chain sluice { }
}
`

// foreignChains are chains of other programs in iptables, of either family.
const foreignChains = `*mangle
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:FOREIGN-SVC - [0:0]
-A PREROUTING -p tcp -m tcp --dport 4245 -m comment --comment foreign -j REDIRECT --to-ports 4246
-A OUTPUT -m comment --comment foreign -j FOREIGN-SVC
-A POSTROUTING -m comment --comment foreign -j FOREIGN-SVC
-A FOREIGN-SVC -p tcp -m tcp --dport 4247 -m comment --comment foreign -j RETURN
COMMIT
*filter
:KUBE-KUBELET-CANARY - [0:0]
:FOREIGN-SVC - [0:0]
-A INPUT -m comment --comment foreign -j FOREIGN-SVC
-A FORWARD -p tcp -m tcp --dport 4248 -m comment --comment foreign -j DROP
-A FORWARD -m comment --comment foreign -j FOREIGN-SVC
-A FOREIGN-SVC -m comment --comment foreign -j RETURN
COMMIT
`

// withForeignRules adds foreign rules and verifies that the steps do not change them.
func withForeignRules(steps ...step) step {
	return func(e *env) error {
		e.alters("rules of other programs")
		e.lab.NodeA.Nft(foreignRules)
		if err := e.traits().firewall.add(e.lab.NodeA, foreignChains); err != nil {
			return err
		}
		before, err := e.listForeignRules()
		if err != nil {
			return err
		}
		if err := sequence(steps...)(e); err != nil {
			return err
		}
		after, err := e.listForeignRules()
		if err == nil && after != before {
			err = fmt.Errorf("the foreign rules were\n%sand are now\n%s", before, after)
		}
		return err
	}
}

func (e *env) listForeignRules() (string, error) {
	var all strings.Builder
	for _, table := range []string{"inet foreign", "ip proxy-of-others", "ip6 proxy-of-others", "ip other"} {
		argv := append([]string{"nft", "--stateless", "list", "table"}, strings.Fields(table)...)
		text, err := e.lab.NodeA.Run("", argv...)
		if err != nil {
			return "", fmt.Errorf("list table %s: %w", table, err)
		}
		all.WriteString(text)
	}
	lines, err := e.traits().firewall.save(e.lab.NodeA)
	for _, line := range lines {
		if strings.Contains(line, "FOREIGN-SVC") || strings.Contains(line, "foreign") || strings.Contains(line, "CANARY") {
			all.WriteString(line + "\n")
		}
	}
	return all.String(), err
}

// withoutLoadingSCTP verifies that the steps do not load the sctp module.
func withoutLoadingSCTP(steps ...step) step {
	return func(e *env) error {
		before, err := sctpLoaded()
		if err != nil {
			return err
		}
		if err := sequence(steps...)(e); err != nil {
			return err
		}
		after, err := sctpLoaded()
		if err == nil && after && !before {
			err = errors.New("the sctp module was loaded")
		}
		return err
	}
}

func sctpLoaded() (bool, error) {
	modules, err := os.ReadFile("/proc/modules")
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // a kernel without modules loads none
	}
	if err != nil {
		return false, fmt.Errorf("list kernel modules: %w", err)
	}
	return strings.HasPrefix(string(modules), "sctp ") || strings.Contains(string(modules), "\nsctp "), nil
}
