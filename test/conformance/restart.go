//go:build linux

package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// changeUnseen adds and replaces objects without waiting for the proxy, which may
// not be running.
func changeUnseen(docs ...string) step {
	return func(e *env) error { return e.change(e.texts(docs), nil) }
}

// removeUnseen deletes objects without waiting for the proxy.
func removeUnseen(keys ...string) step {
	return func(e *env) error { return e.change(nil, keys) }
}

// removed ends the proxy and takes away what it wrote, as --cleanup does.
func removed(e *env) error {
	e.proxy.stop()
	e.proxy.bare = true
	p := e.proxy.plane.Start(e.t, e.lab.NodeA)
	if _, err := p.Remove(context.Background()); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

// cleanUp is removed where nobody else has rules: none may be left.
func cleanUp(e *env) error {
	if err := removed(e); err != nil {
		return err
	}
	rules, err := e.lab.NodeA.Run("", "nft", "list", "ruleset")
	if err == nil && strings.TrimSpace(rules) != "" {
		err = fmt.Errorf("rules are left:\n%s", rules)
	}
	return err
}

// flushRules has somebody delete every rule on node A, and waits until what
// clients meet, which comes last, is back. Who connects meanwhile is not
// translated, and stays so.
func flushRules(e *env) error {
	before, err := e.fronts()
	if err != nil {
		return err
	}
	if _, err := e.lab.NodeA.Run("", "nft", "flush", "ruleset"); err != nil {
		return err
	}
	return soon(func(e *env) error {
		after, err := e.fronts()
		if err == nil && !slices.Equal(after, before) {
			err = fmt.Errorf("somebody flushed all rules; there are fronts %q, want %q", after, before)
		}
		return err
	})(e)
}

// fronts are the words in the listings of all fronts on node A, sorted.
func (e *env) fronts() ([]string, error) {
	var words []string
	for _, family := range []string{"ip", "ip6"} {
		text, err := e.lab.NodeA.Run("", "nft", "list", "map", family, "sluice", "fronts")
		if err != nil {
			return nil, err
		}
		words = append(words, strings.Fields(strings.ReplaceAll(text, ",", " "))...)
	}
	slices.Sort(words)
	return words, nil
}

// foreignRules are somebody else's, at the same hooks and under names that ours
// may have.
const foreignRules = `
table inet foreign {
  map backends { type ipv4_addr : verdict; elements = { 172.30.0.41 : accept }; }
  chain prerouting { type nat hook prerouting priority dstnat; tcp dport 4242 redirect to :4243; }
  chain output { type nat hook output priority -100; }
  chain postrouting { type nat hook postrouting priority srcnat; }
  chain forward { type filter hook forward priority filter; tcp dport 4244 drop; }
  chain balance-2 { drop; }
}
table ip kube-proxy {
  chain services { ip daddr 172.30.0.99 drop; }
}
table ip6 kube-proxy {
  chain services { ip6 daddr fd00:172:30::99 drop; }
}
table ip other {
  chain sluice { }
}
`

// besideForeign has somebody else's rules there, which must be as they were after
// the steps.
func besideForeign(steps ...step) step {
	return func(e *env) error {
		e.lab.NodeA.Nft(foreignRules)
		before, err := e.foreign()
		if err != nil {
			return err
		}
		if err := together(steps...)(e); err != nil {
			return err
		}
		after, err := e.foreign()
		if err == nil && after != before {
			err = fmt.Errorf("somebody else's rules were\n%sand are\n%s", before, after)
		}
		return err
	}
}

func (e *env) foreign() (string, error) {
	var all strings.Builder
	for _, table := range []string{"inet foreign", "ip kube-proxy", "ip6 kube-proxy", "ip other"} {
		argv := append([]string{"nft", "--stateless", "list", "table"}, strings.Fields(table)...)
		text, err := e.lab.NodeA.Run("", argv...)
		if err != nil {
			return "", fmt.Errorf("list table %s: %w", table, err)
		}
		all.WriteString(text)
	}
	return all.String(), nil
}

// withoutLoadingSCTP has the kernel's sctp module not be loaded by the steps.
func withoutLoadingSCTP(steps ...step) step {
	return func(e *env) error {
		before, err := sctpLoaded()
		if err != nil {
			return err
		}
		if err := together(steps...)(e); err != nil {
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
