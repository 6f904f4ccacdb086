//go:build linux

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// contender is a proxy on all nodes.
type contender struct {
	name   string
	start  func(*rig, *lab.Host) (*harness.Process, error)
	direct bool
}

// survive counts the connections that break while the router and the endpoints change.
func survive(o options) error {
	all := []contender{
		{"Sluice, direct", (*rig).sluice, true}, {"Sluice, without it", (*rig).sluice, false},
	}
	if o.kubeProxy != "" {
		all = append(all, contender{"kube-proxy", func(r *rig, n *lab.Host) (*harness.Process, error) {
			return r.kubeProxy(o.kubeProxy, n)
		}, false})
	}
	fmt.Println("\n| proxy | event | connections that broke | entered at the node that left " +
		"| clients whose address was seen | messages |\n|---|---|---:|---:|---:|---:|")
	for _, c := range all {
		for _, e := range events(o) {
			if err := inLab(func(r *rig) error { return r.survive(o, c, e) }); err != nil {
				return fmt.Errorf("%s, %s: %w", c.name, e.name, err)
			}
		}
	}
	return nil
}

// event is what happens to open connections. The Service has pods on nodes, and the router divides connections among
// nodes, before it.
type event struct {
	name  string
	pods  []int // their nodes
	nodes []int
	leave int // the node that the router leaves out; -1: none
	do    func(*rig, *clients) error
}

func events(o options) []event {
	six, two, three := []int{0, 1, 2, 0, 1, 2}, []int{0, 1}, []int{0, 1, 2}
	return []event{
		{"a node without backends leaves", []int{0, 1, 0, 1, 0, 1}, three, 2, func(r *rig, _ *clients) error {
			r.enterAt(0, 1)
			return nil
		}},
		{"a node with backends joins", six, two, -1, func(r *rig, _ *clients) error {
			r.enterAt(0, 1, 2)
			return r.apply(0, 1, 2, 3, 4, 5)
		}},
		{fmt.Sprintf("%d random changes", o.changes), six, three, -1, func(r *rig, c *clients) error {
			return r.change(o, c)
		}},
	}
}

// change makes random changes: a pod leaves the endpoints, which drain it, or returns, or the router leaves out a node
// or takes it back.
func (r *rig) change(o options, c *clients) error {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same changes for each proxy
	pods, nodes := []int{0, 1, 2, 3, 4, 5}, []int{0, 1, 2}
	flip := func(list []int, of int) []int {
		i := random.IntN(of)
		if at := slices.Index(list, i); at >= 0 && len(list) > 1 {
			return slices.Delete(list, at, at+1)
		} else if at < 0 {
			return append(list, i)
		}
		return list
	}
	for n := range o.changes {
		if random.IntN(2) == 0 {
			nodes = flip(nodes, len(r.nodes))
			r.enterAt(nodes...)
		} else {
			pods = flip(pods, len(r.pods))
			if err := r.apply(pods...); err != nil {
				return err
			}
		}
		time.Sleep(o.period)
		if broken, _ := c.count(); broken > o.connections*9/10 {
			c.note = fmt.Sprintf(", after %d of them", n+1)
			return nil
		}
	}
	return nil
}

// survive measures an event, and prints a row.
func (r *rig) survive(o options, c contender, e event) error {
	if err := r.beginAll(c, e); err != nil {
		return err
	}
	cl, err := r.open(o)
	if err != nil {
		return err
	}
	defer cl.end()
	entered := "-"
	if e.leave >= 0 {
		if entered, err = r.entered(cl, e.leave); err != nil {
			return err
		}
	}
	if err := e.do(r, cl); err != nil {
		return err
	}
	cl.round(o)
	broken, messages := cl.count()
	fmt.Printf("| %s | %s%s | %d of %d | %s | %d | %d |\n",
		c.name, e.name, cl.note, broken, o.connections, entered, cl.seen, messages)
	for _, err := range cl.why(3) {
		if c.direct {
			fmt.Println(err)
		}
	}
	return nil
}

// beginAll starts the proxy on all nodes.
func (r *rig) beginAll(c contender, e event) error {
	for _, node := range e.pods {
		r.pod(node)
	}
	r.direct = c.direct
	if c.name == "kube-proxy" {
		if err := r.serveAPI(r.nodes[:]...); err != nil {
			return err
		}
	}
	begin := []int{0, 1, 2, 3, 4, 5}
	if len(e.nodes) < len(r.nodes) { // the node that joins has no backends before
		begin = []int{0, 1, 3, 4}
	}
	if err := r.apply(begin...); err != nil {
		return err
	}
	r.enterAt(e.nodes...)
	for _, n := range r.nodes {
		p, err := c.start(r, n)
		if err != nil {
			return err
		}
		if err := p.Until(limit, "the Service", func() error {
			if c.direct {
				return errors.Join(serves(n), reachesAll(p, n))
			}
			return serves(n)
		}); err != nil {
			return err
		}
	}
	return nil
}

// clients are open connections with messages.
type clients struct {
	stop func()
	wait sync.WaitGroup
	open []*lab.Flow
	from []netip.AddrPort
	seen int    // clients whose address the pod saw
	note string // for the name of the event

	mu       sync.Mutex
	messages []int
	broken   []error
}

// open opens connections, and sends messages on them.
func (r *rig) open(o options) (*clients, error) {
	c := &clients{messages: make([]int, o.connections)}
	over := make(chan struct{})
	c.stop = sync.OnceFunc(func() { close(over) })
	to := netip.AddrPortFrom(netip.MustParseAddr(vip), 80)
	for i := range o.connections {
		flow, res := r.lab.Outside.Open(lab.Probe{Protocol: lab.TCP, To: to})
		if flow == nil {
			c.end()
			return nil, fmt.Errorf("connection %d: %s", i, res)
		}
		c.open, c.from = append(c.open, flow), append(c.from, res.Local)
		if !res.Masqueraded() {
			c.seen++
		}
	}
	for i, flow := range c.open {
		c.wait.Go(func() {
			for begin := time.After(time.Duration(i) * o.pace / time.Duration(o.connections)); c.ask(i, flow); {
				select {
				case <-over:
					return
				case <-begin:
				}
				begin = time.After(o.pace)
			}
		})
	}
	return c, nil
}

func (c *clients) ask(i int, flow *lab.Flow) bool {
	res := flow.AskWithin([]byte("ping"), limit)
	c.mu.Lock()
	defer c.mu.Unlock()
	if res.Outcome != lab.Answered || !res.Echoed {
		c.broken = append(c.broken, fmt.Errorf("connection from %s: %s", c.from[i], res))
		return false
	}
	c.messages[i]++
	return true
}

func (c *clients) count() (broken, messages int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.messages {
		messages += n
	}
	return len(c.broken), messages
}

func (c *clients) why(n int) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken[:min(n, len(c.broken))]
}

// round waits until each connection is broken or has sent ten messages more.
func (c *clients) round(o options) {
	c.mu.Lock()
	before := slices.Clone(c.messages)
	c.mu.Unlock()
	for done := 0; done < len(before); time.Sleep(o.pace) {
		c.mu.Lock()
		done = len(c.broken)
		for i, n := range c.messages {
			if n >= before[i]+10 {
				done++
			}
		}
		c.mu.Unlock()
	}
}

func (c *clients) end() {
	if c.stop != nil {
		c.stop()
	}
	c.wait.Wait()
	for _, flow := range c.open {
		flow.Close()
	}
}

// entered returns how many connections enter at a node: those to which the router gives it as the next hop.
func (r *rig) entered(c *clients, node int) (string, error) {
	n := 0
	for _, from := range c.from {
		out, err := r.lab.Outside.Run("", "ip", "route", "get", vip, "from", from.Addr().String(), "ipproto", "tcp",
			"sport", fmt.Sprint(from.Port()), "dport", "80")
		if err != nil {
			return "", err
		}
		if strings.Contains(out, "via "+r.nodes[node].Addr4().String()+" ") {
			n++
		}
	}
	return fmt.Sprint(n), nil
}
