//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// measure measures everything that was asked for. A size has one API server, and
// every proxy a node.
func measure(o options) error {
	dir, err := os.MkdirTemp("/run", "versus-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if o.sluice, err = build(dir); err != nil {
		return err
	}
	var trouble error
	for _, size := range o.sizes {
		err := lab.Run(func(t lab.T) {
			s, err := newServer(t, size)
			if err != nil {
				t.Fatalf("fill an API server with %d Services: %v", size, err)
			}
			for _, k := range kinds() {
				if slices.Contains(o.proxies, k.name) {
					trouble = errors.Join(trouble, measureProxy(s, o, k))
				}
			}
		})
		if trouble = errors.Join(trouble, err); trouble != nil {
			return trouble
		}
	}
	return nil
}

// measureProxy measures one proxy. That it was too slow is a result as well.
func measureProxy(s *server, o options, k kind) error {
	var trouble error
	err := lab.Run(func(t lab.T) {
		n, err := newNode(t, s, o, k)
		if err != nil {
			t.Fatalf("build a node: %v", err)
		}
		r := result{Services: s.services, Proxy: k.name, Versions: n.versions(), When: time.Now().UTC().Truncate(time.Second)}
		trouble = n.measure(&r)
		if slow, ok := errors.AsType[late](trouble); ok {
			say("%s, %d Services: %v", k.name, s.services, trouble)
			r.NotReached = fmt.Sprintf("%s: not within %v", slow.what, slow.limit)
			trouble = save(o.results, r)
		}
	})
	if err := errors.Join(err, trouble); err != nil {
		say("%s, %d Services: %v", k.name, s.services, err)
		return fmt.Errorf("measure %s with %d Services: %w", k.name, s.services, err)
	}
	return nil
}

// part is one of partNames. It writes what it measures into the result.
type part struct {
	name string
	run  func(*result) error
}

func (n *node) parts() []part {
	return []part{
		{"idle", n.idle},
		{"change", n.change},
		{"connect", n.connect},
		{"churn", n.churn},
		{"rolling", n.rolling},
		{"heap", n.heap},
	}
}

// measure goes through the parts, and saves the result after each.
func (n *node) measure(r *result) error {
	if err := n.begin(r); err != nil {
		return err
	}
	for _, p := range n.parts() {
		if !slices.Contains(n.o.parts, p.name) {
			continue
		}
		if err := n.step(p, r); err != nil {
			return err
		}
	}
	if err := n.halt(); err != nil {
		return err
	}
	if !slices.Contains(n.o.parts, "restart") {
		return nil
	}
	return n.step(part{"restart", n.restart}, r)
}

// begin starts the proxy, which is a part that is always run and not always of
// interest.
func (n *node) begin(r *result) error {
	fresh := &result{Services: r.Services, Proxy: r.Proxy, Versions: r.Versions, When: r.When}
	if slices.Contains(n.o.parts, "start") {
		fresh = r
	}
	say("%s, %d Services: start", n.kind.name, n.services)
	if err := n.start(fresh); err != nil {
		return err
	}
	return save(n.o.results, *r)
}

func (n *node) step(p part, r *result) error {
	say("%s, %d Services: %s", n.kind.name, n.services, p.name)
	if err := p.run(r); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if p.name != "restart" {
		peak, err := n.watch.peak()
		if err != nil {
			return err
		}
		r.Peak = &peak
	}
	return save(n.o.results, *r)
}

// say tells people how far it is.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// oneLine is text without line ends.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.TrimSpace(text), func(r rune) bool { return r == '\n' }), ", ")
}
